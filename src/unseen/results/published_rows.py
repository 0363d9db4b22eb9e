"""A paper's printed figures next to ours: its rows, and how far ours are from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from unseen.errors import UnseenError
from unseen.expression import Call, parse
from unseen.spec.published import Figure, table

if TYPE_CHECKING:
    from unseen.results.statistics import Cell
    from unseen.spec.study import Published

DIFFERENCES = (
    "− published: ours minus the figure above, in units of the joint standard error, the root of "
    "the sum of both squared (se), or plainly where either has none"
)


@dataclass(frozen=True)
class Printed:
    """What papers printed of one metric, in the units of our tables.

    Attributes:
        rows: Label -> column -> figure.
        methods: Label -> the method that makes the row.
        tests: Label -> p/h, as printed.
        notes: Lines on where the figures are from.
    """

    rows: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    tests: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def row_of(self, method: str) -> str | None:
        """Return the label of the row that a method is to be compared with.

        It has the row's parts and every option that the row's method sets; of several such rows,
        the one that sets most.

        >>> row = {"average": Figure("84.1")}
        >>> made_by = {"CSAC": "csac", "MSE": "csac(metric='mse')"}
        >>> paper = Printed({"CSAC": row, "MSE": row}, made_by)
        >>> paper.row_of("csac(layers=['fc'])"), paper.row_of("csac(lam=1.0, metric='mse')")
        ('CSAC', 'MSE')
        """
        ours = _calls(method)
        options: dict[str, int] = {}
        for label in self.rows:
            theirs = _calls(self.methods.get(label, ""))
            if theirs and [call.name for call in ours] == [call.name for call in theirs]:
                pairs = zip(ours, theirs, strict=True)
                if all(a.arguments.items() >= b.arguments.items() for a, b in pairs):
                    options[label] = sum(len(call.arguments) for call in theirs)
        return max(options, key=options.__getitem__, default=None)

    def texts(self, tested: str | None = None) -> dict[str, dict[str, str]]:
        """label -> column -> text; tested: the column of p/h, none where there is none."""
        rows = {label: {c: str(f) for c, f in row.items()} for label, row in self.rows.items()}
        for label, text in self.tests.items() if tested is not None else ():
            rows.setdefault(label, {})[str(tested)] = text
        return rows

    def differences(
        self,
        methods: Sequence[str],
        columns: Sequence[str],
        cells: Sequence[Sequence[Cell]],
        scale: float,
    ) -> dict[str, dict[str, dict[str, Gap]]]:
        """label -> method -> column -> ours minus theirs, where there is a difference to tell."""
        found: dict[str, dict[str, dict[str, Gap]]] = {}
        for method, row in zip(methods, cells, strict=True):
            label = self.row_of(method)
            figures = self.rows[label] if label is not None else {}
            ours = dict(zip(columns, row, strict=True))
            gaps = {c: gap(ours[c], figure, scale) for c, figure in figures.items() if c in ours}
            if label is not None and any(gaps.values()):
                there = {c: g for c, g in gaps.items() if g is not None}
                found.setdefault(label, {})[method] = there
        return found


@dataclass(frozen=True)
class Gap:
    """Ours minus theirs.

    Attributes:
        value: In the table's unit.
        errors: In units of the joint standard error √(ours² + theirs²); None unless both have one
            and not both are 0.
    """

    value: float
    errors: float | None

    def text(self, decimals: int) -> str:
        """The difference in standard errors where there are any.

        >>> Gap(-0.6, -0.49).text(1), Gap(-0.6, None).text(1)
        ('-0.5 se', '-0.6')
        """
        return f"{self.value:+z.{decimals}f}" if self.errors is None else f"{self.errors:+z.1f} se"


def gap(cell: Cell, figure: Figure, scale: float) -> Gap | None:
    """How far a cell is from a printed figure; None unless the cell is complete.

    scale: the table's unit over the cell's, 100 for percent.
    """
    theirs, error = _number(figure.text), _number(figure.error)
    value, own, _ = cell.fields()
    if not cell.complete or isinstance(value, str) or theirs is None:
        return None
    joint = math.hypot(scale * own, error) if own is not None and error is not None else 0.0
    difference = scale * value - theirs
    return Gap(difference, difference / joint if joint else None)


def printed(published: str | tuple[str, ...] | Published, metric: str) -> Printed:
    """The rows of a study's own figures, or of the tables that it names."""
    if isinstance(published, Mapping):
        own = published.get(metric, {})
        made = {label: {c: _figure(f) for c, f in row.items()} for label, row in own.items()}
        return Printed(made, {label: label for label in made})
    found: dict[str, dict[str, Figure]] = {}
    methods: dict[str, str] = {}
    tests: dict[str, str] = {}
    notes: list[str] = []
    for name in (published,) if isinstance(published, str) else published:
        whole = table(name)
        rows = whole.shown().get(metric, {})
        for label, row in rows.items():
            found[label] = found.get(label, {}) | row
        if any(figure.error for row in rows.values() for figure in row.values()):
            notes.append(f"± of {name}: {whole.error or 'unsaid'}")
        if metric in whole.metrics and (verdicts := whole.tests()):
            tests |= verdicts
            notes.append(f"{name}: {whole.caption}")
        methods |= whole.methods
    return Printed(found, methods, tests, tuple(notes))


def _figure(figure: str | tuple[str, str]) -> Figure:
    return Figure(figure) if isinstance(figure, str) else Figure(*figure)


def _calls(text: str) -> tuple[Call, ...]:
    """Return the parts of an expression; none of a label that is not one."""
    try:
        return parse(text)
    except UnseenError:
        return ()


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(Decimal(text))
    except InvalidOperation:
        return None
