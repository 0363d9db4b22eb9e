"""What a figure says, as frozen data; `unseen.report.plot` draws it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

#: Line kinds: a client, the target, what is only for comparison, one of many.
Kind = Literal["plain", "strong", "dotted", "faint"]
#: Colours are 0, 1, ...; INK is that of the text, for what stands out.
INK = -1
Limits = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        low: Lower bounds of a band around it, or nothing; `high`: the upper ones.
        colour: The number of its series, or `INK`.
        group: What the legend calls it together with others, instead of each by its name.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    colour: int = 0
    kind: Kind = "plain"
    dots: bool = False
    group: str = ""


@dataclass(frozen=True)
class Lines:
    """A panel of curves.

    Attributes:
        percent: Whether values are shares, to be shown in percent.
        marks: Places on the x axis to point at.
        limits: The ends of the y axis, to share with other panels.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    percent: bool = False
    marks: tuple[float, ...] = ()
    limits: Limits | None = None
    log_x: bool = False

    @property
    def extent(self) -> Limits:
        """The ends of the y axis."""
        return self.limits or spread(v for line in self.lines for v in _span(line))

    def words(self) -> str:
        """Return the text alternative (screen readers)."""
        scale, unit = (100, " percent") if self.percent else (1, "")
        lines = sorted(self.lines, key=lambda line: line.kind != "strong")
        ends = [f"{x.name} {x.y[0] * scale:.3g} to {x.y[-1] * scale:.3g}" for x in lines[:6]]
        rest = f" and {len(lines) - 6} more" if len(lines) > 6 else ""
        return f"{self.title}: {self.y_label}{unit} by {self.x_label}; {', '.join(ends)}{rest}"

    def points(self) -> list[list[object]]:
        """Return one row per point: name, x, y, low, high."""
        return [
            [line.name, x, y, *(bound[i] if bound else "" for bound in (line.low, line.high))]
            for line in self.lines
            for i, (x, y) in enumerate(zip(line.x, line.y, strict=True))
        ]


@dataclass(frozen=True)
class Row:
    """One line of a panel of dots: a value, and an interval where there is one."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    text: str = ""
    colour: int = 0


@dataclass(frozen=True)
class Dots:
    """A panel of one value per row, in the order given.

    Attributes:
        spans: (first, last row), joined by a bar, for what cannot be told apart.
        limits: The ends of the x axis, to share with other panels.
        zero: Whether the axis starts there.
    """

    title: str
    x_label: str
    rows: tuple[Row, ...]
    spans: tuple[tuple[int, int], ...] = ()
    zero: bool = False
    limits: Limits | None = None

    @property
    def values(self) -> list[float]:
        """Everything that the axis must hold."""
        return [v for r in self.rows for v in (r.value, r.low, r.high) if v is not None]

    @property
    def extent(self) -> Limits:
        """The ends of the x axis."""
        return self.limits or spread(self.values, self.zero)

    def words(self) -> str:
        """Return the text alternative (screen readers)."""
        rows = [f"{row.name} {row.text}" for row in self.rows]
        few = rows if len(rows) <= 6 else [*rows[:3], "…", *rows[-2:]]
        return f"{self.title}, {self.x_label}: {', '.join(few)}"

    def points(self) -> list[list[object]]:
        """Return one row per dot: name, value, nothing, low, high."""
        return [[r.name, r.value, "", _or_empty(r.low), _or_empty(r.high)] for r in self.rows]


@dataclass(frozen=True)
class Points:
    """A panel of labelled points of a plane: a map, whose axes have no unit."""

    title: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    label: tuple[str, ...]
    names: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, once each, in the order of their colours."""
        return self.names or tuple(dict.fromkeys(self.label))

    def words(self) -> str:
        """Return the text alternative (screen readers)."""
        return f"{self.title}: map of {len(self.x)} points in {len(self.labels)} groups"

    def points(self) -> list[list[object]]:
        """Return one row per point: label, x, y."""
        return [[n, x, y, "", ""] for n, x, y in zip(self.label, self.x, self.y, strict=True)]


@dataclass(frozen=True)
class Surface:
    """Values on a grid, `values[row][column]` with rows from below, and named points on it."""

    title: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    names: tuple[tuple[str, float, float], ...] = ()
    unit: str = "loss"

    def ends(self) -> str:
        """Return the unit with the lowest and the highest value."""
        flat = [v for row in self.values for v in row]
        return f"{self.unit} from {min(flat):.3g} to {max(flat):.3g}"

    def words(self) -> str:
        """Return the text alternative (screen readers)."""
        return f"{self.title}: {self.ends()} around {', '.join(name for name, *_ in self.names)}"

    def points(self) -> list[list[object]]:
        """Return one row per place of the grid, then one per named point."""
        grid: list[list[object]] = [
            [self.unit, x, y, value, ""]
            for y, row in zip(self.y, self.values, strict=True)
            for x, value in zip(self.x, row, strict=True)
        ]
        return grid + [[name, x, y, "", ""] for name, x, y in self.names]


