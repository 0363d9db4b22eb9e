"""Generalization Adjustment: weights that follow the generalization gaps."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from unseen.core import Draws, Layout, RuleState, Table, Weighted, WithState
from unseen.methods.combine.mean import Mean
from unseen.ranges import Share, log


@dataclass(frozen=True)
class GeneralizationAdjustment(Weighted):
    """A mean whose weights rise where the average generalizes worse than a client's own model.

    G_i is the loss of the received model on client i minus that of the client's own model after
    its last local training. Before round r's updates are combined,

        centred:    a_i ← a_i + d^r (G_i − μ) / max_j |G_j − μ|     clipped to [0, 1]
        paper:      a_i ← a_i + d^r (G_i − μ) / max_j (G_j − μ)     clipped at 0; Eq. 3
        reference:  a_i ← a_i + d^r/3 · G_i / max_j |G_j|           clipped to [0, 1]; as released

    with μ = mean G. Then the weights of those present are rescaled to the total they had, and
    returned so that they sum to 1.

    Attributes:
        step: d in [0, 1].
        variant: which of the three. `centred` is the default: without an absolute value Eq. 3 can
            move one very negative gap by far more than d^r, which the text says it cannot.
        decay: d^r = (1 − r/R) d, the released loop's two rounds late, 1 − (r − 2)/R; else d.
        prior: what the weights start from; the paper: 1/K.

    Note:
        Clients whose gap is not known yet (`gap_known` = 0) do not move; gaps that are all equal
        move nothing, where Eq. 3 divides by 0; a weight at 0 grows again when its gap does.

    Source:
        Zhang et al. 2023, "Federated Domain Generalization with Generalization Adjustment", Eq. 3
        and Algorithm 1.

    Example:
        >>> rule = GeneralizationAdjustment(step=0.1)
        >>> table = {"gap": torch.tensor([0.3, 0.1, 0.2]), "gap_known": torch.ones(3)}
        >>> rule.weights(table, rule.init(3, 1))[0]
        tensor([0.4333, 0.2333, 0.3333], dtype=torch.float64)
    """

    adapts: ClassVar[bool] = True
    step: Annotated[Share, log(0.01, 0.5)] = 0.05
    variant: Literal["centred", "paper", "reference"] = "centred"
    decay: bool = True
    prior: Weighted = Mean("uniform")
    needs = ("gap", "gap_known")

    def own_state(self, K: int, P: int, layout: Layout | None) -> RuleState:
        """Return the masses K a_i, so that the uniform start is exactly 1, and who has started."""
        return {
            "mass": torch.ones(K, dtype=torch.float64),
            "started": torch.zeros(K, dtype=torch.bool),
        }

    def share(self, table: Table, state: RuleState, generator: Draws = None) -> WithState:
        client = table["client"].long()
        roster = len(state["mass"])
        before = _started(state["mass"][client], state["started"][client], table["prior"])
        has_gap = table["gap_known"] > 0
        move = torch.zeros_like(before)
        move[has_gap] = roster * self._step(table) * self._direction(table["gap"][has_gap])
        high = roster if self.variant != "paper" else None
        after = (before + move).clamp(0, high)
        # Only clients of weight 0 may have come: they share the round and stay at 0.
        after = after * (before.sum() / after.sum()) if bool(after.any()) else before
        weights = after / after.sum() if bool(after.any()) else torch.ones_like(after) / len(after)
        mass, started = state["mass"].clone(), state["started"].clone()
        mass[client], started[client] = after, True
        return weights, {**state, "mass": mass, "started": started}

    def _direction(self, gap: Tensor) -> Tensor:
        """Return where the weights of the known gaps move, for a step of 1."""
        largest = gap.abs().max() if len(gap) else torch.tensor(0.0)
        if float(largest) == 0:
            return torch.zeros_like(gap)
        gap = gap / largest  # the rule does not feel the scale; the mean must not overflow
        if self.variant == "reference":
            return gap / 3
        centred = gap - gap.mean()
        largest = centred.max() if self.variant == "paper" else centred.abs().max()
        # Equal gaps, or gaps whose differences are below rounding, have no direction.
        equal = float(largest) <= 0 or bool((gap == gap[0]).all())
        return torch.zeros_like(gap) if equal else centred / largest

    def _step(self, table: Table) -> float:
        if not self.decay or "progress" not in table:
            return self.step
        factor = 1 - float(table["progress"][0])
        if self.variant == "reference" and "rounds" in table:
            factor += 2 / float(table["rounds"][0])
        return self.step * factor


def _started(mass: Tensor, started: Tensor, prior: Tensor) -> Tensor:
    """Return the masses; those of newcomers follow the prior and sum to their number."""
    new = ~started
    if not bool(new.any()) or float(prior[new].max()) == 0:
        return mass
    relative = prior[new] / prior[new].max()
    mass = mass.clone()
    mass[new] = relative * (float(new.sum()) / float(relative.sum()))
    return mass
