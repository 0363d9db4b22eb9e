"""Draws panels with matplotlib: one SVG per panel for the page, one sheet per figure as a file.

The page's SVG takes its colours from CSS variables, so that one drawing serves both themes. All
places are in pixels from the upper left corner, at 72 to the inch.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from unseen.studies.report import theme
from unseen.studies.report.figures import Dots, Figure, Line, Lines, Matrix, Panel
from unseen.studies.report.theme import LIGHT, compact, shortened, tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Sheet

WIDTH, HEIGHT = 300.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 40.0, 8.0, 24.0, 34.0
SIDE = WIDTH - LEFT - RIGHT
ROW, LANE, KEY = 29.0, 8.0, 16.0
#: Around each panel of a file; the resolution of a PNG, twice the size of the page.
EDGE, PNG_DPI = 10.0, 144
ORDER = {"faint": 2, "dotted": 3, "plain": 3, "strong": 4}
LETTER = 6.2  # about how wide one of 11 pixels is


def panel_svg(panel: Panel, key: str) -> str:
    """Return one panel as an SVG for the page, readable at the width of a phone.

    Args:
        panel: What to draw.
        key: A name that no other drawing of the page has.
    """
    with _sheet(WIDTH, _height(panel)) as sheet:
        _draw(sheet, panel, 0, 0)
        return _svg(sheet, key, panel.words(), themed=True)


def files(figure: Figure, columns: int = 3) -> tuple[bytes, bytes]:
    """Return a figure as SVG and as PNG: its title, its legend and all panels, on white.

    Args:
        figure: What to draw.
        columns: The most panels that stand next to each other.
    """
    from matplotlib.lines import Line2D

    columns = min(columns, len(figure.panels)) or 1
    cell = WIDTH + 2 * EDGE
    width = max(columns, 2) * cell
    legend = figure.legend
    names = [line.name for line in legend]
    top = 34 + KEY * -(-len(legend) // _columns(names, width))
    rows = [figure.panels[i : i + columns] for i in range(0, len(figure.panels), columns)]
    heights = [max(map(_height, row)) + EDGE for row in rows]
    with _sheet(width, top + sum(heights)) as sheet:
        _text(sheet, EDGE, 20, shortened(figure.title, int(width / 7.5)), "title")
        if legend:
            handles = [Line2D((), (), **theme.stroke(line.colour, line.kind)) for line in legend]
            _legend(sheet, handles, names, (EDGE, 28), width)
        for row, height in zip(rows, heights, strict=True):
            for i, panel in enumerate(row):
                _draw(sheet, panel, i * cell + EDGE, top)
            top += height
        svg = _svg(sheet, figure.key, f"{figure.title}. {figure.caption}", themed=False)
        png = io.BytesIO()
        # Without the version that matplotlib writes, the same figure is the same file.
        sheet.savefig(png, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return svg.encode(), png.getvalue()


@contextmanager
def _sheet(width: float, height: float) -> Iterator[Sheet]:
    """Yield an empty drawing; letters that the font lacks become boxes without a word each."""
    from matplotlib import style
    from matplotlib.figure import Figure as Sheet

    with style.context("unseen.studies.report.drawing"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield Sheet(figsize=(width / 72, height / 72), facecolor=LIGHT["paper"])


def _axes(sheet: Sheet, left: float, top: float, width: float, height: float) -> Axes:
    wide, high = sheet.get_size_inches() * 72
    axes = sheet.add_axes((left / wide, 1 - (top + height) / high, width / wide, height / high))
    axes.patch.set_visible(False)
    axes.tick_params(labelcolor=LIGHT["soft"])
    return axes


def _text(
    sheet: Sheet, x: float, y: float, words: str, look: str = "", align: str = "left"
) -> None:
    """Write words whose base line is `y` pixels from above; look: title, name, or nothing."""
    wide, high = sheet.get_size_inches() * 72
    sheet.text(
        x / wide,
        1 - y / high,
        words,
        ha=align,
        va="baseline",
        color=LIGHT["ink" if look else "soft"],
        size=12 if look == "title" else 11,
        weight="bold" if look == "title" else "normal",
    )


def _ticks(
    axis: Any, count: int, percent: bool = False, log: bool = False, whole: bool = False
) -> None:
    from matplotlib import ticker

    round_numbers = ticker.MaxNLocator(count, steps=(1, 2, 5, 10), integer=whole)
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)) if log else round_numbers)
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: tick(value, percent)))


def _columns(names: Sequence[str], width: float) -> int:
    longest = min(60, max(map(len, names), default=1))
    return max(1, int((width - EDGE) // (42 + LETTER * longest)))


def _legend(
    holder: Any, handles: Sequence[Any], names: Sequence[str], at: tuple[float, float], width: float
) -> None:
    wide, high = (holder.figure or holder).get_size_inches() * 72
    holder.legend(
        handles,
        [shortened(name, 60) for name in names],
        loc="upper left",
        bbox_to_anchor=(at[0] / wide, 1 - at[1] / high),
        bbox_transform=holder.figure.transFigure,
        ncols=_columns(names, width),
        labelcolor=LIGHT["soft"],
    )


@cache
def swatch(colour: int, kind: str) -> str:
    """Return a short piece of a line for the page's legend."""
    with _sheet(30, 8) as sheet:
        axes = _axes(sheet, 0, 0, 30, 8)
        axes.set_axis_off()
        look = theme.stroke(colour, kind)
        axes.plot([0, 30], [0, 0], **look | {"marker": "", "clip_on": False})
        if look.get("marker"):  # a single mark has no name, so that legends can repeat it
            axes.scatter(15, 0, 16, look["color"], marker=look["marker"], lw=0, clip_on=False)
        axes.set_xlim(0, 30)
        return _svg(sheet, f"swatch-{colour}-{kind}", "", themed=True)