@dataclass(frozen=True)
class Matrix:
    """A confusion matrix: `counts[true class][predicted class]`."""

    title: str
    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]

    def shares(self) -> list[list[float]]:
        """Return each row divided by its sum: where the examples of a true class go."""
        return [[n / max(1, sum(row)) for n in row] for row in self.counts]

    def words(self) -> str:
        """Return the text alternative (screen readers)."""
        diagonal = [row[i] for i, row in enumerate(self.shares())]
        hits = ", ".join(f"{n} {100 * x:.0f}" for n, x in zip(self.names, diagonal, strict=True))
        return f"{self.title}: percent of each true class that is predicted as it: {hits}"

    def points(self) -> list[list[object]]:
        """Return one row per pair: the true class, the predicted one, the count."""
        named = zip(self.names, self.counts, strict=True)
        return [
            [true, predicted, count, "", ""]
            for true, row in named
            for predicted, count in zip(self.names, row, strict=True)
        ]


Panel = Lines | Dots | Points | Surface | Matrix


@dataclass(frozen=True)
class Figure:
    """Panels under one title.

    Attributes:
        key: Its file's name.
        fold: What it is listed under where there are many of its kind, such as a method.
    """

    key: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    fold: str = ""

    @property
    def legend(self) -> tuple[Line, ...]:
        """One line of each name or group: plain ones, then what stands out, then groups."""
        lines: dict[str, Line] = {}
        for panel in self.panels:
            for line in panel.lines if isinstance(panel, Lines) else ():
                name = line.group or line.name
                lines.setdefault(name, replace(line, name=name))
        return tuple(
            sorted(lines.values(), key=lambda line: (bool(line.group), line.kind != "plain"))
        )

    def to_csv(self) -> str:
        """Return the figure's data: one row per point."""
        rows = [[panel.title, *row] for panel in self.panels for row in panel.points()]
        return to_csv(("panel", "name", "x", "y", "low", "high"), rows)


@dataclass(frozen=True)
class Grid:
    """A small table next to figures; a field may be text, a number or nothing.

    Attributes:
        digits: Decimals of each column's numbers.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]
    digits: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def fields(self, row: int) -> list[tuple[str, float | None]]:
        """Return a row's fields as texts, each with the number that it is sorted by."""
        return [
            (value or "–", None)
            if value is None or isinstance(value, str)
            else (f"{value:z,.{digits}f}", value)
            for value, digits in zip(self.rows[row], self.digits, strict=True)
        ]

    def to_csv(self) -> str:
        """Return the numbers as they are, unrounded."""
        return to_csv(self.header, self.rows)


@dataclass(frozen=True)
class Section:
    """A chapter of the page: figures and small tables about one thing.

    Attributes:
        needs: What a study must record for it, to be said where there is nothing to show.
    """

    key: str
    title: str
    text: str
    figures: tuple[Figure, ...] = ()
    grids: tuple[Grid, ...] = ()
    needs: str = ""

    def __bool__(self) -> bool:
        return bool(self.figures or self.grids)


def to_csv(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as comma-separated text."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return file.getvalue()


def spread(values: Iterable[float], zero: bool = False, margin: float = 0.06) -> Limits:
    """Return limits that hold the values with a margin; a few far outliers lie beyond the edge.

    Args:
        values: What the axis shows.
        zero: Whether the axis starts at 0.
        margin: Room at both ends, as a share of the range.
    """
    finite = sorted(v for v in values if math.isfinite(v))
    if not finite:
        return 0.0, 1.0
    low, high = finite[0], finite[-1]
    # Where the upper hundredth is ten times as far out as all the rest, the rest is the picture.
    bulk = finite[max(0, math.ceil(len(finite) * 0.99) - 1)]
    if len(finite) > 20 and high - low > 10 * (bulk - low) > 0:
        high = bulk
    low = min(low, 0.0) if zero else low
    room = (high - low) * margin or abs(high) * margin or 0.5
    return (low if zero and low == 0 else low - room), high + room


def on_one_scale(figures: Sequence[Figure]) -> tuple[Figure, ...]:
    """Return the figures with one scale for all panels of lines that show the same quantity."""
    values: dict[str, list[float]] = {}
    for panel in _line_panels(figures):
        values.setdefault(panel.y_label, []).extend(v for x in panel.lines for v in _span(x))
    limits = {label: spread(numbers) for label, numbers in values.items()}

    def scaled(panel: Any) -> Any:
        if not isinstance(panel, Lines) or panel.limits:
            return panel
        return replace(panel, limits=limits[panel.y_label])

    return tuple(replace(f, panels=tuple(map(scaled, f.panels))) for f in figures)


def _line_panels(figures: Sequence[Figure]) -> list[Lines]:
    return [p for f in figures for p in f.panels if isinstance(p, Lines)]


def _span(line: Line) -> tuple[float, ...]:
    return (*line.y, *line.low, *line.high)


def _or_empty(value: float | None) -> object:
    return "" if value is None else value
