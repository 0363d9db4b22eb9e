"""What a figure says, as frozen data; `unseen.studies.report.plot` draws it."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Literal

from unseen.studies.results.formats import comma_separated

#: Line kinds: a client, the target, what is only for comparison, one of many.
Kind = Literal["plain", "strong", "dotted", "faint"]
#: Colours are 0, 1, ...; INK is that of the text, for what stands out.
INK = -1
Limits = tuple[float, float]
#: A row of a small table: texts, numbers, or nothing.
Fields = tuple[str | float | None, ...]
#: Rows of a figure's csv: name, x, y, low, high; the last may be missing.
Rows = Iterable[Sequence[object]]


@dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        low: Lower bounds of a band around it, or nothing.
        high: Upper bounds of that band.
        colour: The number of its series, or `INK`.
        dots: Whether every value has a mark.
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
        y_label: What the vertical axis shows; panels with the same label can share a scale.
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
    def values(self) -> list[float]:
        """Everything that the y axis must hold."""
        return [v for line in self.lines for v in (*line.y, *line.low, *line.high)]

    @property
    def extent(self) -> Limits:
        return self.limits or spread(self.values)

    def words(self) -> str:
        scale, unit = (100, " percent") if self.percent else (1, "")
        lines = sorted(self.lines, key=lambda line: line.kind != "strong")
        ends = [f"{x.name} {x.y[0] * scale:.3g} to {x.y[-1] * scale:.3g}" for x in lines[:6]]
        rest = f" and {len(lines) - 6} more" if len(lines) > 6 else ""
        return f"{self.title}: {self.y_label}{unit} by {self.x_label}; {', '.join(ends)}{rest}"

    def points(self) -> Rows:
        for line in self.lines:
            bounds = [line.low, line.high] if line.low else []
            for x, y, *ends in zip(line.x, line.y, *bounds, strict=True):
                yield line.name, x, y, *ends


@dataclass(frozen=True)
class Row:
    """One line of a panel of dots.

    Attributes:
        low: The lower end of an interval around it, where there is one.
        text: The value as it is written next to the name.
        colour: The number of its series, or `INK`.
    """

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
        spans: (first, last row), joined by a bar, for what does not differ.
        zero: Whether the axis starts at 0.
        limits: The ends of the x axis, to share with other panels.
    """

    title: str
    x_label: str
    rows: tuple[Row, ...]
    spans: tuple[tuple[int, int], ...] = ()
    zero: bool = False
    limits: Limits | None = None

    @property
    def values(self) -> list[float]:
        """Everything that the x axis must hold."""
        return [v for r in self.rows for v in (r.value, r.low, r.high) if v is not None]

    @property
    def extent(self) -> Limits:
        return self.limits or spread(self.values, self.zero)

    def words(self) -> str:
        rows = [f"{row.name} {row.text}" for row in self.rows]
        few = rows if len(rows) <= 6 else [*rows[:3], "…", *rows[-2:]]
        return f"{self.title}, {self.x_label}: {', '.join(few)}"

    def points(self) -> Rows:
        return [(row.name, row.value, None, row.low, row.high) for row in self.rows]


@dataclass(frozen=True)
class Matrix:
    """A confusion matrix.

    Attributes:
        names: The classes.
        counts: `counts[true class][predicted class]`.
    """

    title: str
    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]

    def shares(self) -> list[list[float]]:
        """Return each row divided by its sum: where the examples of a true class go."""
        return [[n / max(1, sum(row)) for n in row] for row in self.counts]

    def words(self) -> str:
        shares = enumerate(zip(self.names, self.shares(), strict=True))
        hits = ", ".join(f"{name} {100 * row[i]:.0f}" for i, (name, row) in shares)
        return f"{self.title}: percent of each true class that is predicted as it: {hits}"

    def points(self) -> Rows:
        pairs = product(self.names, self.names)
        return [(*pair, count) for pair, count in zip(pairs, chain(*self.counts), strict=True)]


#: One drawing of a figure, with its text alternative for screen readers and its rows of a csv.
Panel = Lines | Dots | Matrix


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
    def legend(self) -> list[Line]:
        """One line of each name or group: plain ones, then what stands out, then groups."""
        lines: dict[str, Line] = {}
        for line in (line for p in self.panels if isinstance(p, Lines) for line in p.lines):
            name = line.group or line.name
            lines.setdefault(name, replace(line, name=name))
        return sorted(lines.values(), key=lambda x: (bool(x.group), x.kind != "plain"))

    def to_csv(self) -> str:
        header = ("panel", "name", "x", "y", "low", "high")
        rows = [[panel.title, *row] for panel in self.panels for row in panel.points()]
        return comma_separated([header, *(row + [""] * (len(header) - len(row)) for row in rows)])


@dataclass(frozen=True)
class Grid:
    """A small table next to figures.

    Attributes:
        rows: Fields: a text, a number or nothing.
        digits: Decimals of each column's numbers.
    """

    title: str
    header: tuple[str, ...]
    rows: Sequence[Fields]
    digits: tuple[int, ...]

    def fields(self, row: int) -> list[tuple[str, float | None]]:
        """Return a row's fields as texts, each with the number that it is sorted by."""
        return [
            (value or "–", None)
            if value is None or isinstance(value, str)
            else (f"{value:z,.{digits}f}", value)
            for value, digits in zip(self.rows[row], self.digits, strict=True)
        ]

    def to_csv(self) -> str:
        return comma_separated([self.header, *self.rows])


@dataclass(frozen=True)
class Section:
    """A chapter of the page: figures and small tables about one thing.

    Attributes:
        key: Which one; `chapters.html` has its title and its text.
    """

    key: str
    figures: tuple[Figure, ...] = ()
    grids: tuple[Grid, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.figures or self.grids)


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


def on_one_scale(figures: Iterable[Figure]) -> tuple[Figure, ...]:
    """Return the figures that have curves, one scale for all panels of the same quantity."""
    panels_of = {f: [p for p in f.panels if isinstance(p, Lines) and p.lines] for f in figures}
    values: dict[str, list[float]] = defaultdict(list)
    for panel in chain(*panels_of.values()):
        values[panel.y_label] += panel.values
    ends = {label: spread(numbers) for label, numbers in values.items()}
    return tuple(
        replace(f, panels=tuple(replace(p, limits=p.limits or ends[p.y_label]) for p in panels))
        for f, panels in panels_of.items()
        if panels
    )
