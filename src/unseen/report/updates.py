"""How the clients' updates agree, before and after the server's rule (PPDG, Eq. 4).

All of it follows from the inner products G_ij = <g_i, g_j> that a study with `record = ["gram"]`
records, so that no update is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from unseen.combine import PPDG, PCGrad
from unseen.core.exchange import Turn
from unseen.core.rule import Combine
from unseen.errors import UnseenError
from unseen.methods.base import TRAIN, model_rule
from unseen.methods.compose import method as compose
from unseen.report.figures import Figure, Lines, Section, on_one_scale
from unseen.report.series import averaged, present, trained
from unseen.report.study_report import Run, StudyReport
from unseen.results.statistics import mean
from unseen.results.study_folder import Curve

#: The panels of a method, in this order, as far as there is data for them.
PANELS = (
    "pairwise cosine, before", "pairwise cosine, after", "conflict rate, before",
    "conflict rate, after", "domain variance, before", "domain variance, after",
    "cosine of update and aggregate, mean", "cosine of update and aggregate, lowest",
)  # fmt: skip


@dataclass(frozen=True)
class Agreement:
    """What the inner products [K, K] of one round say.

    Attributes:
        cosine: Mean over pairs of <g_i, g_j> / (‖g_i‖ ‖g_j‖), pairs with a zero update left out.
        conflicts: Share of pairs with a negative inner product.
        variance: Σ_ij ‖g_i − g_j‖².
    """

    cosine: float
    conflicts: float
    variance: float


def agreement(inner: Sequence[Sequence[float]]) -> Agreement:
    """Return cosine, conflicts and variance. Source: PPDG, §3.2 and Eq. 4.

    >>> agreement([[1.0, -1.0], [-1.0, 4.0]])
    Agreement(cosine=-0.5, conflicts=1.0, variance=14.0)
    """
    pairs = list(combinations(range(len(inner)), 2))
    lengths = [max(inner[i][i], 0.0) ** 0.5 for i in range(len(inner))]
    cosines = [
        inner[i][j] / (lengths[i] * lengths[j]) for i, j in pairs if lengths[i] * lengths[j] > 0
    ]
    apart = [inner[i][i] + inner[j][j] - 2 * inner[i][j] for i, j in pairs]
    return Agreement(
        mean(cosines) if cosines else 0.0,
        sum(inner[i][j] < 0 for i, j in pairs) / len(pairs) if pairs else 0.0,
        2 * sum(apart),
    )


def aligned(rule: Combine, inner: Tensor, turn: Turn) -> Tensor | None:
    """Return inner products of the updates as PPDG or PCGrad changed them; None for other rules.

    Row i of the mixing matrix is what the rule gives when its prior is client i alone, and its
    order of visits comes from the same generator as in the run. W G Wᵀ are the inner products.

    Args:
        rule: The server's rule.
        inner: Inner products of the updates as they were sent, [K, K].
        turn: The round, whose generator the rule used.
    """
    if not isinstance(rule, PPDG | PCGrad) or rule.blocks != "whole":
        return None
    rows = [
        rule.mix(inner, {"prior": one}, {}, turn.generator("rule/model"))[0]
        for one in torch.eye(len(inner), dtype=torch.float64)
    ]
    mixing = torch.stack(rows)
    return mixing @ inner @ mixing.T


def section(part: StudyReport) -> Section:
    """Return the chapter on updates, where inner products were recorded."""
    text = (
        "Before: the updates as the clients sent them. After: where the rule changes each update "
        "before it averages (PPDG, PCGrad), the changed ones; and how the applied aggregate "
        "agrees with each update as it was sent. One line per target, mean over seeds."
    )
    figures = on_one_scale([f for method in part.methods for f in of_method(part, method)])
    needs = 'agreement of updates (record = ["gram"])'
    return Section("updates", "Agreement of updates", text, figures, needs=needs)


def of_method(part: StudyReport, method: str) -> Iterator[Figure]:
    """Yield cosines, conflicts and domain variance over rounds."""
    runs_at = {
        task: [curves(part, run) for run in part.of.get((method, task), ())] for task in part.tasks
    }
    seen = {name for runs in runs_at.values() for run in runs for name in run}
    panels = []
    for name in (name for name in PANELS if name in seen):
        lines = present(
            averaged([run.get(name, {}) for run in runs_at[task]], task, i)
            for i, task in enumerate(part.tasks)
        )
        quantity = name.partition(",")[0]
        limits = (-0.02, 1.02) if quantity == "conflict rate" else None
        panels.append(Lines(name, "round", quantity, lines, limits=limits))
    if panels:
        yield Figure(
            f"updates-{method}", f"{method}: agreement of updates",
            "pairwise cosine, share of pairs in conflict and domain variance (PPDG, Eq. 4)",
            tuple(panels), fold=method,
        )  # fmt: skip


def curves(part: StudyReport, run: Run) -> dict[str, Curve]:
    """Return one run's quantities by round, under the names of their panels."""
    rule = _rule(part, run.method)
    series: dict[str, dict[int, float]] = {}

    def put(name: str, r: int, value: float) -> None:
        series.setdefault(name, {})[r] = value

    def put_agreement(when: str, r: int, inner: Sequence[Sequence[float]]) -> None:
        measured = agreement(inner)
        put(f"pairwise cosine, {when}", r, measured.cosine)
        put(f"conflict rate, {when}", r, measured.conflicts)
        put(f"domain variance, {when}", r, measured.variance)

    for record in trained(run):
        gram = record.get("gram", {}).get("model")
        if not isinstance(gram, Mapping):
            continue
        r, inner = int(record["round"]), gram["inner"]
        put_agreement("before", r, inner)
        turn = Turn(run.raw.job.seed, r, part.study.rounds, TRAIN)
        matrix = torch.tensor(inner, dtype=torch.float64)
        changed = aligned(rule, matrix, turn) if rule is not None else None
        if changed is not None:
            put_agreement("after", r, changed.tolist())
        if gram.get("update") and gram.get("norm", 0) > 0:
            cosines = toward(inner, gram["update"], gram["norm"])
            put("cosine of update and aggregate, mean", r, mean(cosines))
            put("cosine of update and aggregate, lowest", r, min(cosines))
    return dict(series)


def toward(
    inner: Sequence[Sequence[float]], update: Sequence[float], norm: float
) -> list[float]:  # fmt: skip
    """Return cosines of the applied aggregate g with each update: <g_i, g> / (‖g_i‖ ‖g‖).

    Args:
        inner: Inner products of the updates, [K, K].
        update: <g_i, g> of every client i.
        norm: ‖g‖².
    """
    lengths = [max(inner[i][i], 0.0) ** 0.5 for i in range(len(inner))]
    return [u / (a * norm**0.5) if a else 0.0 for u, a in zip(update, lengths, strict=True)]


def _rule(part: StudyReport, method: str) -> Combine | None:
    try:
        return model_rule(compose(method, part.study.training.build(regression=False)))
    except (UnseenError, AssertionError, KeyError):
        return None
