"""PPDG: gradient alignment on the server."""

from __future__ import annotations

from typing import Literal

from unseen.combine import PPDG, Mean
from unseen.core.exchange import Method, Reference
from unseen.methods.base import federated
from unseen.methods.surgery import replace_rule
from unseen.recipe import Training

REFERENCE = Reference(
    "Tian, Li, Wang, Wang. Privacy-Preserving Constrained Domain Generalization via Gradient "
    "Alignment. IEEE TKDE 2023. Algorithm 1, Eqs. 4-11.",
    """@article{tian2023ppdg,
  title   = {Privacy-Preserving Constrained Domain Generalization via Gradient Alignment},
  author  = {Tian, Chris Xing and Li, Haoliang and Wang, Yufei and Wang, Shiqi},
  journal = {IEEE Transactions on Knowledge and Data Engineering},
  year    = {2023}
}""",
)


def ppdg(
    training: Training,
    *,
    lam: float = 0.1,
    base: Literal["raw", "running", "equation"] = "raw",
    others: Literal["modified", "raw"] = "modified",
    when: Literal["conflict", "always"] = "conflict",
    order: Literal["random", "fixed"] = "random",
    weights: Literal["uniform", "examples"] = "uniform",
    unbounded: bool = False,
) -> Method:
    """Pull updates that conflict towards each other before they are averaged.

        if <ĝ_i, ĝ_j> < 0:  ĝ_i ← g_i − 2λ(ĝ_i − ĝ_j)          x ← x + (1/K) Σ_i ĝ_i

    g_i: the update of client i, ω_T − ω_0 after T local steps (§3.4). lam: λ in (0, 0.5); the
    paper uses 0.1 (Camelyon17, PovertyMap), 0.05 (FMoW), 0.001 (RotatedMNIST), 0.2
    (TerraIncognita). base, others: the readings of line 6, see `unseen.combine.PPDG`; the
    default is the line as printed. when: `"always"` is the ablation without the sign test.
    order: of the loops. weights: Algorithm 1 averages uniformly although Eq. 1 has p_k = n_k/n.

    No code was released. Theorem 1's last step (Eq. 8) does not hold under conflict: with
    ∇L = g_1 + g_2 its true bound exceeds the printed one by −2t<g_1, g_2> > 0, and on two opposed
    quadratics at their joint optimum, where the mean update is 0, PPDG walks away. It is an
    alignment heuristic, not a descent method.
    """
    rule = PPDG(lam, base, others, when, order, Mean(weights), unbounded)
    return federated("ppdg", training, rule, REFERENCE)


def add_ppdg(
    method: Method,
    *,
    lam: float = 0.1,
    base: Literal["raw", "running", "equation"] = "raw",
    others: Literal["modified", "raw"] = "modified",
    when: Literal["conflict", "always"] = "conflict",
    order: Literal["random", "fixed"] = "random",
    unbounded: bool = False,
) -> Method:
    """PPDG on the server of any method that averages; its weights become the prior."""
    return replace_rule(
        method,
        "ppdg",
        REFERENCE,
        lambda prior: PPDG(lam, base, others, when, order, prior, unbounded),
    )
