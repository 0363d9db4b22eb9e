"""Accuracy against one option of a method, or against the number of source domains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from unseen.errors import UnseenError
from unseen.expression import Call, fold, options, parse, text
from unseen.methods import METHODS, MODIFIERS
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
            part = (METHODS if at == 0 else MODIFIERS).get(fold(call.name))
            defaults = {n: p.default for n, p in options(part).items()} if part is not None else {}
            for option, value in {**defaults, **call.arguments}.items():
                if isinstance(value, bool) or not isinstance(value, int | float):
                    continue
                rest = {k: v for k, v in call.arguments.items() if k != option}
                changed = Call(call.name, {**rest, option: "…"})
                base = text((*calls[:at], changed, *calls[at + 1 :])).replace("'…'", "…")
                groups[base, option][float(value)] = method
    return {key: dict(sorted(values.items())) for key, values in groups.items() if len(values) > 1}


def _sweeps(part: StudyReport) -> Iterator[Figure]:
    tasks = part.tasks if len(part.tasks) > 1 else ()
    for (base, option), method_at in sweeps(part.methods).items():
        log = min(method_at) > 0 and max(method_at) / min(method_at) >= 10
        panels = []
        for column in ("average", *tasks):
            cells = part.main_column(column)
            line = _line(base, {value: cells[method] for value, method in method_at.items()})
            if len(line.x) > 1:
                title = "average over targets" if column == "average" else column
                reference = cells[part.reference].values if part.reference else ()
                ends = (min(method_at), max(method_at)) if reference else ()
                level = (mean(reference),) * 2 if reference else ()
                lines = (line, Line(part.reference or "", ends, level, colour=INK, kind="dotted"))
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
        lines = (
            _line(method, {n: cells[method] for n, cells in columns.items()}, i)
            for i, method in enumerate(part.methods)
        )
        title = f"{part.metric} against the number of source domains"
        order = f"domains join in this order: {', '.join(plan.growing)}"
        panel = _panel(part, "at the target", "source domains", lines)
        yield Figure("sources", title, order, (panel,))


def _panel(
    part: StudyReport, title: str, x_label: str, lines: Iterable[Line], log: bool = False
) -> Lines:
    present, percent = tuple(line for line in lines if line.x), "accuracy" in part.metric
    return Lines(title, x_label, part.metric, present, percent, log_x=log)


def _line(name: str, cells: Mapping[float, Cell], colour: int = 0) -> Line:
    """Return means with standard errors, over the values that have a result."""
    values = {x: cell.values for x, cell in cells.items() if cell.values}
    pairs = [(mean(v), standard_error(v) or 0.0) for v in values.values()]
    band = pairs if any(error for _, error in pairs) else []
    return Line(
        name, tuple(values), tuple(m for m, _ in pairs), tuple(m - e for m, e in band),
        tuple(m + e for m, e in band), colour, dots=True,
    )  # fmt: skip
