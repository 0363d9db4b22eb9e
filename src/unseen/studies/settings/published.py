"""What papers printed, to stand under our tables: packages add it by `unseen.published`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from unseen import plugins
from unseen.errors import UnseenError


@dataclass(frozen=True)
class Figure:
    """A printed number: its digits as printed, and those of its standard error, if there is one.

    Example:
        >>> str(Figure("0.780", "0.001")), Figure("0.780", "0.001").times(100)
        ('0.780 ± 0.001', Figure(text='78.0', error='0.1'))
    """

    text: str
    error: str | None = None

    @property
    def value(self) -> Decimal:
        """The number; of p / h (PPDG's Table 7) the p, of degrees the angle."""
        return Decimal(self.text.partition("/")[0].removesuffix("°"))

    @property
    def digit(self) -> Decimal:
        """One unit of the last digit."""
        return Decimal(1).scaleb(int(self.value.as_tuple().exponent))

    def times(self, power: int) -> Figure:
        """Return the same digits in another unit.

        Args:
            power: A power of ten, 100 for percent.
        """
        shift = Decimal(power).adjusted()
        text, error = (t and str(Decimal(t).scaleb(shift)) for t in (self.text, self.error))
        return Figure(text or "", error)

    def __str__(self) -> str:
        return self.text if self.error is None else f"{self.text} ± {self.error}"


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper.

    Attributes:
        caption: What it shows.
        studies: Those whose records it is made from, if its name stands for them.
        metrics: What is measured, in the order of its columns.
        figures: Metric -> row -> task -> printed figure, in the units of our tables.
        methods: Row -> the method that makes it, with the options that set it apart from others.
        tests: Row -> p/h, of a table of tests.
        error: What stands after ±.
        parts: The exhibits to name instead, where this one has figures of several data sets.
    """

    caption: str
    studies: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    figures: Mapping[str, Mapping[str, Mapping[str, Figure]]] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    tests: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    parts: tuple[str, ...] = ()


def exhibits() -> dict[str, Exhibit]:
    """Return the tables and figures of papers that are installed, by name."""
    every: dict[str, Exhibit] = {}
    for point, read in plugins.plugged("unseen.published"):
        own = read()
        plugins.joined("published table", every, own, plugins.package(point))
        every |= own
    return every


def contents() -> dict[str, tuple[str, ...]]:
    """Return tables and figures -> the studies that their names stand for."""
    return {name: exhibit.studies for name, exhibit in exhibits().items() if exhibit.studies}


def printed_in(name: str) -> Exhibit:
    """Return a table, or a part of one, whose figures can stand under one of ours."""
    every = exhibits()
    tables = {key: one for key, one in every.items() if one.figures or one.tests or one.parts}
    if name not in tables:
        raise plugins.unknown("published table", name, tables)
    if parts := tables[name].parts:
        raise UnseenError(
            f"{name} has figures of several data sets.",
            remedy=f"Name one part of it: {', '.join(parts)}.",
        )
    return tables[name]
