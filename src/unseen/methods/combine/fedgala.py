"""FedGaLA's global alignment: layer by layer, weights by the cosine to the average update."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from unseen.core import Draws, Gram, RuleState, Table, Weighted, WithState
from unseen.core.vector import Blocks
from unseen.methods.combine.mean import Mean
from unseen.ranges import Natural, whole


@dataclass(frozen=True)
class GlobalAlignment(Gram):
    """A mean of each layer whose weights grow with an update's cosine to the mean.

        v = Σ_i a_i u_i,    a_i ← p_i (1 + cos(u_i, v))/2,  divided by their sum

    `iterations` times, beginning with a = p.

    Attributes:
        iterations: 3 as released; 0 is the mean.
        blocks: what a layer is: a tensor as in the released code, a module or the whole vector.
        prior: p.

    Note:
        The cosines follow from the inner products: <u_i, v> = (G a)_i and ‖v‖² = aᵀ G a. One with 0
        is 0, as in torch.

    Source:
        Pourpanah et al. 2025, "Federated Unsupervised Domain Generalization using Global and Local
        Alignment of Gradients", global alignment.

    Departs from:
        the released code, which leaves p out of the final sum, takes cosines of models where there
        are no updates yet (the first round), and, for BatchNorm, treats statistics as updates.

    Example:
        >>> g = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> rule = GlobalAlignment(iterations=1, blocks="whole")
        >>> rule(g, {}, rule.init(3, 2))[2]
        tensor([0.3618, 0.3618, 0.2764], dtype=torch.float64)
    """

    iterations: Annotated[Natural, whole(1, 5)] = 3
    blocks: Blocks = "tensor"
    prior: Weighted = Mean("uniform")

    def mix(self, gram: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        p = table["prior"]
        largest = float(gram.diagonal().max())
        if largest == 0:
            return p, state
        gram, a = gram / largest, p  # the rule does not feel the scale
        norms = gram.diagonal().sqrt()
        for _ in range(self.iterations):
            inner = gram @ a
            lengths = norms * (a @ inner).clamp(min=0).sqrt()
            cosines = torch.where(lengths > 0, inner / lengths, 0).clamp(-1, 1)
            a = p * (1 + cosines)
            a = a / a.sum()
        return a, state
