"""Draws panels: each kind of data becomes marks on a sheet."""

from __future__ import annotations

from collections.abc import Sequence

from unseen.report import theme
from unseen.report.axes import Scale, number, shortened, spread
from unseen.report.figures import Dots, Figure, Line, Lines, Panel, Points, Surface
from unseen.report.scene import Disc, Mark, Path, Scene, Text, thinned

WIDTH, HEIGHT = 300.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 40.0, 8.0, 24.0, 34.0
ROW = 27.0
#: Around each panel of a file.
EDGE = 10.0
#: What is drawn first lies below.
ORDER = {"faint": 0, "dotted": 1, "plain": 1, "strong": 2}


def panel(data: Panel, tolerance: float = 0.4) -> Scene:
    """One panel as a drawing that can be read at the width of a phone."""
    if isinstance(data, Lines):
        return _lines(data, tolerance)
    if isinstance(data, Dots):
        return _dots(data)
    return _points(data) if isinstance(data, Points) else _surface(data)


def sheet(figure: Figure, columns: int = 3) -> Scene:
    """All panels of a figure with its title and its legend, as for a file."""
    scenes = [panel(p, 0.05) for p in figure.panels]
    columns = min(columns, len(scenes)) or 1
    wide = WIDTH + 2 * EDGE
    width = max(columns, 2) * wide
    marks: list[Mark] = [Text(EDGE, 20, shortened(figure.title, int(width / 6.5)), "t")]
    top = _legend(figure.legend, width, 34.0, marks)
    for start in range(0, len(scenes), columns):
        row = scenes[start : start + columns]
        for i, scene in enumerate(row):
            marks += [mark.moved(i * wide + EDGE, top) for mark in scene.marks]
        top += max(scene.height for scene in row) + 8
    return Scene(width, top, tuple(marks))


def _legend(lines: Sequence[Line], width: float, top: float, marks: list[Mark]) -> float:
    """Adds a legend and returns where the next thing may start."""
    if not lines:
        return top
    x = EDGE
    for line in lines:
        name = shortened(line.name, 60)
        needed = 34 + 6.2 * len(name)
        if x > EDGE and x + needed > width:
            x, top = EDGE, top + 16
        marks.append(Path(((x, top), (x + 20, top)), stroke(line)))
        marks.append(Text(x + 25, top + 4, name))
        x += needed
    return top + 14


def stroke(line: Line) -> str:
    """The classes of a line."""
    dashes = theme.DASHES.index(theme.dash(line.colour, line.kind))
    parts = ["l", line.kind if line.kind != "plain" else ""]
    parts += [f"d{dashes}" if dashes and line.kind != "dotted" else "", _colour(line.colour)]
    return " ".join(filter(None, parts))


def _colour(index: int) -> str:
    return "ink" if index < 0 else f"c{index % theme.SERIES}"


def _lines(data: Lines, tolerance: float) -> Scene:
    xs = [v for line in data.lines for v in line.x]
    ys = [v for line in data.lines for v in (*line.y, *line.low, *line.high)]
    low, high = data.limits or spread(ys)
    first, last = (min(xs), max(xs)) if xs else (0.0, 1.0)
    x = Scale(first, last, LEFT, WIDTH - RIGHT, data.log_x)
    y = Scale(low, high, HEIGHT - BOTTOM, TOP)
    marks: list[Mark] = [Text(0, 13, shortened(data.title, 48), "t")]
    marks += _frame(x, y, data)
    for line in sorted(data.lines, key=lambda one: ORDER[one.kind]):
        marks += _curve(line, x, y, tolerance)
    for place in data.marks:
        at, base = x(place), HEIGHT - BOTTOM
        marks.append(Path(((at - 3.5, base + 6), (at, base), (at + 3.5, base + 6)), "k", True))
    return Scene(WIDTH, HEIGHT, tuple(marks))


def _frame(x: Scale, y: Scale, data: Lines) -> list[Mark]:
    """Grid lines, ticks and the names of the axes."""
    marks: list[Mark] = []
    bottom = HEIGHT - BOTTOM
    for tick in y.ticks(4):
        marks.append(Path(((LEFT, y(tick)), (WIDTH - RIGHT, y(tick))), "g"))
        marks.append(Text(LEFT - 5, y(tick) + 4, number(tick, data.percent), anchor="end"))
    marks.append(Path(((LEFT, bottom), (WIDTH - RIGHT, bottom)), "a"))
    for tick in x.ticks(5):
        marks.append(Text(x(tick), bottom + 15, number(tick), anchor="middle"))
    label = f"{data.y_label}, %" if data.percent else data.y_label
    marks.append(Text(WIDTH - RIGHT, HEIGHT - 4, data.x_label, anchor="end"))
    marks.append(Text(0, HEIGHT - 4, shortened(label, 34)))
    return marks


def _curve(line: Line, x: Scale, y: Scale, tolerance: float) -> list[Mark]:
    marks: list[Mark] = []
    if line.low and line.high:
        upper = thinned([(x(a), y(b)) for a, b in zip(line.x, line.high, strict=True)], tolerance)
        lower = thinned([(x(a), y(b)) for a, b in zip(line.x, line.low, strict=True)], tolerance)
        marks.append(Path((*upper, *reversed(lower)), f"b {_colour(line.colour)}", closed=True))
    points = [(x(a), y(b)) for a, b in zip(line.x, line.y, strict=True)]
    marks.append(Path(thinned(points, tolerance), stroke(line), name=line.name))
    if line.dots or len(points) == 1:
        marks += [Disc(a, b, 2.6, f"p {_colour(line.colour)}") for a, b in points]
    return marks