def _height(panel: Panel) -> float:
    if isinstance(panel, Lines):
        return HEIGHT
    if isinstance(panel, Dots):
        return TOP + ROW * len(panel.rows) + BOTTOM
    return TOP + WIDTH + BOTTOM


def _draw(sheet: Sheet, panel: Panel, left: float, top: float) -> None:
    kinds: dict[type, Callable[..., None]] = {Lines: _lines, Dots: _dots, Matrix: _matrix}
    _text(sheet, left, top + 13, shortened(panel.title, 44), "title")
    kinds[type(panel)](sheet, panel, left, top)


def _lines(sheet: Sheet, data: Lines, left: float, top: float) -> None:
    axes = _axes(sheet, left + LEFT, top + TOP, SIDE, HEIGHT - TOP - BOTTOM)
    low, high = data.extent
    if data.log_x:
        axes.set_xscale("log")
    xs = [v for line in data.lines for v in line.x] or [0.0]
    _ticks(axes.xaxis, 5, log=data.log_x, whole=all(x.is_integer() for x in xs))
    _ticks(axes.yaxis, 4, data.percent)
    axes.grid(axis="y", color=LIGHT["rule"], clip_on=False)
    axes.spines["bottom"].set(visible=True, color=LIGHT["soft"], lw=0.8)
    for line in data.lines:
        _curve(axes, line, low, high)
    if data.marks:
        axes.plot(
            data.marks,
            [-0.035] * len(data.marks),
            "^",
            color=LIGHT["soft"],
            ms=6,
            mew=0,
            clip_on=False,
            transform=axes.get_xaxis_transform(),
        )
    first, last = min(xs), max(xs)
    axes.set(xlim=(first, last) if first < last else (first - 1, last + 1), ylim=(low, high))
    label = f"{data.y_label}, %" if data.percent else data.y_label
    _text(sheet, left, top + HEIGHT - 4, shortened(label, 34))
    _text(sheet, left + WIDTH - RIGHT, top + HEIGHT - 4, data.x_label, align="right")


def _curve(axes: Axes, line: Line, low: float, high: float) -> None:
    """Draw a line; what lies outside the limits is put at the edge."""

    def inside(values: Sequence[float]) -> list[float]:
        return [min(max(v, low), high) for v in values]

    level = ORDER[line.kind]
    if line.low and line.high:
        axes.fill(
            [*line.x, *reversed(line.x)],
            [*inside(line.low), *reversed(inside(line.high))],
            color=theme.tint(line.colour),
            alpha=0.2,
            lw=0,
            zorder=level,
            clip_on=False,
        )
    look = theme.stroke(line.colour, line.kind) | {"zorder": level, "clip_on": False}
    if line.dots or len(line.x) == 1:
        look |= {"marker": look.get("marker") or "o", "markevery": 1, "ms": 5}
    (curve,) = axes.plot(line.x, inside(line.y), **look)
    curve.get_path().should_simplify = True
    curve.set_gid(f"title:{line.name}")


