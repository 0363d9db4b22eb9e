"""PCGrad: project every update off those it conflicts with."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unseen.core import Draws, Gram, RuleState, Table, Weighted, WithState
from unseen.core.rule import visits
from unseen.core.vector import Blocks
from unseen.methods.combine.mean import Mean


@dataclass(frozen=True)
class PCGrad(Gram):
    """The mean of the updates, each projected off those it conflicts with.

        if <ĝ_i, g_j> < 0:  ĝ_i ← ĝ_i − (<ĝ_i, g_j> / ‖g_j‖²) g_j  for i, and for j ≠ i
        x ← x + Σ_i p_i ĝ_i

    g_j: the update of client j as sent, as in PPDG's experiments; the original takes gradients of
    tasks.

    Attributes:
        order: of i and of j, drawn each round or as in the roster.
        prior: p.
        blocks: inner products of the whole vector, or per module or tensor.

    Note:
        Nothing divides 0 by 0: g_j = 0 has inner product 0 with everything, so the test is false.

    Source:
        Yu et al. 2020, "Gradient Surgery for Multi-Task Learning", Algorithm 1.

    Departs from:
        the released TensorFlow code, which sums (p_i = 1, a step K times longer) and whose shuffle
        has no effect.

    Example:
        >>> g = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
        >>> rule = PCGrad()
        >>> rule(g, {}, rule.init(2, 2))[0]
        tensor([0.2500, 0.7500])
    """

    order: Literal["random", "fixed"] = "random"
    prior: Weighted = Mean("uniform")
    blocks: Blocks = "whole"

    def mix(self, gram: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        G = gram.numpy()
        coefficients = np.eye(len(G))  # row i: ĝ_i = Σ_k coefficients[i, k] g_k
        products = G.copy()  # products[i, j] = <ĝ_i, g_j>
        for i, j in visits(len(G), self.order, generator):
            if products[i, j] < 0:
                length = products[i, j] / G[j, j]  # of ĝ_i along g_j, in units of g_j
                coefficients[i, j] -= length
                products[i] -= length * G[j]
        return torch.from_numpy(table["prior"].numpy() @ coefficients), state
