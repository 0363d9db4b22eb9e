"""What came out of a study: averages, ranks, fairness, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from unseen.report.figures import INK, Dots, Figure, Grid, Row, Section, spread
from unseen.report.study_report import Part, Run
from unseen.results import fairness
from unseen.results.records import Record
from unseen.results.selection import value
from unseen.results.statistics import mean, standard_error
from unseen.results.tables import Table


def averages(part: Part, made: Table) -> Figure:
    """The table's average and its targets as dots; of many targets the summaries alone."""
    panels = []
    columns = dict(zip(made.columns, zip(*made.cells, strict=True), strict=True))
    if made.many:
        columns = {c: columns[c] for c in made.columns[len(made.tasks) :]}
        columns[made.tail_name] = made.tail
    for name, cells in columns.items():
        rows = []
        for method, cell in zip(made.methods, cells, strict=True):
            if values := cell.values:
                centre, error = mean(values), standard_error(values)
                shown = made.shown(centre) + (f" ± {made.shown(error)}" if error else "")
                ends = (centre - error, centre + error) if error else (None, None)
                rows.append(_row(method, centre, shown, ends, part.reference, made))
        rows.sort(key=lambda row: row.value, reverse=not made.lower)
        panels.append(Dots(name, f"{made.metric}, mean ± standard error", tuple(rows)))
    order = [list(columns).index("average"), *range(len(columns))]
    kept = [panels[i] for i in dict.fromkeys(order) if panels[i].rows]
    kept = kept[:1] if len(part.tasks) == 1 else kept
    better = "lower" if made.lower else "higher"
    limits = spread([v for panel in kept for v in panel.values])
    kept = [replace(panel, limits=limits) for panel in kept]
    caption = (
        f"{made.metric} at the selected round, {better} is better; in the order of the means, "
        "which says nothing of significance"
    )
    return Figure(f"results-{made.metric}", f"{made.metric} by target", caption, tuple(kept))


def _row(
    method: str, centre: float, shown: str, ends: tuple[float | None, float | None],
    reference: str | None, made: Table,
) -> Row:  # fmt: skip
    scale = 100.0 if "accuracy" in made.metric else 1.0
    low, high = (None if end is None else end * scale for end in ends)
    return Row(method, centre * scale, low, high, shown, INK if method == reference else 0)


def fair(part: Part) -> Section:
    """The chapter on fairness: how evenly the selected model serves the source clients."""
    metric = "accuracy"
    if metric not in part.metrics:
        return Section("fairness", "Fairness", "")
    rows: list[tuple[str | float | None, ...]] = []
    dots = []
    for method in part.methods:
        runs = [run for run in part.runs if run.method == method]
        found = [even for run in runs if (even := evenness(run, metric))]
        if found:
            columns = [mean(list(column)) for column in zip(*found, strict=True)]
            rows.append((method, *columns))
            low = [row[1] for row in found]
            dots.append((method, mean(low), standard_error(low)))
    header = ("method", "mean, %", "worst client, %", "variance, %²", "entropy", "KL to uniform")
    note = (
        "Accuracy of the selected model at the source clients' validation splits: mean, worst and "
        "population variance over clients; entropy and KL divergence, in nats, of the accuracies "
        "as shares of their sum (FedILC, Table 3). Means over targets and seeds."
    )
    panel = Dots(
        "worst source client", "accuracy in %, mean ± standard error over runs",
        tuple(_fair_row(*row) for row in sorted(dots, key=lambda row: -row[1])),
    )  # fmt: skip
    figure = Figure(
        "fairness", "Accuracy at the worst source client", "in the order of the means", (panel,)
    )
    grid = Grid("Evenness over clients", header, tuple(rows), (0, 1, 1, 1, 4, 5), (note,))
    return Section("fairness", "Fairness", "", (figure,) if dots else (), (grid,) if rows else ())


