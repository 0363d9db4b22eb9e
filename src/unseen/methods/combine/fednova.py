"""FedNova: updates divided by what the clients' steps accumulate, then averaged."""

from dataclasses import dataclass
from typing import Literal

import torch

from unseen.core import Draws, RuleState, Table, Weighted, WithState
from unseen.methods.combine.mean import Mean


@dataclass(frozen=True)
class NormalizedAveraging(Weighted):
    """The mean of the clients' mean steps, times the mean number of steps.

        τ_eff Σ_i p_i u_i / ‖a_i‖₁

    ‖a_i‖₁: `accumulated`, the sum of the factors with which client i's gradients entered its update
    u_i; the number of steps for plain SGD.

    Attributes:
        effective: τ_eff = Σ_i p_i ‖a_i‖₁ (`"norm"`, the paper) or Σ_i p_i τ_i (`"steps"`, which the
            released code takes for proximal local training).
        prior: p.

    Note:
        The weights sum to 1 only where all ‖a_i‖₁ are equal, and to more elsewhere.

    Source:
        Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
        Optimization", §4, Eqs. 6-7.

    Example:
        >>> rule = NormalizedAveraging()
        >>> u, table = torch.tensor([[1.0], [9.0]]), {"accumulated": torch.tensor([1.0, 3.0])}
        >>> rule(u, table, rule.init(2, 1))[0]  # 2 * (1 / 2 + 3 / 2)
        tensor([4.])
    """

    effective: Literal["norm", "steps"] = "norm"
    prior: Weighted = Mean("uniform")
    averages = False

    def all_needs(self) -> tuple[str, ...]:
        names = ("accumulated",) if self.effective == "norm" else ("accumulated", "steps")
        return tuple(dict.fromkeys((*names, *super().all_needs())))

    def share(self, table: Table, state: RuleState, generator: Draws = None) -> WithState:
        """Return the weights [K]; 0 for a client that took no step."""
        p, norm = table["prior"], table["accumulated"]
        tau = (p * (norm if self.effective == "norm" else table["steps"])).sum()
        return torch.where(norm > 0, tau * p / norm.clamp_min(1e-300), 0), state
