"""PPDG: gradient alignment on the server, as a function of the inner products."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from unseen.core import Draws, Gram, RuleState, Table, Weighted, WithState
from unseen.core.rule import visits
from unseen.core.vector import Blocks
from unseen.errors import UnseenError, number
from unseen.methods.combine.mean import Mean
from unseen.ranges import log


@dataclass(frozen=True)
class PPDG(Gram):
    """The mean of the updates, each pulled towards those it conflicts with.

    For i, and for j ≠ i, if <ĝ_i, ĝ_j> < 0:

        raw:       ĝ_i ← g_i − 2λ(ĝ_i − ĝ_j)      line 6 as printed
        running:   ĝ_i ← ĝ_i − 2λ(ĝ_i − ĝ_j)      corrections compound
        equation:  ĝ_i ← g_i − 2λ(g_i − ĝ_j)      Eq. 5, which has g_j there: others="raw"

    and x ← x + Σ_i p_i ĝ_i. g_i: the update of client i, ω_T − ω_0 after T local steps (§3.4).

    Attributes:
        lam: λ in (0, 0.5), the condition of Theorem 1. The paper uses 0.1 (Camelyon17, PovertyMap),
            0.05 (FMoW), 0.001 (RotatedMNIST), 0.2 (TerraIncognita). A search begins at 0.01: at
            0.001 the weights hardly leave p, and PPDG is the mean.
        base: the reading of line 6, one of the three above.
        others: the ĝ_j are the current, already modified ones, as in Eq. 10, or the g_j as sent
            (`"raw"`).
        when: `"always"` is the ablation without the sign test.
        order: `"random"` (§3.2, drawn each round for i and, at each i, for j) or `"fixed"` (the
            loops of Algorithm 1 as printed).
        prior: p; Algorithm 1 averages uniformly although Eq. 1 has p_k = n_k/n.
        unbounded: admit λ in [0, 1], because the paper's own Figure 1 runs 0.5.
        blocks: inner products of the whole vector, as in the paper, or per module or tensor.

    Note:
        No code was released. Theorem 1's last step (Eq. 8) does not hold under conflict: with ∇L =
        g_1 + g_2 its true bound exceeds the printed one by −2t<g_1, g_2> > 0, and on two opposed
        quadratics at their joint optimum, where the mean update is 0, PPDG walks away. It is an
        alignment heuristic, not a descent method.

        Every vector that the algorithm ever holds is a linear combination of the g_i, so the run,
        decisions included, follows from the K×K inner products; no update is read.

    Source:
        Tian, Li, Wang, Wang, "Privacy-Preserving Constrained Domain Generalization via Gradient
        Alignment", Algorithm 1, Eqs. 4-10.

    Example:
        >>> g = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
        >>> rule = PPDG(lam=0.1, order="fixed")
        >>> rule(g, {}, rule.init(2, 2))
        (tensor([-0.0400,  0.5200]), {'prior': {}}, tensor([0.4800, 0.5200], dtype=torch.float64))
    """

    lam: Annotated[float, log(0.01, 0.45)] = 0.1
    base: Literal["raw", "running", "equation"] = "raw"
    others: Literal["modified", "raw"] = "modified"
    when: Literal["conflict", "always"] = "conflict"
    order: Literal["random", "fixed"] = "random"
    prior: Weighted = Mean("uniform")
    unbounded: bool = False
    blocks: Blocks = "whole"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unbounded:
            number("PPDG(lam)", self.lam, 0, 1)
        elif not isinstance(self.lam, int | float) or not 0 < self.lam < 0.5:
            raise UnseenError(
                "PPDG(lam) must lie in (0, 0.5): Theorem 1 asks for 2λ² < 1/2 and 8λ⁴ < 1/2; "
                f"found {self.lam!r}.",
                remedy="PPDG(lam=..., unbounded=True) runs it all the same.",
            )

    def mix(self, gram: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        """Run Algorithm 1 on weights: ĝ_i = w_i U, and <ĝ_i, u> follows from w_i G."""
        K = len(gram)
        raw = np.hstack([np.eye(K), gram.numpy()])  # row i: (w_i, w_i G), linear in w_i together
        hat = raw.copy()
        for i, j in visits(K, self.order, generator):
            other = (hat if self.others == "modified" else raw)[j]
            if self.when == "always" or hat[i, K:] @ other[:K] < 0:
                start = hat[i] if self.base == "running" else raw[i]
                away = raw[i] if self.base == "equation" else hat[i]
                hat[i] = start - 2 * self.lam * (away - other)
        return torch.from_numpy(table["prior"].numpy() @ hat[:, :K]), state
