"""Generalization gaps: how much better a client's own model serves it than the average does.

G_i = risk_i(global) − risk_i(local model of i); Eq. 2 of GA penalises their variance over clients.
The gaps come from GA's probe or, in studies with cross evaluation, from the global model and each
local one on the client's validation split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from unseen.report.curves import averaged, by_round, coloured, curve_metrics, panel, scalar
from unseen.report.figures import Fields, Figure, Grid, Section, on_one_scale
from unseen.report.study_report import Run, StudyReport
from unseen.results.selection import less_is_better
from unseen.results.statistics import mean
from unseen.results.study_folder import curve

#: client -> round -> gap.
Gaps = Mapping[str, Mapping[int, float]]
#: (method, task) -> the gaps of each run.
GapsAt = Mapping[tuple[str, str], list[Gaps]]


def variance(values: Sequence[float]) -> float:
    """Return that of a population: all clients of a round."""
    centre = mean(values)
    return mean([(v - centre) ** 2 for v in values])


#: Summaries of the clients' gaps in one round.
SUMMARIES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": mean,
    "standard deviation": lambda values: float(variance(values) ** 0.5),
    "variance": variance,
}


def section(part: StudyReport) -> Section:
    """Return the chapter on gaps, for the methods that have any."""
    gaps_at = {
        (method, task): gaps
        for method in part.methods
        for task in part.tasks
        if any(gaps := [of_run(part, run) for run in part.of(method, task)])
    }
    if not gaps_at:
        return Section("gaps")
    figures = [_over_rounds(part, gaps_at, what) for what in SUMMARIES]
    return Section("gaps", on_one_scale(figures), (_before_and_after(gaps_at),))


def of_run(part: StudyReport, run: Run) -> Gaps:
    """Return a run's gaps as GA probes them, or else from cross evaluation."""
    gaps, probed_in = scalar(run, "gap"), scalar(run, "gap_known")
    probed = {
        client: {r: g for r, g in line.items() if probed_in.get(client, {}).get(r, 1.0)}
        for client, line in gaps.items()
    }
    if any(probed.values()):
        return {client: line for client, line in probed.items() if line}
    return crossed(run, "loss" if "loss" in curve_metrics(part) else part.metric)


def crossed(run: Run, metric: str) -> Gaps:
    """Return the gaps between the global and each local model on the clients' validation splits.

    Args:
        run: A run with cross evaluation.
        metric: What the risk is; of a metric where more is better, its negative.
    """
    sign = 1.0 if less_is_better(metric) else -1.0
    gaps: dict[str, dict[int, float]] = {}
    for client in dict.fromkeys(r["client"] for r in run.raw.cross):
        own = (client, client, "source")
        rows = [r for r in run.raw.cross if (r["client"], r["domain"], r["role"]) == own]
        local, everyone = curve(rows, metric), curve(run.raw.source, metric, client)
        if both := sorted(local.keys() & everyone.keys()):
            gaps[client] = {r: sign * (everyone[r] - local[r]) for r in both}
    return gaps


def _over_rounds(part: StudyReport, gaps_at: GapsAt, what: str) -> Figure:
    methods = tuple(dict.fromkeys(method for method, _ in gaps_at))
    style = coloured(methods, methods[:6])
    panels = []
    for name, tasks in part.panels.items():
        lines = []
        for method in methods:
            runs = [gaps for task in tasks for gaps in gaps_at.get((method, task), [])]
            curves = [
                {r: SUMMARIES[what](v) for r, v in by_round(g.values()).items()} for g in runs
            ]
            lines.append(averaged(curves, method, *style(method)))
        panels.append(panel(name, f"{what} of the gaps", lines))
    title = f"{what.capitalize()} of the generalization gaps over clients"
    caption = "mean over seeds" if part.main.many else "one panel per target, mean over seeds"
    return Figure(f"gaps-{what.replace(' ', '-')}", title, caption, tuple(panels))


def _before_and_after(gaps_at: GapsAt) -> Grid:
    """Return the summaries in the first and the last round with gaps."""
    ends: dict[str, list[tuple[list[float], list[float]]]] = {}
    for (method, _), runs in gaps_at.items():
        for rounds in filter(None, (by_round(gaps.values()) for gaps in runs)):
            ends.setdefault(method, []).append((rounds[min(rounds)], rounds[max(rounds)]))
    rows: list[Fields] = []
    for method, pairs in ends.items():
        before_after = tuple(zip(*pairs, strict=True))
        summaries = [mean([f(v) for v in vs]) for f in SUMMARIES.values() for vs in before_after]
        rows.append((method, *summaries))
    header = ("method", *(f"{s} {when}" for s in SUMMARIES for when in ("before", "after")))
    return Grid("Gaps before and after", header, rows, (0, *[4] * 6))
