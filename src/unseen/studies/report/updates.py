"""How clients agree: generalization gaps, and updates before and after the server's rule.

G_i = risk_i(global) − risk_i(local model of i): how much better a client's own model serves it than
the average does; Eq. 2 of GA penalises their variance over clients. The gaps come from GA's probe
or, in studies with cross evaluation, from the global model and each local one on the client's
validation split. How updates agree (PPDG, Eq. 4) follows from the inner products G_ij = <g_i, g_j>
that a study with `record = ["gram"]` records, so that no update is stored.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations

import torch
from torch import Tensor

from unseen.core.rule import Combine
from unseen.core.turn import Turn
from unseen.errors import UnseenError
from unseen.methods.base import TRAIN, model_rule
from unseen.methods.combine import PPDG, PCGrad
from unseen.methods.compose import method as compose
from unseen.studies.report.curves import averaged, by_round, coloured, curve_metrics, panel, scalar
from unseen.studies.report.figures import Fields, Figure, Grid, Section, on_one_scale
from unseen.studies.report.study_report import Run, StudyReport
from unseen.studies.results.selection import less_is_better
from unseen.studies.results.statistics import mean
from unseen.studies.results.study_folder import Curve, curve

COSINE, CONFLICTS, VARIANCE = "pairwise cosine", "conflict rate", "domain variance"
TOWARD = "cosine of update and aggregate"
#: The panels of a method, in this order, as far as there is data for them.
PANELS = (
    *(f"{name}, {when}" for name in (COSINE, CONFLICTS, VARIANCE) for when in ("before", "after")),
    f"{TOWARD}, mean",
    f"{TOWARD}, lowest",
)
#: Inner products of K vectors.
Gram = Sequence[Sequence[float]]


def agreement(inner: Gram) -> dict[str, float]:
    """Return what the inner products of one round say.

    Args:
        inner: Inner products [K, K].

    Returns:
        The mean over pairs of <g_i, g_j> / (‖g_i‖ ‖g_j‖), pairs with a zero update left out; the
        share of pairs with a negative inner product; Σ_ij ‖g_i − g_j‖².

    Source:
        PPDG, §3.2 and Eq. 4.

    Example:
        >>> agreement([[1.0, -1.0], [-1.0, 4.0]])
        {'pairwise cosine': -0.5, 'conflict rate': 1.0, 'domain variance': 14.0}
    """
    pairs, norms = list(combinations(range(len(inner)), 2)), _norms(inner)
    cosines = [inner[i][j] / (norms[i] * norms[j]) for i, j in pairs if norms[i] * norms[j] > 0]
    apart = [inner[i][i] + inner[j][j] - 2 * inner[i][j] for i, j in pairs]
    return {
        COSINE: mean(cosines) if cosines else 0.0,
        CONFLICTS: sum(inner[i][j] < 0 for i, j in pairs) / max(1, len(pairs)),
        VARIANCE: 2 * sum(apart),
    }


def toward(inner: Gram, update: Sequence[float], norm: float) -> list[float]:
    """Return cosines of the applied aggregate g with each update: <g_i, g> / (‖g_i‖ ‖g‖).

    Args:
        inner: Inner products of the updates, [K, K].
        update: <g_i, g> of every client i.
        norm: ‖g‖².
    """
    norms = _norms(inner)
    return [u / (a * norm**0.5) if a else 0.0 for u, a in zip(update, norms, strict=True)]


def _norms(inner: Gram) -> list[float]:
    return [max(row[i], 0.0) ** 0.5 for i, row in enumerate(inner)]


def aligned(rule: Combine | None, inner: Tensor, turn: Turn) -> Tensor | None:
    """Return inner products of the updates as PPDG or PCGrad changed them; None for other rules.

    Row i of the mixing matrix W is what the rule gives when its prior is client i alone, and its
    order of visits comes from the same generator as in the run. W G Wᵀ are the inner products.

    Args:
        rule: The server's rule, where it is known.
        inner: Inner products of the updates as they were sent, [K, K].
        turn: The round, whose generator the rule used.
    """
    if not isinstance(rule, PPDG | PCGrad) or rule.blocks != "whole":
        return None
    mixing = torch.stack(
        [
            rule.mix(inner, {"prior": one}, {}, turn.generator("rule/model"))[0]
            for one in torch.eye(len(inner), dtype=torch.float64)
        ]
    )
    return mixing @ inner @ mixing.T


def section(part: StudyReport) -> Section:
    """Return the chapter on updates, where inner products were recorded."""
    return Section("updates", on_one_scale(of_method(part, method) for method in part.methods))


def of_method(part: StudyReport, method: str) -> Figure:
    """Return cosines, conflicts and domain variance over rounds."""
    runs_at = {
        task: [quantities(part, run) for run in part.of(method, task)] for task in part.tasks
    }
    panels = []
    for name in PANELS:
        lines = [
            averaged([run.get(name, {}) for run in runs], task, i)
            for i, (task, runs) in enumerate(runs_at.items())
        ]
        quantity = name.partition(",")[0]
        limits = (-0.02, 1.02) if quantity == CONFLICTS else None
        panels.append(panel(name, quantity, lines, limits=limits))
    title = f"{method}: agreement of updates"
    caption = "pairwise cosine, share of pairs in conflict and domain variance (PPDG, Eq. 4)"
    return Figure(f"updates-{method}", title, caption, tuple(panels), fold=method)


def quantities(part: StudyReport, run: Run) -> Mapping[str, Curve]:
    """Return one run's quantities by round, under the names of their panels."""
    rule: Combine | None = None
    with suppress(UnseenError, AssertionError, KeyError):
        rule = model_rule(compose(run.method, part.study.training.build("classes")))
    series: dict[str, dict[int, float]] = defaultdict(dict)
    for record in run.trained:
        gram = record.get("gram", {}).get("model")
        if not gram:
            continue
        r, inner = int(record["round"]), gram["inner"]
        values = {f"{name}, before": value for name, value in agreement(inner).items()}
        turn = Turn(run.raw.job.seed, r, part.study.rounds, TRAIN)
        changed = aligned(rule, torch.tensor(inner, dtype=torch.float64), turn)
        if changed is not None:
            values |= {f"{name}, after": x for name, x in agreement(changed.tolist()).items()}
        if gram.get("update") and gram.get("norm", 0) > 0:
            cosines = toward(inner, gram["update"], gram["norm"])
            values |= {f"{TOWARD}, mean": mean(cosines), f"{TOWARD}, lowest": min(cosines)}
        for name, value in values.items():
            series[name][r] = value
    return series


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


def gap_section(part: StudyReport) -> Section:
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
