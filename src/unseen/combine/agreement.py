"""AgrSum and AgrRand: keep the coordinates on whose sign all clients agree."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unseen.combine.mean import Mean
from unseen.core import Draws, Elementwise, RuleState, Table, Weighted, WithState
from unseen.core.rows import column_blocks
from unseen.core.rule import drawing

Reduction = Literal["sum", "mean"]


@dataclass(frozen=True)
class AgrSum(Elementwise):
    """The mean of the coordinates on whose sign all clients agree, 0 elsewhere.

        x_d ← x_d + Σ_i p_i g_id  where |Σ_i sign g_id| = K

    Attributes:
        reduction: `"mean"` as above, so that the step is as long as the other rules'; `"sum"` is K
            times that, as released and in the name. PPDG does not say which it used.
        prior: p.

    Note:
        No agreeing coordinate gives zeros.

    Source:
        Mansilla et al. 2021, "Domain Generalization via Gradient Surgery", Eq. 4.

    Departs from:
        the paper in that agreeing coordinates are averaged, where it sums them (`reduction="sum"`),
        and that g_i is an update of local training, where it has a gradient of one batch.

    Example:
        >>> g = torch.tensor([[1.0, 2.0, 0.0], [3.0, -1.0, 1.0]])
        >>> rule = AgrSum()
        >>> rule(g, {}, rule.init(2, 3))[0]
        tensor([2., 0., 0.])
    """

    reduction: Reduction = "mean"
    prior: Weighted = Mean("uniform")

    def reduce(self, rows: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        return agreeing(rows, table["prior"], self.reduction)[0], state


@dataclass(frozen=True)
class AgrRand(AgrSum):
    """AgrSum with Gaussian noise N(0, s²) where signs disagree.

    s is the mean absolute value of the agreeing coordinates, over the whole vector.

    Attributes:
        reduction: see `AgrSum`.
        prior: p.

    Source:
        Mansilla et al. 2021, "Domain Generalization via Gradient Surgery", §3.2.

    Departs from:
        the paper as `agrsum` does, and the released code where no coordinate agrees: there s is the
        mean of an empty set and every coordinate NaN, here the vector is 0 and the model stays as
        it is.
    """

    def reduce(self, rows: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        vector, agree = agreeing(rows, table["prior"], self.reduction)
        count = int(agree.sum())
        if count in (0, len(vector)):
            return vector, state
        scale = float(vector.abs().sum(dtype=torch.float64)) / count
        noise = torch.randn(len(vector), generator=drawing(generator), dtype=vector.dtype)
        return torch.where(agree, vector, noise.to(vector.device) * scale), state


def agreeing(rows: Tensor, prior: Tensor, reduction: Reduction) -> tuple[Tensor, Tensor]:
    """Return the combination on agreeing coordinates, zeros elsewhere [P], and which agree [P]."""
    scale = len(rows) if reduction == "sum" else 1
    weights = (prior * scale).to(rows)
    vector = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
    agree = torch.empty(rows.shape[1], dtype=torch.bool, device=rows.device)
    for block, u in column_blocks(rows):
        agree[block] = (u > 0).all(0) | (u < 0).all(0)
        vector[block] = torch.where(agree[block], weights @ u, 0)
    return vector, agree
