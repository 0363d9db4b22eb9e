"""Accuracy against one option of a method, or against the number of source domains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from unseen.errors import UnseenError
from unseen.expression import Call, fold, options, parse, text
from unseen.methods import METHODS, MODIFIERS
from unseen.report.curves import present
from unseen.report.figures import INK, Figure, Line, Lines, Section, on_one_scale
from unseen.report.study_report import StudyReport
from unseen.results.statistics import Cell, mean, standard_error
from unseen.spec.holdout import Growing

#: (what methods have in common, with the option left open; the option) -> each value's method.
Sweeps = Mapping[tuple[str, str], Mapping[float, str]]


def section(part: StudyReport) -> Section:
    """Return the chapter on options: sweeps of two or more values, and the number of sources.

    Source:
        PPDG, Figure 1; CSAC, Figures 3 and 4; FedILC, Figure 2; GA, Table 3.
    """
    return Section("sensitivity", on_one_scale([*_sweeps(part), *_growing(part)]))


def sweeps(methods: Sequence[str]) -> Sweeps:
    """Return every group of methods that are equal except for the value of one number.

    A method that does not name the option has its default there.

    Example:
        >>> sweeps(["ppdg", "ppdg(lam=0.2)", "fedavg"])
        {('ppdg(lam=…)', 'lam'): {0.1: 'ppdg', 0.2: 'ppdg(lam=0.2)'}}
    """
    groups: dict[tuple[str, str], dict[float, str]] = defaultdict(dict)
    for method in methods:
        try:
            calls = tuple(parse(method))
        except UnseenError:
            continue
        for at, call in enumerate(calls):
            for option, value in _numbers(call, first=at == 0).items():
                rest = {k: v for k, v in call.arguments.items() if k != option}
                changed = Call(call.name, {**rest, option: "…"})
                base = text((*calls[:at], changed, *calls[at + 1 :])).replace("'…'", "…")
                groups[base, option][value] = method
    return {key: dict(sorted(found.items())) for key, found in groups.items() if len(found) > 1}


def _numbers(call: Call, first: bool) -> dict[str, float]:
    """Return the numeric options of one part of an expression, with defaults of those not named."""
    part = (METHODS if first else MODIFIERS).get(fold(call.name))
    defaults = {n: p.default for n, p in options(part).items()} if part is not None else {}
    return {
        name: float(value)
        for name, value in {**defaults, **call.arguments}.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _sweeps(part: StudyReport) -> Iterator[Figure]:
    tasks = part.tasks if len(part.tasks) > 1 else ()
    for (base, option), method_at in sweeps(part.methods).items():
        log = min(method_at) > 0 and max(method_at) / min(method_at) >= 10
        panels = []
        for column in ("average", *tasks):
            cells = part.main_column(column)
            line = _line(base, {value: cells[method] for value, method in method_at.items()})
            if len(line.x) > 1:
                lines = present((line, _level(part, cells, method_at)))
                title = "average over targets" if column == "average" else column
                panels.append(_panel(part, title, option, lines, log))
        key = f"sensitivity-{base.replace('…', 'x')}"
        title = f"{base}: {part.metric} over {option}"
        yield Figure(key, title, f"{len(method_at)} values of {option}", tuple(panels))


def _growing(part: StudyReport) -> Iterator[Figure]:
    """Yield accuracy against the number of source domains."""
    counts = {task: float(task) for task in part.tasks if task.isdigit()}
    plan = part.study.holdout
    if isinstance(plan, Growing) and len(counts) > 1:
        columns = {n: part.main_column(task) for task, n in counts.items()}
        lines = present(
            _line(method, {n: cells[method] for n, cells in columns.items()}, i)
            for i, method in enumerate(part.methods)
        )
        title = f"{part.metric} against the number of source domains"
        order = f"domains join in this order: {', '.join(plan.growing)}"
        panel = _panel(part, "at the target", "source domains", lines)
        yield Figure("sources", title, order, (panel,))


def _panel(
    part: StudyReport, title: str, x_label: str, lines: tuple[Line, ...], log: bool = False
) -> Lines:
    percent = "accuracy" in part.metric
    return Lines(title, x_label, part.metric, lines, percent, log_x=log)


def _line(name: str, cells: Mapping[float, Cell], colour: int = 0) -> Line:
    """Return means with standard errors, over the values that have a result."""
    values = {x: cell.values for x, cell in cells.items() if cell.values}
    means = [mean(v) for v in values.values()]
    errors = [standard_error(v) or 0.0 for v in values.values()]
    low = tuple(m - e for m, e in zip(means, errors, strict=True)) if any(errors) else ()
    high = tuple(m + e for m, e in zip(means, errors, strict=True)) if any(errors) else ()
    return Line(name, tuple(values), tuple(means), low, high, colour, dots=True)


def _level(part: StudyReport, cells: Mapping[str, Cell], values: Iterable[float]) -> Line:
    """Return the reference as a level."""
    found = cells[part.reference].values if part.reference else ()
    ends, level = ((min(values), max(values)), mean(found)) if found else ((), 0.0)
    return Line(part.reference or "", ends, (level,) * len(ends), colour=INK, kind="dotted")
