"""ARFL: weights that fall with a client's loss, and vanish where it is far above the others'."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from unseen.core import Draws, Layout, RuleState, Table, Weighted, WithState
from unseen.errors import UnseenError
from unseen.ranges import Positive, log


@dataclass(frozen=True)
class AutoWeighted(Weighted, named="arfl"):
    """A mean whose weights fall with a client's loss, and vanish where it is far above the others'.

        w_i ∝ n_i max(η − L_i, 0), which minimises Σ_i α_i L_i + (Λ/2) Σ_i α_i²/n_i over weights α

    L_i (`received_loss`): the loss of the received model on client i's training split; n_i: its
    `examples`; Λ = reg_weight · Σ_i n_i. η solves Σ_i n_i max(η − L_i, 0) = Λ.

    Attributes:
        reg_weight: > 0; large values tend to weights by examples, small ones to the client of the
            lowest loss alone. 1 is the released code's default; GA's paper does not give its own.

    Note:
        The problem is that of all clients ever seen, each with its last known loss; the weights of
        those present are rescaled to sum to 1. Where it leaves none of them a weight, the problem
        of those present alone is solved (the released code draws another sample until one has
        weight).

    Source:
        Li, Ngai, Ye, Voigt 2022, "Auto-weighted Robust Federated Learning with Corrupted Data
        Sources", the step for α of the blockwise minimisation; as released.

    Example:
        >>> rule = AutoWeighted(reg_weight=0.5)
        >>> table = {"received_loss": torch.tensor([0.0, 0.5, 9.0]), "examples": torch.ones(3)}
        >>> rule.weights(table, rule.init(3, 1))[0]  # η = (0 + 0.5 + 1.5) / 2
        tensor([0.6667, 0.3333, 0.0000], dtype=torch.float64)
    """

    adapts: ClassVar[bool] = True
    reg_weight: Annotated[Positive, log(0.01, 100)] = 1.0
    needs = ("received_loss", "examples")

    def own_state(self, K: int, P: int, layout: Layout | None) -> RuleState:
        """Return the last loss and the size of each client of the roster; 0: never seen."""
        zeros = torch.zeros(K, dtype=torch.float64)
        return {"loss": zeros, "examples": zeros.clone()}

    def share(self, table: Table, state: RuleState, generator: Draws = None) -> WithState:
        client = table["client"].long()
        loss, examples = state["loss"].clone(), state["examples"].clone()
        loss[client], examples[client] = table["received_loss"], table["examples"]
        if not bool((table["examples"] > 0).all()):
            raise UnseenError(f"ARFL needs counts of examples > 0; found {table['examples']}.")
        weights = allocation(loss, examples, self.reg_weight)[client]
        if float(weights.sum()) <= 0:
            weights = allocation(loss[client], examples[client], self.reg_weight)
        return weights / weights.sum(), {**state, "loss": loss, "examples": examples}


def allocation(loss: Tensor, n: Tensor, reg_weight: float) -> Tensor:
    """Return the minimiser [K] on the simplex; clients with n_i = 0 have no weight."""
    order = torch.argsort(torch.where(n > 0, loss, torch.inf), stable=True)
    order = order[n[order] > 0]
    excess, size = loss - loss[order[0]], n[order].cumsum(0)  # the problem knows differences only
    Lambda = reg_weight * size[-1]
    eta = ((n * excess)[order].cumsum(0) + Lambda) / size
    # Each one is let in while it lies below the η of those up to it.
    last = int((eta >= excess[order]).nonzero()[-1])
    return n * (eta[last] - excess).clamp_min(0) / Lambda
