"""How a combined vector enters the inbox: added, put in its place, or by an optimiser."""

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from unseen.core.optimiser import SGD, Optimiser
from unseen.core.rows import RuleState, WithState
from unseen.core.types import Table
from unseen.ranges import Checked, Share


class Apply(Protocol):
    """How a combined vector enters the inbox: (old, new, state, table) -> (entry, state).

    Args:
        old: The inbox entry [P]; nothing is ever written into it.
        new: What the rule made of the replies [P].
        state: What the step remembers from round to round.
        table: The scalars of those present.

    Returns:
        The new entry, which shares no memory with the old one, and the new state.
    """

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState: ...


@dataclass(frozen=True)
class Add:
    """x ← x + u, the server of FedAvg on updates."""

    at_sites = True

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        return old + new, state


@dataclass(frozen=True)
class Replace:
    """x ← u."""

    at_sites = True

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        return new, state


@dataclass(frozen=True)
class Put:
    """Row i of `old` [N, P] becomes the reply of client i of the roster; absent rows stay.

    Note:
        `new` [K, P] holds the participants' rows in the order of the table.
    """

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        collected = old.clone()
        collected[table["client"].long().to(old.device)] = new
        return collected, state


@dataclass(frozen=True)
class MovingAverage(Checked):
    """x ← β x + (1 − β) u.

    Attributes:
        decay: β in [0, 1].
    """

    at_sites = True

    decay: Share

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        return self.decay * old + (1 - self.decay) * new, state


@dataclass(frozen=True)
class Descend:
    """A step of a server optimiser whose gradient is −u; with SGD of rate 1 it is `Add`.

    Attributes:
        optimiser: The server's optimiser. `Adam` is torch's, with bias correction and eps 1e-8;
            FedAdam, FedYogi and FedAdagrad of the paper's Algorithm 2 are `FedOpt`.

    Source:
        Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 1.
    """

    optimiser: Optimiser = field(default_factory=lambda: SGD(lr=1.0))

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        vector = old.clone()
        moments = {name: value.clone() for name, value in state.items()}
        return vector, dict(self.optimiser.step(vector, -new, moments, self.optimiser.lr))
