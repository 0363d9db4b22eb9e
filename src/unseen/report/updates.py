"""How the clients' updates agree, before and after the server's rule (PPDG, Eq. 4).

All of it follows from the inner products G_ij = <g_i, g_j> that a study with `record = ["gram"]`
records, so that no update is stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import combinations

import torch
from torch import Tensor

from unseen.combine import PPDG, PCGrad
from unseen.core.rule import Combine
from unseen.core.turn import Turn
from unseen.errors import UnseenError
from unseen.methods.base import TRAIN, model_rule
from unseen.methods.compose import method as compose
from unseen.report.curves import averaged, panel
from unseen.report.figures import Figure, Section, on_one_scale
from unseen.report.study_report import Run, StudyReport
from unseen.results.statistics import mean
from unseen.results.study_folder import Curve

COSINE, CONFLICTS, VARIANCE = "pairwise cosine", "conflict rate", "domain variance"
TOWARD = "cosine of update and aggregate"
#: The panels of a method, in this order, as far as there is data for them.
PANELS = (
    *(f"{name}, {when}" for name in (COSINE, CONFLICTS, VARIANCE) for when in ("before", "after")),
    f"{TOWARD}, mean", f"{TOWARD}, lowest",
)  # fmt: skip
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
    mixing = torch.stack([
        rule.mix(inner, {"prior": one}, {}, turn.generator("rule/model"))[0]
        for one in torch.eye(len(inner), dtype=torch.float64)
    ])  # fmt: skip
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
        rule = model_rule(compose(run.method, part.study.training.build(regression=False)))
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
