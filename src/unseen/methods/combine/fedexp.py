"""FedExP: the mean of the updates, as far as their spread allows."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from unseen.core import Draws, Gram, RuleState, Table, Weighted, WithState
from unseen.methods.combine.mean import Mean
from unseen.ranges import Positive, log


@dataclass(frozen=True)
class FedExP(Gram, named="exp"):
    """η Σ_i p_i u_i with η = max(1, Σ_i p_i ‖u_i‖² / (2 (‖Σ_i p_i u_i‖² + ε))).

    The more the updates differ, the longer the step: a projection onto the clients' sets of good
    models, extrapolated.

    Attributes:
        eps: ε > 0; the paper takes 0.001 for its nets.
        prior: p.

    Source:
        Jhunjhunwala et al. 2023, Eq. 7 and Algorithm 1.

    Departs from:
        the paper, whose results are of the mean of the last two iterates.

    Example:
        >>> u = torch.eye(2, dtype=torch.float64)
        >>> rule = FedExP(eps=1e-9)
        >>> rule(u, {}, rule.init(2, 2))[2].round(decimals=6)
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    spread: ClassVar[bool] = True

    eps: Annotated[Positive, log(0.0001, 0.1)] = 1e-3
    prior: Weighted = Mean("uniform")

    def mix(self, gram: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        """Return the weights η p [K], which sum to η."""
        p = table["prior"]
        spread, length = p @ gram.diagonal(), p @ gram @ p
        return torch.clamp(spread / (2 * (length + self.eps)), min=1.0) * p, state
