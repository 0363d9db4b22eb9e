"""What came out of a study: averages, ranks, options, fairness, cost and what left the clients."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from unseen.core.record_lines import LEDGER, read_lines
from unseen.studies.report.figures import (
    Dots,
    Fields,
    Figure,
    Grid,
    Row,
    Section,
    spread,
)
from unseen.studies.report.study_report import Run, StudyReport, cells_of
from unseen.studies.results import fairness
from unseen.studies.results.selection import value
from unseen.studies.results.statistics import mean, standard_error


def overview(part: StudyReport) -> Section:
    """Return the chapter on averages and on ranks, where there is something to rank."""
    return Section("overview", tuple(filter(None, (averages(part), ranked(part)))))


def averages(part: StudyReport) -> Figure:
    """Return the table's average and its targets as dots; of many targets the summaries alone."""
    table, names = part.main, part.main.columns
    if table.many:
        names = (*names[len(table.tasks) :], table.tail_name)
    scale = 100.0 if "accuracy" in table.metric else 1.0
    label = f"{table.metric}{' in %' * (scale > 1)}, mean ± standard error"
    panels = []
    for name in sorted(names, key=lambda name: name != "average"):
        values = {m: cell.values for m, cell in cells_of(part.main, name).items() if cell.values}
        if values:
            panels.append(
                Dots(name, label, _dots(part, values, table.number_text, scale, table.lower))
            )
    panels = panels[:1] if len(part.tasks) == 1 else panels
    limits = spread([v for panel in panels for v in panel.values])
    caption = (
        f"{table.metric} at the selected round, {'lower' if table.lower else 'higher'} is better; "
        "in the order of the means, which says nothing of significance"
    )
    shared = tuple(replace(panel, limits=limits) for panel in panels)
    return Figure(f"results-{table.metric}", f"{table.metric} by target", caption, shared)


def _dots(
    part: StudyReport,
    values_of: Mapping[str, Sequence[float]],
    as_text: Callable[[float], str],
    scale: float = 1.0,
    lower: bool = False,
) -> tuple[Row, ...]:
    rows = []
    for method, values in values_of.items():
        centre, error = mean(values), standard_error(values)
        text = as_text(centre) + (f" ± {as_text(error)}" if error else "")
        low, high = ((centre - error) * scale, (centre + error) * scale) if error else (None, None)
        rows.append(Row(method, centre * scale, low, high, text, part.colour(method)))
    return tuple(sorted(rows, key=lambda row: row.value, reverse=not lower))


def ranked(part: StudyReport) -> Figure | None:
    """Return mean ranks, with bars at methods that the test cannot tell apart, if there are any."""
    ranking = part.main.ranking()
    if ranking.difference is None:
        return None
    names = list(ranking.ranks)
    ranks = ranking.ranks.items()
    rows = tuple(Row(m, r, text=f"{r:.2f}", colour=part.colour(m)) for m, r in ranks)
    spans = tuple((names.index(group[0]), names.index(group[-1])) for group in ranking.groups)
    panel = Dots("mean rank, 1 is best", "mean rank over targets", rows, spans)
    caption = f"bars join methods that do not differ; {ranking.note}"
    return Figure("ranks", "Critical differences", caption, (panel,))


def fair(part: StudyReport) -> Section:
    """Return the chapter on fairness: how evenly the selected model serves the source clients."""
    runs = part.runs if "accuracy" in part.metrics else ()
    measured: dict[str, list[tuple[float, ...]]] = {}
    for method in part.methods:
        each = [even for run in runs if run.method == method and (even := evenness(run))]
        measured |= {method: each} if each else {}
    if not measured:
        return Section("fairness")
    worst_of = {m: [even[1] for even in values] for m, values in measured.items()}
    worst = _dots(part, worst_of, "{:.1f}".format)
    panel = Dots("worst source client", "accuracy in %, mean ± standard error over runs", worst)
    title = "Accuracy at the worst source client"
    figure = Figure("fairness", title, "in the order of the means", (panel,))
    header = ("method", "mean, %", "worst client, %", "variance, %²", "entropy", "KL to uniform")
    rows: list[Fields] = [(m, *map(mean, zip(*x, strict=True))) for m, x in measured.items()]
    grid = Grid("Evenness over clients", header, rows, (0, 1, 1, 1, 4, 5))
    return Section("fairness", (figure,), (grid,))


