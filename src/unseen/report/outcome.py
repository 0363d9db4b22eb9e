"""What came out of a study: averages, ranks, fairness, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from unseen.report.figures import INK, Dots, Figure, Grid, Row, Section, spread
from unseen.report.study_report import Run, StudyReport
from unseen.results import fairness
from unseen.results.records import Record
from unseen.results.selection import value
from unseen.results.statistics import mean, standard_error
from unseen.results.tables import Table


def averages(part: StudyReport, table: Table) -> Figure:
    """Return the table's average and its targets as dots; of many targets the summaries alone."""
    columns = dict(zip(table.columns, zip(*table.cells, strict=True), strict=True))
    if table.many:
        columns = {c: columns[c] for c in table.columns[len(table.tasks) :]}
        columns[table.tail_name] = table.tail
    scale = 100.0 if "accuracy" in table.metric else 1.0
    panels = []
    for name in sorted(columns, key=lambda name: name != "average"):
        rows = [
            _dot(method, cell.values, table.shown, scale, part.reference)
            for method, cell in zip(table.methods, columns[name], strict=True)
            if cell.values
        ]
        rows.sort(key=lambda row: row.value, reverse=not table.lower)
        if rows:
            panels.append(Dots(name, f"{table.metric}, mean ± standard error", tuple(rows)))
    panels = panels[:1] if len(part.tasks) == 1 else panels
    limits = spread([v for panel in panels for v in panel.values])
    caption = (
        f"{table.metric} at the selected round, {'lower' if table.lower else 'higher'} is better; "
        "in the order of the means, which says nothing of significance"
    )
    shared = tuple(replace(panel, limits=limits) for panel in panels)
    return Figure(f"results-{table.metric}", f"{table.metric} by target", caption, shared)


def _dot(
    method: str,
    values: Sequence[float],
    shown: Callable[[float], str],
    scale: float = 1.0,
    reference: str | None = None,
) -> Row:
    """Return a method's mean with its standard error, if there is one."""
    centre, error = mean(values), standard_error(values)
    text = shown(centre) + (f" ± {shown(error)}" if error else "")
    low, high = ((centre - error) * scale, (centre + error) * scale) if error else (None, None)
    return Row(method, centre * scale, low, high, text, INK if method == reference else 0)


def fair(part: StudyReport) -> Section:
    """Return the chapter on fairness: how evenly the selected model serves the source clients."""
    title, metric = "Fairness", "accuracy"
    if metric not in part.metrics:
        return Section("fairness", title, "")
    runs = {m: [r for r in part.runs if r.method == m] for m in part.methods}
    measured = {
        method: values
        for method, of_method in runs.items()
        if (values := [even for run in of_method if (even := evenness(run, metric))])
    }
    if not measured:
        return Section("fairness", title, "")
    rows: list[tuple[str | float | None, ...]] = [
        (method, *(mean(list(column)) for column in zip(*values, strict=True)))
        for method, values in measured.items()
    ]
    worst = [_dot(m, [even[1] for even in v], "{:.1f}".format) for m, v in measured.items()]
    panel = Dots(
        "worst source client", "accuracy in %, mean ± standard error over runs",
        tuple(sorted(worst, key=lambda row: -row.value)),
    )  # fmt: skip
    figure = Figure(
        "fairness", "Accuracy at the worst source client", "in the order of the means", (panel,)
    )
    header = ("method", "mean, %", "worst client, %", "variance, %²", "entropy", "KL to uniform")
    note = (
        "Accuracy of the selected model at the source clients' validation splits: mean, worst and "
        "population variance over clients; entropy and KL divergence, in nats, of the accuracies "
        "as shares of their sum (FedILC, Table 3). Means over targets and seeds."
    )
    grid = Grid("Evenness over clients", header, tuple(rows), (0, 1, 1, 1, 4, 5), (note,))
    return Section("fairness", title, "", (figure,), (grid,))