def evenness(run: Run, metric: str) -> tuple[float, ...]:
    """Mean, worst, variance, entropy and divergence over the source clients; empty where the
    metric is undefined at one, or is 0 at all."""
    rows = [
        r for r in run.raw.source if r["round"] == run.chosen.round and r["role"] == "source"
    ]  # fmt: skip
    values = [v for r in rows if (v := value(r, metric)) is not None]
    if not values or len(values) < len(rows) or not sum(values):
        return ()
    return (
        100 * mean(values), 100 * min(values), 1e4 * fairness.variance(values),
        fairness.entropy(values), fairness.divergence(values),
    )  # fmt: skip


def _fair_row(method: str, centre: float, error: float | None) -> Row:
    low, high = (centre - error, centre + error) if error else (None, None)
    shown = f"{centre:.1f}" + (f" ± {error:.1f}" if error else "")
    return Row(method, centre, low, high, shown)


def _per_round(run: Run) -> float | None:
    rounds = len({r.get("round") for r in run.raw.rounds})
    seconds = run.raw.mark.get("seconds")
    return seconds / rounds if rounds and isinstance(seconds, int | float) else None


def _peak(run: Run) -> float | None:
    peak = run.raw.mark.get("peak_mib")
    return float(peak) if isinstance(peak, int | float) else None


def sent(rounds: Sequence[Record], way: str) -> float | None:
    """Megabytes that all clients together sent (`up`) or received (`down`) in all exchanges of a
    round, the mean over rounds; None where no bytes are recorded."""
    counted = [r["bytes"][way] for r in rounds if way in r.get("bytes", ())]
    played = {r["round"] for r in rounds}
    return sum(counted) / len(played) / 1e6 if counted else None


def _up(run: Run) -> float | None:
    return sent(run.raw.rounds, "up")


def _down(run: Run) -> float | None:
    return sent(run.raw.rounds, "down")


COSTS: dict[str, Callable[[Run], float | None]] = {
    "seconds per round": _per_round,
    "peak memory, MiB": _peak,
    "MB up per round": _up,
    "MB down per round": _down,
}


def cost(part: Part) -> Section:
    """The chapter on cost, as far as the marks of the jobs tell it."""
    table: dict[str, dict[str, float]] = {}
    for name, read in COSTS.items():
        for method in part.methods:
            found = [v for r in part.runs if r.method == method if (v := read(r)) is not None]
            if found:
                table.setdefault(name, {})[method] = mean(found)
    panels = [
        Dots(name, name, _ranked(values), zero=True) for name, values in table.items() if values
    ]
    digits = {"seconds per round": 3, "peak memory, MiB": 0}
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
    grid = Grid(
        "Cost per method", ("method", *table), tuple(rows),
        (0, *(digits.get(name, 3) for name in table)), (note,),
    )  # fmt: skip
    figure = Figure("cost", "Time, memory and traffic", "least above", tuple(panels))
    return Section("cost", "Cost", "", (figure,) if panels else (), (grid,) if rows else ())


def _ranked(values: dict[str, float]) -> tuple[Row, ...]:
    ordered = sorted(values.items(), key=lambda item: item[1])
    return tuple(Row(name, x, text=f"{x:,.{_digits(x)}f}") for name, x in ordered)


def _digits(value: float) -> int:
    return max(0, min(4, 2 - math.floor(math.log10(value)))) if value > 0 else 0


def ranked(part: Part, made: Table) -> Figure | None:
    """The critical-difference diagram: mean ranks, lowest above, and bars beside methods that the
    test cannot tell apart; None where there is nothing to rank."""
    ranking = made.ranking()
    if ranking.difference is None:
        return None
    names = list(ranking.ranks)
    rows = tuple(
        Row(m, r, text=f"{r:.2f}", colour=INK if m == part.reference else 0)
        for m, r in ranking.ranks.items()
    )
    spans = tuple((names.index(group[0]), names.index(group[-1])) for group in ranking.groups)
    panel = Dots("mean rank, 1 is best", "mean rank over targets", rows, spans)
    caption = f"bars join methods that do not differ; {ranking.note}"
    return Figure("ranks", "Critical differences", caption, (panel,))