def evenness(run: Run) -> tuple[float, ...]:
    """Return mean, worst, variance, entropy and divergence of the sources' accuracies, or ()."""
    rows = [r for r in run.raw.source if (r["round"], r["role"]) == (run.result.round, "source")]
    values = [v for r in rows if (v := value(r, "accuracy")) is not None]
    if not values or len(values) < len(rows) or not sum(values):
        return ()
    return (
        100 * mean(values),
        100 * min(values),
        1e4 * fairness.variance(values),
        fairness.entropy(values),
        fairness.divergence(values),
    )


#: What a run costs, and the decimals of that.
COSTS = {
    "seconds per round": 3,
    "peak memory, MiB": 0,
    "MB up per round": 3,
    "MB down per round": 3,
}


def costs(run: Run) -> dict[str, float]:
    """Return what a run cost, as far as its mark and its records tell it.

    Megabytes are those of all clients and exchanges together: `up` what the clients sent, `down`
    what they received.
    """
    rounds, mark = run.raw.rounds, run.raw.mark
    played = len({r["round"] for r in rounds})
    amounts = {"peak memory, MiB": mark.get("peak_mib")}
    if played and mark.get("seconds") is not None:
        amounts["seconds per round"] = mark["seconds"] / played
    for way in ("up", "down"):
        if counted := [r["bytes"][way] for r in rounds if way in r.get("bytes", ())]:
            amounts[f"MB {way} per round"] = sum(counted) / played / 1e6
    return {name: x for name in COSTS if (x := amounts.get(name)) is not None}


def cost(part: StudyReport) -> Section:
    """Return the chapter on cost."""
    amounts: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in COSTS}
    for run in (run for method in part.methods for run in part.runs if run.method == method):
        for name, amount in costs(run).items():
            amounts[name][run.method].append(amount)
    table = {
        name: {method: float(mean(values)) for method, values in by_method.items()}
        for name, by_method in amounts.items()
        if by_method
    }
    if not table:
        return Section("cost")
    panels = tuple(Dots(n, n, _least_above(values), zero=True) for n, values in table.items())
    measured = set().union(*table.values())
    rows = tuple(
        (m, *(values.get(m) for values in table.values())) for m in part.methods if m in measured
    )
    digits = (0, *(COSTS[name] for name in table))
    figure = Figure("cost", "Time, memory and traffic", "least above", panels)
    return Section("cost", (figure,), (Grid("Cost per method", ("method", *table), rows, digits),))


def _least_above(costs: Mapping[str, float]) -> tuple[Row, ...]:
    places = {m: 2 - math.floor(math.log10(x)) if x > 0 else 0 for m, x in costs.items()}
    return tuple(
        Row(m, x, text=f"{x:,.{min(4, max(0, places[m]))}f}")
        for m, x in sorted(costs.items(), key=lambda item: item[1])
    )


def disclosed(part: StudyReport) -> tuple[Section, Section]:
    """Return what left the clients by method and exchange, in which form, and what was promised."""
    from unseen.privacy.ledger import summary

    sizes: dict[tuple[str, ...], list[float]] = defaultdict(list)
    promises: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for run in (run for method in part.methods for run in part.of(method, *part.tasks)):
        ledger = summary(read_lines(run.raw.folder / LEDGER))
        for *key, size, _ in ledger.rows:
            sizes[run.method, *map(str, key)].append(size)
        for promise in ledger.guarantees:
            promises[run.method, promise["protects"]].append(promise)
    averages: list[Fields] = [(*key, sum(counts) / len(counts)) for key, counts in sizes.items()]
    promised: list[Fields] = []
    for names, items in promises.items():
        each = ([item[name] for item in items] for name in ("prv", "rdp", "delta"))
        promised.append((*names, *("none" if None in x else float(max(x)) for x in each)))
    by_kind = ("method", "exchange", "what", "form", "bytes per reply")
    by_method = ("method", "protects", "ε (PRV)", "ε (RDP)", "δ")
    replies = Grid("Replies by kind", by_kind, averages, (0, 0, 0, 0, 0))
    largest = Grid("The largest ε of any client", by_method, promised, (0, 0, 2, 2, 7))
    return (
        Section("ledger", grids=(replies,) if averages else ()),
        Section("guarantees", grids=(largest,) if promised else ()),
    )