def _dots(sheet: Sheet, data: Dots, left: float, top: float) -> None:
    """Draw each dot with its name and its figure directly above it."""
    lanes: dict[tuple[int, int], int] = {}  # of bars, so that those that overlap stand side by side
    for span in sorted(data.spans):
        busy = {lane for (a, b), lane in lanes.items() if a <= span[1] and span[0] <= b}
        lanes[span] = next(i for i in range(len(lanes) + 1) if i not in busy)
    width = WIDTH - 16 - LANE * (max(lanes.values(), default=-1) + 1)
    count = len(data.rows)
    axes = _axes(sheet, left + 8, top + TOP, width, ROW * count)
    low, high = data.extent
    axes.set(xlim=(low, high), ylim=(count, 0))
    _ticks(axes.xaxis, 4)
    axes.yaxis.set_visible(False)
    axes.grid(axis="x", color=LIGHT["rule"], clip_on=False)
    for i, row in enumerate(data.rows):
        height, look = i + 20 / ROW, theme.tint(row.colour)
        value = min(max(row.value, low), high)
        if row.low is not None and row.high is not None:
            ends = (max(row.low, low), min(row.high, high))
            axes.plot(ends, (height, height), color=look, lw=1.6, clip_on=False)
        axes.plot(
            value,
            height,
            "D" if row.colour < 0 else "o",
            color=look,
            ms=7,
            mew=0.7,
            mec=LIGHT["paper"],
            clip_on=False,
        )
        words = f"{shortened(row.name, 42 - len(row.text))}\N{EN SPACE}{row.text}"
        half = LETTER * len(words) / 2
        x = 8 + width * (value - low) / (high - low)
        side = "left" if x < half else "right" if x > width + 12 - half else "center"
        at = {"left": 0.0, "right": width + 12, "center": x}[side]
        _text(sheet, left + at, top + TOP + ROW * i + 11, words, "name", side)
    for (first, last), lane in lanes.items():
        x = 1 + (LANE * lane + 6) / width
        axes.plot(
            (x, x),
            (first + 0.5, last + 0.9),
            color=LIGHT["soft"],
            lw=3.5,
            clip_on=False,
            transform=axes.get_yaxis_transform(),
        )
    _text(sheet, left + 8, top + _height(data) - 4, data.x_label)


def _matrix(sheet: Sheet, data: Matrix, left: float, top: float) -> None:
    """Draw each true class's row in steps of its share, with the percent where there is room."""
    count, shares = len(data.names), data.shares()
    room = min(90.0, 10 + LETTER * max(map(len, data.names)))
    side = WIDTH - room - 4
    axes = _axes(sheet, left + room, top + TOP, side, side)
    for i, row in enumerate(shares):
        steps = {
            j + 0.5: min(int(share * theme.STEPS), theme.STEPS - 1)
            for j, share in enumerate(row)
            if share >= 0.005
        }
        colours = [LIGHT[f"h{step}"] for step in steps.values()]
        axes.bar(list(steps), 1, 1, i, color=colours, lw=0, clip_on=False)
        for x, step in steps.items() if count <= 12 else ():
            ink, percent = LIGHT["paper" if step > 4 else "ink"], f"{100 * row[int(x)]:.0f}"
            axes.text(x, i + 0.5, percent, color=ink, ha="center", va="center", size=10)
    axes.set(xlim=(0, count), ylim=(count, 0))
    places = range(0, count, -(-count // 20))
    names = [shortened(data.names[i], 13) for i in places]
    axes.set_yticks([i + 0.5 for i in places], names)
    fit = max(1, int(side / len(names) / LETTER))
    axes.set_xticks([i + 0.5 for i in places], [shortened(name, fit) for name in names])
    axes.grid(visible=False)
    _text(sheet, left, top + TOP + side + 32, "rows: true class, columns: predicted, in % of a row")


def _svg(sheet: Sheet, key: str, label: str, themed: bool) -> str:
    """Return the sheet as a small SVG.

    Args:
        sheet: What is drawn.
        key: What the names of its markers are made from, so that those of two drawings differ.
        label: The text alternative; without one the drawing is hidden from screen readers.
        themed: Whether colours are the variables of the page, instead of those on white.
    """
    from matplotlib import rc_context

    file = io.StringIO()
    sheet.patch.set_visible(not themed)  # the page has a ground of its own
    with rc_context({"svg.hashsalt": key}):
        sheet.savefig(file, format="svg", metadata={"Date": None})
    return compact(file.getvalue(), label, themed)
