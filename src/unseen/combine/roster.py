"""The mean over the whole roster of what those present sent, the absent counting as 0."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.combine.mean import Mean
from unseen.core import Layout, RuleState, Table, Weighted


@dataclass(frozen=True)
class RosterMean(Weighted):
    """(|S|/N) Σ_{i∈S} p_i u_i, S being those present of a roster of N.

    With p_i = 1/|S| it is (1/N) Σ_{i∈S} u_i, so that what each client adds to its own part of a
    mean over the roster is added to that mean.

    Attributes:
        prior: p.

    Source:
        Karimireddy et al. 2020, "SCAFFOLD", Algorithm 1, line 17.

    Example:
        >>> rule = RosterMean()
        >>> rule(torch.tensor([[2.0], [4.0]]), {"client": torch.tensor([0, 3])}, rule.init(4, 1))[0]
        tensor([1.5000])
    """

    prior: Weighted = Mean("uniform")
    averages = False

    def own_state(self, K: int, P: int, layout: Layout | None) -> RuleState:
        """Return the size N of the roster."""
        return {"roster": K}

    def share(
        self, table: Table, state: RuleState, generator: torch.Generator | None = None
    ) -> tuple[Tensor, RuleState]:
        """Return the weights [K], which sum to |S|/N."""
        return table["prior"] * (len(table["client"]) / state["roster"]), state
