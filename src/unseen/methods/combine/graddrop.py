"""GradDrop: each coordinate takes the updates of one sign, draws by how much each sign weighs."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unseen.core import Draws, Elementwise, RuleState, Table, Weighted, WithState
from unseen.core.rows import column_blocks
from unseen.core.rule import drawing
from unseen.methods.combine.mean import Mean


@dataclass(frozen=True)
class GradDrop(Elementwise):
    """The mean of the updates with the sign that each coordinate draws, the others left out.

        x_d ← x_d + Σ_i p_i g_id [g_id has the sign s_d],
        P(s_d = +) = ½ (1 + Σ_i p_i g_id / Σ_i p_i |g_id|)

    Attributes:
        reduction: `"mean"` as above, so that the step is as long as the other rules'; `"sum"` is K
            times that, as in the paper.
        prior: p.

    Note:
        Where all signs agree nothing is drawn; in expectation, with one update each way, the larger
        one wins as often as its share is large.

    Source:
        Chen et al. 2020, "Just Pick a Sign: Optimizing Deep Multitask Models with Gradient Sign
        Dropout", Algorithm 1, without leaks, as in TorchJD.

    Departs from:
        the paper, whose g_i are the tasks' gradients at the activations of one layer, times the
        signs of these activations, where they are updates of all weights here; whose result is the
        sum (`reduction="sum"`); and whose leaks, shares of g_i that pass whatever their sign, are 0
        here.

    Example:
        >>> g = torch.tensor([[1.0, -2.0, 0.0], [3.0, -4.0, 0.0]])
        >>> rule = GradDrop()
        >>> rule(g, {}, rule.init(2, 3))[0]
        tensor([ 2., -3.,  0.])
    """

    reduction: Literal["sum", "mean"] = "mean"
    prior: Weighted = Mean("uniform")

    def reduce(self, rows: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        scale = len(rows) if self.reduction == "sum" else 1
        weights = table["prior"].to(rows)[:, None]
        draws = torch.rand(rows.shape[1], generator=drawing(generator)).to(rows)
        vector = torch.empty_like(rows[0])
        for block, u in column_blocks(rows):
            parts = weights * u
            plus, minus = parts.clamp(min=0).sum(0), parts.clamp(max=0).sum(0)
            positive = draws[block] * (plus - minus) < plus
            vector[block] = torch.where(positive, plus, minus)
        return vector * scale, state
