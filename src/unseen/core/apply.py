"""How a combined vector enters the inbox: added, put in its place, or by an optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from unseen.core.optimiser import SGD, Optimiser
from unseen.core.types import Table
from unseen.errors import number


class Apply(Protocol):
    """How a combined vector enters the inbox: (old, new, state, table) -> (entry, state).

    `new` [P] is what the rule made of the replies; nothing is ever written into `old` [P].
    """

    def __call__(
        self, old: Tensor, new: Tensor, state: Mapping[str, Any], table: Table
    ) -> tuple[Tensor, Mapping[str, Any]]: ...


@dataclass(frozen=True)
class Add:
    """x ← x + u, the server of FedAvg on updates."""

    def __call__(
        self, old: Tensor, new: Tensor, state: Mapping[str, Any], table: Table
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Return the sum, a fresh vector."""
        return old + new, state


@dataclass(frozen=True)
class Replace:
    """x ← u."""

    def __call__(
        self, old: Tensor, new: Tensor, state: Mapping[str, Any], table: Table
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Return the combined vector itself."""
        return new, state


@dataclass(frozen=True)
class Put:
    """Row i of `old` [N, P] becomes the reply of client i of the roster; absent rows stay.

    `new` [K, P] holds the participants' rows in the order of the table.
    """

    def __call__(
        self, old: Tensor, new: Tensor, state: Mapping[str, Any], table: Table
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Return a fresh matrix."""
        collected = old.clone()
        collected[table["client"].long().to(old.device)] = new
        return collected, state


@dataclass(frozen=True)
class MovingAverage:
    """x ← β x + (1 − β) u.

    Attributes:
        decay: β in [0, 1].
    """

    decay: float

    def __post_init__(self) -> None:
        number("MovingAverage(decay)", self.decay, 0, 1)

    def __call__(
        self, old: Tensor, new: Tensor, state: Mapping[str, Any], table: Table
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Return the average, a fresh vector."""
        return self.decay * old + (1 - self.decay) * new, state


@dataclass(frozen=True)
class Descend:
    """A step of a server optimiser whose gradient is −u.

    With SGD of rate 1 it is `Add`. `Adam` is torch's, with bias correction and eps 1e-8; FedAdam,
    FedYogi and FedAdagrad of the paper's Algorithm 2 are `FedOpt`.

    Attributes:
        optimiser: The server's optimiser.

    Source:
        Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 1.
    """

    optimiser: Optimiser = field(default_factory=lambda: SGD(lr=1.0))

    def __call__(
        self, old: Tensor, new: Tensor, state: Mapping[str, Any], table: Table
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Return the vector after the step, a fresh one, and copies of the moments."""
        vector = old.clone()
        moments = {name: value.clone() for name, value in state.items()}
        return vector, dict(self.optimiser.step(vector, -new, moments, self.optimiser.lr))