def evenness(run: Run, metric: str) -> tuple[float, ...]:
    """Return mean, worst, variance, entropy and divergence over the source clients.

    Empty where the metric is undefined at one client, or 0 at all.
    """
    rows = [r for r in run.raw.source if (r["round"], r["role"]) == (run.chosen.round, "source")]
    values = [v for r in rows if (v := value(r, metric)) is not None]
    if not values or len(values) < len(rows) or not sum(values):
        return ()
    return (
        100 * mean(values), 100 * min(values), 1e4 * fairness.variance(values),
        fairness.entropy(values), fairness.divergence(values),
    )  # fmt: skip


def sent(rounds: Sequence[Record], way: str) -> float | None:
    """Return the megabytes that all clients together sent (`up`) or received (`down`) per round.

    Args:
        rounds: The records of all exchanges.
        way: `up` or `down`.

    Returns:
        The mean over rounds, of all exchanges of a round; None where no bytes are recorded.
    """
    counted = [r["bytes"][way] for r in rounds if way in r.get("bytes", ())]
    played = {r["round"] for r in rounds}
    return sum(counted) / len(played) / 1e6 if counted else None


def _per_round(run: Run) -> float | None:
    rounds = len({r.get("round") for r in run.raw.rounds})
    seconds = run.raw.mark.get("seconds")
    return seconds / rounds if rounds and isinstance(seconds, int | float) else None


def _peak(run: Run) -> float | None:
    peak = run.raw.mark.get("peak_mib")
    return float(peak) if isinstance(peak, int | float) else None


#: A cost's name -> how it follows from a run, and its decimals.
COSTS: dict[str, tuple[Callable[[Run], float | None], int]] = {
    "seconds per round": (_per_round, 3),
    "peak memory, MiB": (_peak, 0),
    "MB up per round": (lambda run: sent(run.raw.rounds, "up"), 3),
    "MB down per round": (lambda run: sent(run.raw.rounds, "down"), 3),
}


def cost(part: StudyReport) -> Section:
    """Return the chapter on cost, as far as the marks of the jobs tell it."""
    table: dict[str, dict[str, float]] = {}
    for name, (read, _) in COSTS.items():
        for method in part.methods:
            costs = [v for r in part.runs if r.method == method if (v := read(r)) is not None]
            if costs:
                table.setdefault(name, {})[method] = mean(costs)
    if not table:
        return Section("cost", "Cost", "")
    panels = tuple(Dots(name, name, _ranked(values), zero=True) for name, values in table.items())
    rows = [
        (m, *(table[name].get(m) for name in table))
        for m in part.methods
        if any(m in values for values in table.values())
    ]
    note = (
        "Wall clock of a job from its last start to its end over its rounds, evaluation included; "
        "the largest resident set of the process, which later jobs of the same process share. Both "
        "depend on what else the machine did. Up: what all clients sent together, down: what they "
        "received, parameters only. Means over targets and seeds."
    )
    digits = (0, *(COSTS[name][1] for name in table))
    grid = Grid("Cost per method", ("method", *table), tuple(rows), digits, (note,))
    figure = Figure("cost", "Time, memory and traffic", "least above", panels)
    return Section("cost", "Cost", "", (figure,), (grid,))


def _ranked(values: dict[str, float]) -> tuple[Row, ...]:
    ordered = sorted(values.items(), key=lambda item: item[1])
    return tuple(Row(name, x, text=f"{x:,.{_digits(x)}f}") for name, x in ordered)


def _digits(value: float) -> int:
    return max(0, min(4, 2 - math.floor(math.log10(value)))) if value > 0 else 0


def ranked(part: StudyReport, table: Table) -> Iterable[Figure]:
    """Yield the critical-difference diagram, if there is something to rank.

    Mean ranks, lowest above, and bars at the side of methods that the test cannot tell apart.
    """
    ranking = table.ranking()
    if ranking.difference is None:
        return
    names = list(ranking.ranks)
    rows = tuple(
        Row(m, r, text=f"{r:.2f}", colour=INK if m == part.reference else 0)
        for m, r in ranking.ranks.items()
    )
    spans = tuple((names.index(group[0]), names.index(group[-1])) for group in ranking.groups)
    panel = Dots("mean rank, 1 is best", "mean rank over targets", rows, spans)
    caption = f"bars join methods that do not differ; {ranking.note}"
    yield Figure("ranks", "Critical differences", caption, (panel,))
