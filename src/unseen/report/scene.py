"""A drawing as a list of marks in pixels, and how it is written as SVG.

Marks name their look by classes (see `unseen.report.theme`), so that one drawing serves both themes
of the page, the SVG file and, through `unseen.report.png`, the PNG file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise

from unseen.report.theme import FIGURE_CSS, variables

Point = tuple[float, float]


@dataclass(frozen=True)
class Path:
    """A line through points, or the area inside them."""

    points: tuple[Point, ...]
    look: str
    closed: bool = False
    name: str = ""

    def moved(self, dx: float, dy: float) -> Path:
        """The same further right and down."""
        return replace(self, points=tuple((x + dx, y + dy) for x, y in self.points))


@dataclass(frozen=True)
class Disc:
    """A filled circle."""

    x: float
    y: float
    radius: float
    look: str
    name: str = ""

    def moved(self, dx: float, dy: float) -> Disc:
        """The same further right and down."""
        return replace(self, x=self.x + dx, y=self.y + dy)


@dataclass(frozen=True)
class Text:
    """Words; anchor: start, middle or end."""

    x: float
    y: float
    words: str
    look: str = ""
    anchor: str = "start"

    def moved(self, dx: float, dy: float) -> Text:
        """The same further right and down."""
        return replace(self, x=self.x + dx, y=self.y + dy)


Mark = Path | Disc | Text


@dataclass(frozen=True)
class Scene:
    """Marks on a sheet of width × height pixels, y downwards."""

    width: float
    height: float
    marks: tuple[Mark, ...]

    def to_svg(self, label: str) -> str:
        """An inline SVG that takes its colours from the page."""
        return (
            f'<svg viewBox="0 0 {_n(self.width)} {_n(self.height)}" role="img" '
            f'aria-label="{escape(label)}">{"".join(map(_svg, self.marks))}</svg>'
        )

    def to_file(self, label: str) -> str:
        """An SVG file of its own, on white."""
        size = f'width="{_n(self.width)}" height="{_n(self.height)}"'
        head = f"<style>svg{{{variables(0)}}}{FIGURE_CSS}</style>"
        sheet = '<rect width="100%" height="100%" style="fill:var(--paper)"/>'
        inner = self.to_svg(label)
        opened = inner.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {size} ', 1)
        start = opened.index(">") + 1
        return f"{opened[:start]}{head}{sheet}{opened[start:]}\n"


def thinned(points: Sequence[Point], tolerance: float = 0.4) -> tuple[Point, ...]:
    """The points without those that a straight line passes within `tolerance` pixels of, measured
    along y (Douglas and Peucker's algorithm).

    >>> thinned([(0, 0), (1, 0.1), (2, 0), (3, 5), (4, 0)])
    ((0, 0), (2, 0), (3, 5), (4, 0))
    """
    keep = {0, len(points) - 1} if points else set()
    spans = [(0, len(points) - 1)]
    while spans:
        first, last = spans.pop()
        far, at = tolerance, None
        (x0, y0), (x1, y1) = (points[first], points[last]) if points else ((0, 0), (0, 0))
        for i in range(first + 1, last):
            x, y = points[i]
            off = abs(y - y0 - (y1 - y0) * (x - x0) / (x1 - x0 or 1))
            if off > far:
                far, at = off, i
        if at is not None:
            keep.add(at)
            spans += [(first, at), (at, last)]
    return tuple(points[i] for i in sorted(keep))


def outline(points: Iterable[Point], closed: bool = False) -> str:
    """A path's `d`: relative steps to one decimal, rounded so that errors do not add up.

    >>> outline([(0, 0), (1.26, 2), (2.52, 2)])
    'M0 0l1.3 2 1.2 0'
    """
    tenths = [(round(x * 10), round(y * 10)) for x, y in points]
    if not tenths:
        return ""
    (x, y), *_ = tenths
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(tenths)]
    drawn = " ".join(f"{_tenths(dx)} {_tenths(dy)}" for dx, dy in steps)
    return f"M{_tenths(x)} {_tenths(y)}" + (f"l{drawn}" if steps else "") + "z" * closed


def _svg(mark: Mark) -> str:
    if isinstance(mark, Text):
        anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
        look = f' class="{mark.look}"' if mark.look else ""
        return f'<text x="{_n(mark.x)}" y="{_n(mark.y)}"{anchor}{look}>{escape(mark.words)}</text>'
    if isinstance(mark, Disc):
        shape = f'circle cx="{_n(mark.x)}" cy="{_n(mark.y)}" r="{_n(mark.radius)}"'
    else:
        shape = f'path d="{outline(mark.points, mark.closed)}"'
    head, tag = f'<{shape} class="{mark.look}"', shape.partition(" ")[0]
    return f"{head}><title>{escape(mark.name)}</title></{tag}>" if mark.name else f"{head}/>"


def _n(value: float) -> str:
    return _tenths(round(value * 10))


def _tenths(value: int) -> str:
    sign, whole = "-" if value < 0 else "", abs(value)
    return f"{sign}{whole // 10}" if whole % 10 == 0 else f"{sign}{whole // 10 or ''}.{whole % 10}"
