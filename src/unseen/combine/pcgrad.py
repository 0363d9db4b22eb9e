"""PCGrad: project every update off those it conflicts with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unseen.combine.mean import Mean
from unseen.core.rule import Gram, RuleState, Weighted, visits
from unseen.core.types import Table
from unseen.core.vector import Blocks
from unseen.errors import choice


@dataclass(frozen=True)
class PCGrad(Gram):
    """For i, and for j ≠ i, if <ĝ_i, g_j> < 0: ĝ_i ← ĝ_i − (<ĝ_i, g_j> / ‖g_j‖²) g_j.

    The result is Σ_i p_i ĝ_i; g_j is as sent. Nothing divides 0 by 0: g_j = 0 has inner product
    0 with everything, so the test is false. Departs from the released TensorFlow code, which
    sums (p_i = 1) and whose shuffle has no effect. Source: Yu et al. 2020, "Gradient Surgery for
    Multi-Task Learning", Algorithm 1; on model updates as PPDG's experiments use it.

    >>> g = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
    >>> rule = PCGrad()
    >>> rule(g, {}, rule.init(2, 2))[0]
    tensor([0.2500, 0.7500])
    """

    order: Literal["random", "fixed"] = "random"
    prior: Weighted = Mean("uniform")
    blocks: Blocks = "whole"

    def __post_init__(self) -> None:
        choice("PCGrad(order)", self.order, ("random", "fixed"))

    def mix(
        self, gram: Tensor, table: Table, state: RuleState, generator: torch.Generator | None
    ) -> tuple[Tensor, RuleState]:
        """Algorithm 1 on weights: row i holds (w_i, w_i G)."""
        K = len(gram)
        raw = np.hstack([np.eye(K), gram.numpy()])
        hat = raw.copy()
        for i, j in visits(K, self.order, generator):
            if hat[i, K + j] < 0:
                hat[i] -= hat[i, K + j] / raw[j, K + j] * raw[j]
        return torch.from_numpy(table["prior"].numpy() @ hat[:, :K]), state
