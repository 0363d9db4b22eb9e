"""Generalization gaps: how much better a client's own model serves it than the average does.

G_i = risk_i(global) − risk_i(local model of i); Eq. 2 of GA penalises their variance over clients.
The gaps come from GA's probe or, in studies with cross evaluation, from the global model and each
local one on the client's validation split.
"""

from __future__ import annotations

from collections.abc import Mapping

from unseen.report.curves import curve_metrics
from unseen.report.figures import Figure, Grid, Lines, Section
from unseen.report.series import averaged, by_round, coloured, present, scalar
from unseen.report.study_report import Run, StudyReport
from unseen.results.selection import less_is_better
from unseen.results.statistics import mean
from unseen.results.study_folder import curve

#: client -> round -> gap.
Gaps = Mapping[str, Mapping[int, float]]


def section(part: StudyReport) -> Section:
    """Return the chapter on gaps, for the methods that have any."""
    gaps_of = {
        (method, task): gaps
        for method in part.methods
        for task in part.tasks
        if any(gaps := [of_run(part, run) for run in part.of.get((method, task), ())])
    }
    methods = tuple(dict.fromkeys(method for method, _ in gaps_of))
    if not methods:
        needs = 'generalization gaps (+ga, record = ["gaps"] or cross_evaluation = true)'
        return Section("gaps", "Generalization gaps", "", needs=needs)
    text = (
        "Risk of the global model at a client minus that of the client's own model, in units of "
        "the loss (or of the error rate, where that is what the study probes). Mean, spread and "
        "variance are over the clients; Eq. 2 of GA is about the variance."
    )
    figures = tuple(_over_rounds(part, gaps_of, methods, what) for what in SUMMARIES)
    return Section("gaps", "Generalization gaps", text, figures, (_table(part, gaps_of, methods),))


def of_run(part: StudyReport, run: Run) -> Gaps:
    """Return a run's gaps as GA probes them, or else from cross evaluation."""
    gaps, probed_in = scalar(run, "gap"), scalar(run, "gap_known")
    probed = {
        client: {r: g for r, g in curve.items() if probed_in.get(client, {}).get(r, 1.0)}
        for client, curve in gaps.items()
    }
    if any(probed.values()):
        return {client: curve for client, curve in probed.items() if curve}
    return crossed(run, "loss" if "loss" in curve_metrics(part) else part.metric)


def crossed(run: Run, metric: str) -> Gaps:
    """Return the gaps between the global and each local model on the clients' validation splits."""
    sign = 1.0 if less_is_better(metric) else -1.0
    gaps: dict[str, dict[int, float]] = {}
    for client in dict.fromkeys(r["client"] for r in run.raw.cross):
        rows = [
            r
            for r in run.raw.cross
            if r["client"] == r["domain"] == client and r["role"] == "source"
        ]
        local = curve(rows, metric)
        everyone = curve(run.raw.source, metric, client)
        both = sorted(local.keys() & everyone.keys())
        if both:
            gaps[client] = {r: sign * (everyone[r] - local[r]) for r in both}
    return gaps


def _variance(values: list[float]) -> float:
    centre = mean(values)
    return mean([(v - centre) ** 2 for v in values])


def _spread(values: list[float]) -> float:
    return float(_variance(values) ** 0.5)


#: Summaries of the clients' gaps in one round. The variance is that of the population.
SUMMARIES = {"mean": mean, "standard deviation": _spread, "variance": _variance}


def _over_rounds(
    part: StudyReport,
    gaps_of: Mapping[tuple[str, str], list[Gaps]],
    methods: tuple[str, ...],
    what: str,
) -> Figure:
    style = coloured(methods, methods[:6])
    panels = []
    for name, tasks in part.panels.items():
        lines = []
        for method in methods:
            runs = [gaps for task in tasks for gaps in gaps_of.get((method, task), [])]
            curves = [
                {r: SUMMARIES[what](v) for r, v in by_round(g.values()).items()} for g in runs
            ]
            lines.append(averaged(curves, method, *style(method)))
        panels.append(Lines(name, "round", f"{what} of the gaps", present(lines)))
    key = f"gaps-{what.replace(' ', '-')}"
    title = f"{what.capitalize()} of the generalization gaps over clients"
    caption = "mean over seeds" if part.main.many else "one panel per target, mean over seeds"
    return Figure(key, title, caption, tuple(p for p in panels if p.lines))


def _table(
    part: StudyReport, gaps_of: Mapping[tuple[str, str], list[Gaps]], methods: tuple[str, ...]
) -> Grid:
    """Return the summaries before and after: in the first and the last round with gaps."""
    rows: list[tuple[str | float | None, ...]] = []
    for method in methods:
        firsts, lasts = [], []
        for task in part.tasks:
            for gaps in gaps_of.get((method, task), []):
                values = by_round(gaps.values())
                if values:
                    firsts.append(values[min(values)])
                    lasts.append(values[max(values)])
        ends = [mean([f(v) for v in vs]) for f in SUMMARIES.values() for vs in (firsts, lasts)]
        rows.append((method, *ends))
    header = ["method", *(f"{s} {when}" for s in SUMMARIES for when in ("before", "after"))]
    note = (
        "before: the first round with gaps, after: the last; means over targets and seeds. The "
        "spread and the variance are those of the clients of one run (1/n)."
    )
    return Grid("Gaps before and after", tuple(header), tuple(rows), (0, *[4] * 6), (note,))
