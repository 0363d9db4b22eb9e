"""FedILC's weighted geometric mean of updates, coordinate by coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unseen.combine.base import Elementwise, RuleState, Table, Weighted, column_blocks
from unseen.combine.mean import Mean
from unseen.errors import choice, number

#: What the released code adds to every magnitude before the logarithm.
RELEASED_FLOOR = 1e-10


@dataclass(frozen=True)
class WeightedGeometricMean(Elementwise):
    """The geometric means of the positive and of the negative entries, each by its share.

        P₊ exp(Σ_{i∈+} p_i log g_i / P₊) − P₋ exp(Σ_{i∈−} p_i log|g_i| / P₋),   P± = Σ_{i∈±} p_i

    and 0 where |Σ_i p_i sign g_i| < `agreement` (the released code's mask, at 0 without effect).
    With p_i = 1/E this is the formula of FedILC §3.1.

    zeros: `"skip"` leaves exact zeros out of both sets; `"paper"` puts them in both, so that one
    zero makes the coordinate 0; `"released"` puts them in the negative set and adds 1e-10 to
    every magnitude. Dead ReLUs and blank pixels give exact zeros, so the choice matters.

    Source: Zhu et al. 2022, "FedILC: Weighted Geometric Mean and Invariant Gradient Covariance
    for Federated Learning on Non-IID Data", §3.1.

    >>> g = torch.tensor([[1.0, 1.0], [4.0, 0.0]])
    >>> [WeightedGeometricMean(zeros)(g, {}, {"prior": {}})[0].tolist()
    ...  for zeros in ("skip", "paper")]
    [[2.0, 0.5], [2.0, 0.0]]
    """

    zeros: Literal["skip", "paper", "released"] = "skip"
    agreement: float = 0.0
    prior: Weighted = Mean("uniform")

    def __post_init__(self) -> None:
        choice("WeightedGeometricMean(zeros)", self.zeros, ("skip", "paper", "released"))
        number("WeightedGeometricMean(agreement)", self.agreement, 0, 1)

    def reduce(
        self, rows: Tensor, table: Table, state: RuleState, generator: torch.Generator | None
    ) -> tuple[Tensor, RuleState]:
        """The mean, in blocks of columns: one logarithm per entry, no K×P temporary."""
        counted = table["prior"] > 0  # a client of weight 0 must not veto a coordinate
        if not bool(counted.all()):
            rows = rows[counted.to(rows.device)]
        p = table["prior"][counted].to(rows)[:, None]
        vector = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
        for block, u in column_blocks(rows):
            vector[block] = self._mean(u, p)
        return vector, state

    def _mean(self, u: Tensor, p: Tensor) -> Tensor:
        positive, negative = u > 0, u < 0
        if self.zeros == "paper":
            positive, negative = u >= 0, u <= 0
        elif self.zeros == "released":
            negative = u <= 0
        floor = RELEASED_FLOOR if self.zeros == "released" else 0.0
        logs = p * (u.abs() + floor).log()
        mean = _part(positive, logs, p) - _part(negative, logs, p)
        if self.agreement > 0:
            mean = torch.where((p * u.sign()).sum(0).abs() >= self.agreement, mean, 0)
        return mean


def _part(inside: Tensor, logs: Tensor, p: Tensor) -> Tensor:
    """P exp(Σ_inside p_i log|g_i| / P) with P = Σ_inside p_i; 0 where nothing is inside."""
    total = (p * inside).sum(0)
    exponent = torch.where(inside, logs, 0).sum(0) / total
    return torch.where(total > 0, total * exponent.exp(), 0)
