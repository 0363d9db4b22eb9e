"""A bound on the length of updates, by what was usual in recent rounds."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from unseen.core import Draws, Gram, Layout, RuleState, Table, Weighted, WithState
from unseen.methods.combine.mean import Mean
from unseen.ranges import Count, Range, uniform


@dataclass(frozen=True)
class NormBound(Gram, named="bounded"):
    """Σ_i p_i min(1, b / ‖u_i‖) u_i with b = factor · median of the last rounds' median lengths.

    One client cannot pull the model's weights further than b, whatever it sends. The median of a
    round is the lower one of two, so that half of the clients cannot raise it.

    Attributes:
        factor: How many times the median an update may be long.
        window: Over how many rounds, this one included, the median of medians is taken.
        longer: What becomes of a longer update: `clip` shortens it to b; `refuse` gives it weight 0
            and spreads its weight over the others.
        prior: p.

    Note:
        BatchNorm statistics are combined with the same weights and have no bound of their own,
        since they are not in the units of weights: where a network has them, `median` and
        `trimmed-mean` bound them too.

    Source:
        Sun et al. 2019, section 4.2 (norm thresholding of updates).

    Departs from:
        the paper, whose threshold is a constant that somebody has to know.

    Example:
        >>> u = torch.diag(torch.tensor([1.0, 1.0, 1e6], dtype=torch.float64))
        >>> rule = NormBound(factor=3.0)
        >>> (rule(u, {}, rule.init(3, 3))[2] * 3).tolist()
        [1.0, 1.0, 3e-06]
    """

    outvotes: ClassVar[bool] = True
    factor: Annotated[float, Range(1), uniform(1.0, 5.0)] = 3.0
    window: Count = 5
    longer: Literal["clip", "refuse"] = "clip"
    prior: Weighted = Mean("uniform")

    def own_state(self, K: int, P: int, layout: Layout | None) -> RuleState:
        """Return the medians of recent rounds, none yet."""
        return {"medians": torch.zeros(0, dtype=torch.float64)}

    def mix(self, gram: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        """Return the weights [K], which sum to at most those of the prior."""
        p, lengths = table["prior"], gram.diagonal().clamp(min=0).sqrt()
        medians = torch.cat([state["medians"].to(lengths), lengths.median()[None]])[-self.window :]
        bound = self.factor * medians.median()
        longer = lengths > bound
        if self.longer == "clip":
            weights = torch.where(longer, p * bound / lengths.clamp(min=bound), p)
        else:
            weights = torch.where(longer, torch.zeros_like(p), p)
            weights = weights * (p.sum() / weights.sum()) if bool(weights.sum() > 0) else p * 0
        return weights, {**state, "medians": medians.cpu()}
