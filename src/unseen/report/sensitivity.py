"""Accuracy against one option of a method, or against the number of source domains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from unseen.errors import UnseenError
from unseen.expression import Call, fold, options, parse, text
from unseen.methods import METHODS, MODIFIERS
from unseen.report.figures import INK, Figure, Line, Lines, Section, on_one_scale
from unseen.report.study_report import StudyReport, growing
from unseen.results.statistics import Cell, mean, standard_error
from unseen.results.tables import Table


@dataclass(frozen=True)
class Sweep:
    """Methods of a study that differ in one number.

    Attributes:
        base: What they have in common, with the option left open.
        option: The name of the number.
        values: Each value -> the method that has it.
    """

    base: str
    option: str
    values: Mapping[float, str]


def section(part: StudyReport) -> Section:
    """Return the chapter on options: sweeps of two or more values, and the number of sources.

    Source: PPDG, Figure 1; CSAC, Figures 3 and 4; FedILC, Figure 2; GA, Table 3.
    """
    figures = [*_sweeps(part, part.main), *_growing(part, part.main)]
    words = (
        "The mean over targets, then each target; bands are standard errors over seeds. Dotted: "
        "the method that the others are compared with."
    )
    return Section("sensitivity", "Sensitivity", words, on_one_scale(figures))


def sweeps(methods: Sequence[str]) -> list[Sweep]:
    """Return every group of methods that are equal except for the value of one number.

    A method that does not name the option has its default there.

    >>> [(s.base, s.option, list(s.values)) for s in sweeps(["ppdg", "ppdg(lam=0.2)", "fedavg"])]
    [('ppdg(lam=…)', 'lam', [0.1, 0.2])]
    """
    named = {m: calls for m in methods if (calls := _calls(m))}
    groups: dict[tuple[str, str], dict[float, str]] = {}
    for method, calls in named.items():
        for at, call in enumerate(calls):
            for option, value in _numbers(call, first=at == 0).items():
                rest = {k: v for k, v in call.arguments.items() if k != option}
                others = [replace(c) for c in calls]
                others[at] = Call(call.name, {**rest, option: "…"})
                base = text(tuple(others)).replace("'…'", "…")
                groups.setdefault((base, option), {})[value] = method
    return [
        Sweep(base, option, dict(sorted(values.items())))
        for (base, option), values in groups.items()
        if len(values) > 1
    ]


def _calls(method: str) -> tuple[Call, ...]:
    try:
        return tuple(parse(method))
    except UnseenError:
        return ()


def _numbers(call: Call, first: bool) -> dict[str, float]:
    """Return the numeric options of one part of an expression, with defaults of those not named."""
    part = (METHODS if first else MODIFIERS).get(fold(call.name))
    defaults = {n: p.default for n, p in options(part).items()} if part is not None else {}
    values = {**defaults, **call.arguments}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _sweeps(part: StudyReport, table: Table) -> Iterator[Figure]:
    for sweep in sweeps(part.methods):
        rows = {value: table.methods.index(method) for value, method in sweep.values.items()}
        columns = [c for c in table.columns if c != "worst"]
        panels = []
        for column in columns:
            at = table.columns.index(column)
            points = {value: table.cells[row][at] for value, row in rows.items()}
            lines = [_line(sweep.base, points), *_reference(part, table, at, list(rows))]
            title = "average over targets" if column == "average" else column
            percent = "accuracy" in part.metric
            panels.append(
                Lines(title, sweep.option, part.metric, tuple(lines), percent, log_x=_log(rows))
            )
        panels = [p for p in panels[-1:] + panels[:-1] if len(p.lines[0].x) > 1]
        if len(part.tasks) == 1:
            panels = panels[:1]
        if panels:
            key = f"sensitivity-{sweep.base.replace('…', 'x')}"
            title = f"{sweep.base}: {part.metric} over {sweep.option}"
            yield Figure(key, title, f"{len(rows)} values of {sweep.option}", tuple(panels))


def _line(name: str, points: Mapping[float, Cell], colour: int = 0) -> Line:
    """Return means with standard errors, over the values that have a result."""
    values_at = {x: cell.values for x, cell in points.items() if cell.values}
    means = [mean(values) for values in values_at.values()]
    errors = [standard_error(values) or 0.0 for values in values_at.values()]
    return Line(
        name,
        tuple(values_at),
        tuple(means),
        tuple(m - e for m, e in zip(means, errors, strict=True)) if any(errors) else (),
        tuple(m + e for m, e in zip(means, errors, strict=True)) if any(errors) else (),
        colour,
        dots=True,
    )


def _reference(
    part: StudyReport, table: Table, column: int, values: Sequence[float]
) -> Iterator[Line]:
    """Yield the reference as a level."""
    if part.reference is None:
        return
    cell = table.cells[table.methods.index(part.reference)][column]
    if cell.values:
        ends, level = (min(values), max(values)), mean(cell.values)
        yield Line(part.reference, ends, (level, level), colour=INK, kind="dotted")


def _log(values: Mapping[float, object]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= 10


def _growing(part: StudyReport, table: Table) -> Iterator[Figure]:
    """Yield accuracy against the number of source domains."""
    counts = {task: float(task) for task in part.tasks if task.isdigit()}
    if not growing(part.study) or len(counts) < 2:
        return
    lines = []
    for i, (method, row) in enumerate(zip(table.methods, table.cells, strict=True)):
        points = {n: row[table.columns.index(task)] for task, n in counts.items()}
        lines.append(_line(method, points, i))
    lines = [line for line in lines if line.x]
    title = f"{part.metric} against the number of source domains"
    panel = Lines(
        "at the target", "source domains", part.metric, tuple(lines),
        "accuracy" in part.metric,
    )  # fmt: skip
    order = ", ".join(getattr(part.study.holdout, "growing", ()))
    yield Figure("sources", title, f"domains join in this order: {order}", (panel,))
