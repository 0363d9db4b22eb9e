"""What a figure says, as frozen data; `unseen.report.draw` draws it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

#: Line kinds: a client, the target, what is only for comparison, one of many.
Kind = Literal["plain", "strong", "dotted", "faint"]
#: Colours are 0, 1, ...; INK is that of the text, for what stands out.
INK = -1


@dataclass(frozen=True)
class Line:
    """A curve, with a band from `low` to `high` where there is one.

    group: what the legend calls it together with others, instead of each by its name.
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
    """A panel of curves. percent: values are shares, shown in percent. marks: places on the x axis
    to point at. limits: of the y axis, to share with other panels."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    percent: bool = False
    marks: tuple[float, ...] = ()
    limits: tuple[float, float] | None = None
    log_x: bool = False


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
    """A panel of one value per row, in the order given. spans: (first, last row), joined by a bar,
    for what cannot be told apart. zero: whether the axis starts there."""

    title: str
    x_label: str
    rows: tuple[Row, ...]
    spans: tuple[tuple[int, int], ...] = ()
    zero: bool = False


@dataclass(frozen=True)
class Points:
    """A panel of labelled points of a plane: a map, whose axes have no unit."""

    title: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    label: tuple[str, ...]
    names: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """The labels, once each, in the order of their colours."""
        return self.names or tuple(dict.fromkeys(self.label))


@dataclass(frozen=True)
class Surface:
    """Values on a grid, `values[row][column]` with rows from below, and named points on it."""

    title: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    points: tuple[tuple[str, float, float], ...] = ()
    unit: str = "loss"


Panel = Lines | Dots | Points | Surface


@dataclass(frozen=True)
class Figure:
    """Panels under one title. key: its file's name. fold: what it is listed under where there are
    many of its kind, such as a method."""

    key: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    fold: str = ""

    @property
    def legend(self) -> tuple[Line, ...]:
        """One line of each name or group: plain ones, then what stands out, then groups."""
        found: dict[str, Line] = {}
        for panel in self.panels:
            for line in panel.lines if isinstance(panel, Lines) else ():
                found.setdefault(
                    line.group or line.name, replace(line, name=line.group or line.name)
                )
        return tuple(
            sorted(found.values(), key=lambda line: (bool(line.group), line.kind != "plain"))
        )

    def to_csv(self) -> str:
        """The figure's data: one row per point."""
        header, rows = ["panel", "name", "x", "y", "low", "high"], []
        for panel in self.panels:
            rows += [[panel.title, *row] for row in _points(panel)]
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
        return file.getvalue()


@dataclass(frozen=True)
class Grid:
    """A small table that stands beside figures; a field may be text, a number or nothing.

    digits: decimals of each column's numbers.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]
    digits: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def shown(self, row: int) -> list[str]:
        """A row's fields as texts."""
        fields = zip(self.rows[row], self.digits, strict=True)
        return [_field(value, digits) for value, digits in fields]

    def to_csv(self) -> str:
        """The numbers as they are, unrounded."""
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([self.header, *self.rows])
        return file.getvalue()


@dataclass(frozen=True)
class Section:
    """A chapter of the page: figures and small tables about one thing."""

    key: str
    title: str
    text: str
    figures: tuple[Figure, ...] = ()
    grids: tuple[Grid, ...] = field(default_factory=tuple)

    def __bool__(self) -> bool:
        return bool(self.figures or self.grids)


def _field(value: str | float | None, digits: int) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:z,.{digits}f}"


def _points(panel: Panel) -> list[list[object]]:
    if isinstance(panel, Lines):
        return [
            [line.name, x, y, *(_at(bound, i) for bound in (line.low, line.high))]
            for line in panel.lines
            for i, (x, y) in enumerate(zip(line.x, line.y, strict=True))
        ]
    if isinstance(panel, Dots):
        return [[r.name, r.value, "", _or_empty(r.low), _or_empty(r.high)] for r in panel.rows]
    if isinstance(panel, Points):
        columns = zip(panel.label, panel.x, panel.y, strict=True)
        return [[name, x, y, "", ""] for name, x, y in columns]
    grid = [
        [panel.unit, x, y, value, ""]
        for y, row in zip(panel.y, panel.values, strict=True)
        for x, value in zip(panel.x, row, strict=True)
    ]
    return grid + [[name, x, y, "", ""] for name, x, y in panel.points]


def _at(values: Sequence[float], i: int) -> object:
    return values[i] if values else ""


def _or_empty(value: float | None) -> object:
    return "" if value is None else value