def _dots(data: Dots) -> Scene:
    """Names above their marks, so that long ones can be read on a phone."""
    values = [v for r in data.rows for v in (r.value, r.low, r.high) if v is not None]
    spans = _lanes(data.spans)
    right = RIGHT + 4 + 8 * (max(spans.values(), default=-1) + 1)
    x = Scale(*spread(values, data.zero), 8, WIDTH - right)
    height = TOP + ROW * len(data.rows) + BOTTOM
    marks: list[Mark] = [Text(0, 13, shortened(data.title, 48), "t")]
    for tick in x.ticks(4):
        marks.append(Path(((x(tick), TOP), (x(tick), height - BOTTOM)), "g"))
        marks.append(Text(x(tick), height - BOTTOM + 15, number(tick), anchor="middle"))
    for i, row in enumerate(data.rows):
        top = TOP + ROW * i
        tint = _colour(row.colour)
        room = 40 - len(row.text)
        marks.append(Text(8, top + 11, shortened(row.name, room), "n"))
        marks.append(Text(WIDTH - right, top + 11, row.text, anchor="end"))
        if row.low is not None and row.high is not None:
            ends = ((x(row.low), top + 19), (x(row.high), top + 19))
            marks.append(Path(ends, f"l {tint}"))
        marks.append(Disc(x(row.value), top + 19, 3.6, f"p {tint}", f"{row.name}: {row.text}"))
    for (first, last), lane in spans.items():
        at = WIDTH - right + 10 + 8 * lane
        ends = ((at, TOP + ROW * first + 14), (at, TOP + ROW * last + 24))
        marks.append(Path(ends, "l span"))
    marks.append(Text(8, height - 4, data.x_label))
    return Scene(WIDTH, height, tuple(marks))


def _lanes(spans: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """A lane for each bar, so that bars that overlap stand side by side."""
    placed: dict[tuple[int, int], int] = {}
    for span in sorted(spans):
        taken = {lane for (a, b), lane in placed.items() if a <= span[1] and span[0] <= b}
        placed[span] = next(i for i in range(len(placed) + 1) if i not in taken)
    return placed


def _points(data: Points) -> Scene:
    side = WIDTH - 16
    x = Scale(*spread(data.x), 8, 8 + side)
    y = Scale(*spread(data.y), TOP + side, TOP)
    marks: list[Mark] = [Text(0, 13, shortened(data.title, 48), "t")]
    for a, b, name in zip(data.x, data.y, data.label, strict=True):
        marks.append(Disc(x(a), y(b), 1.7, _spot(data.known.index(name))))
    left, top = 8.0, TOP + side + 18
    for i, name in enumerate(data.known):
        needed = 20 + 6.4 * len(name)
        if left > 8 and left + needed > WIDTH:
            left, top = 8.0, top + 16
        marks += [Disc(left + 4, top - 4, 3.5, _spot(i)), Text(left + 12, top, name)]
        left += needed
    return Scene(WIDTH, top + 10, tuple(marks))


def _spot(index: int) -> str:
    """Filled points in the first turn of the colours, rings in the next."""
    return f"{'f' if index // theme.SERIES % 2 == 0 else 'o'} {_colour(index)}"


def _surface(data: Surface) -> Scene:
    """Cells in steps of one colour, equal neighbours joined, and the named points on top."""
    side = WIDTH - 16
    steps = _steps(data.values)
    columns, rows = len(data.x), len(data.y)
    wide, high = side / columns, side / rows
    marks: list[Mark] = [Text(0, 13, shortened(data.title, 48), "t")]
    for r, row in enumerate(steps):
        bottom, start = TOP + side - r * high, 0
        for c in range(1, columns + 1):
            if c == columns or row[c] != row[start]:
                a, b = 8 + start * wide, 8 + c * wide
                box = ((a, bottom - high), (b, bottom - high), (b, bottom), (a, bottom))
                marks.append(Path(box, f"f h{row[start]}", closed=True))
                start = c
    x = Scale(*_edges(data.x), 8, 8 + side)
    y = Scale(*_edges(data.y), TOP + side, TOP)
    for i, (name, a, b) in enumerate(data.points):
        anchor = "end" if x(a) > WIDTH * 0.6 else "start"
        shift = -8 if anchor == "end" else 8
        marks.append(Disc(x(a), y(b), 5, f"p {_colour(i if i < 3 else theme.SERIES - 1)}"))
        marks.append(Text(x(a) + shift, y(b) + 4, name, "halo", anchor))
    flat = [v for row in data.values for v in row]
    ends = f"{data.unit} from {min(flat):.3g} to {max(flat):.3g}, in {theme.STEPS} equal shares"
    marks.append(Text(8, TOP + side + 16, ends))
    return Scene(WIDTH, TOP + side + 26, tuple(marks))


def _steps(values: Sequence[Sequence[float]]) -> list[list[int]]:
    """Each value's eighth of all values, so that a few steep corners do not flatten the rest."""
    flat = sorted(v for row in values for v in row)
    bounds = [flat[len(flat) * k // theme.STEPS] for k in range(1, theme.STEPS)]
    return [[sum(v >= bound for bound in bounds) for v in row] for row in values]


def _edges(centres: Sequence[float]) -> tuple[float, float]:
    half = (centres[-1] - centres[0]) / (len(centres) - 1 or 1) / 2
    return centres[0] - half, centres[-1] + half
