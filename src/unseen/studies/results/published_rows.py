"""A paper's printed figures next to ours: its rows, and how far ours are from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from unseen.errors import UnseenError
from unseen.expression import Call, parse
from unseen.studies.settings.published import Figure, printed_in

if TYPE_CHECKING:
    from unseen.studies.results.statistics import Cell
    from unseen.studies.settings.study import Published

DIFFERENCES = (
    "− published: ours minus the figure above, in units of the joint standard error, the root of "
    "the sum of both squared (se), or plainly where either has none"
)


@dataclass(frozen=True)
class Printed:
    """The figures that papers printed of one metric, in the units of our tables.

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

        The method has the parts of the row's method and sets each option that it sets; of several
        such rows, the one that sets most.

        Example:
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
        """Return label -> column -> text.

        Args:
            tested: The column of p/h; None where there is none.
        """
        rows = {label: {c: str(f) for c, f in row.items()} for label, row in self.rows.items()}
        for label, text in self.tests.items() if tested is not None else ():
            rows.setdefault(label, {})[tested or ""] = text
        return rows

    def differences(
        self,
        methods: Sequence[str],
        columns: Sequence[str],
        cells: Sequence[Sequence[Cell]],
        scale: float,
    ) -> dict[str, dict[str, dict[str, Gap]]]:
        """Return label -> method -> column -> ours minus theirs, where there is a difference.

        Args:
            methods: Our methods.
            columns: The columns of our table.
            cells: Our figures, one row per method and one cell per column.
            scale: The table's unit over the cells', 100 for percent.
        """
        differences: dict[str, dict[str, dict[str, Gap]]] = {}
        for method, row in zip(methods, cells, strict=True):
            if (label := self.row_of(method)) is not None:
                ours, figures = dict(zip(columns, row, strict=True)), self.rows[label]
                shared = ((c, gap(ours[c], figures[c], scale)) for c in figures if c in ours)
                if gaps := {c: g for c, g in shared if g is not None}:
                    differences.setdefault(label, {})[method] = gaps
        return differences


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
        """Return the difference in standard errors where there are any.

        Example:
            >>> Gap(-0.6, -0.49).text(1), Gap(-0.6, None).text(1)
            ('-0.5 se', '-0.6')
        """
        return f"{self.value:+z.{decimals}f}" if self.errors is None else f"{self.errors:+z.1f} se"


def gap(cell: Cell, figure: Figure, scale: float) -> Gap | None:
    """Return how far a cell is from a printed figure; None unless the cell is complete.

    Args:
        cell: Our figure.
        figure: The paper's figure.
        scale: The table's unit over the cell's, 100 for percent.
    """
    theirs, error = _number(figure.text), _number(figure.error)
    value, own, _ = cell.fields()
    if not cell.complete or isinstance(value, str) or theirs is None:
        return None
    joint = math.hypot(scale * own, error) if own is not None and error is not None else 0.0
    difference = scale * value - theirs
    return Gap(difference, difference / joint if joint else None)


def printed(published: str | tuple[str, ...] | Published, metric: str) -> Printed:
    """Return the rows of a study's own figures, or of the tables that it names."""
    rows: dict[str, dict[str, Figure]] = {}
    methods, tests, notes = dict[str, str](), dict[str, str](), list[str]()
    if isinstance(published, Mapping):
        for label, row in published.get(metric, {}).items():
            rows[label] = {c: Figure(*([f] if isinstance(f, str) else f)) for c, f in row.items()}
        return Printed(rows, {label: label for label in rows})
    for name in (published,) if isinstance(published, str) else published:
        whole = printed_in(name)
        by_label = whole.figures.get(metric, {})
        for label, figures in by_label.items():
            rows[label] = {**rows.get(label, {}), **figures}
        if any(figure.error for figures in by_label.values() for figure in figures.values()):
            notes.append(f"± of {name}: {whole.error or 'unsaid'}")
        if metric in whole.metrics and whole.tests:
            tests |= whole.tests
            notes.append(f"{name}: {whole.caption}")
        methods |= whole.methods
    return Printed(rows, methods, tests, tuple(notes))


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
