"""FedDyn on the client: a proximal term, and a linear one that its last rounds have set."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Local, Memory, Model, Reply, RuleState, Turn, WithState
from unseen.core.parts import Wrapper
from unseen.core.types import Table
from unseen.methods.gradient.backprop import Batched, Gradient, Step
from unseen.ranges import Checked, Positive, log

#: The client's own ∇L_k at its last model, in its memory.
OWN = "feddyn.gradient"


@dataclass(frozen=True)
class Dynamic(Batched, named="feddyn"):
    """g ← g − d_k + α (w − x), the gradient of F_k(w) − ⟨d_k, w⟩ + (α/2) ‖w − x‖².

    Attributes:
        inner: the gradient of F_k.
        alpha: α > 0; 0.01 in the released example.

    Source:
        Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", Eq. 1.
    """

    clips_per_example = True
    stackable = True

    inner: Gradient
    alpha: Annotated[Positive, log(0.001, 1)] = 0.01

    @property
    def pull(self) -> float:
        return self.alpha

    def constant(self, inbox: Inbox, memory: Memory) -> Tensor | None:
        return -memory[OWN] if OWN in memory else None

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:
        received, own = inbox["model"], memory.get(OWN)

        def step(x: Tensor, y: Tensor) -> Tensor:
            value = inner(x, y)
            model.gradient.add_(model.vector - received, alpha=self.alpha)
            if own is not None:
                model.gradient.sub_(own)
            return value

        return step


@dataclass(frozen=True)
class WithGradient(Wrapper):
    """Another local after which d_k ← d_k − α (w_k − x), ∇F_k(w_k) where w_k is the minimum.

    Attributes:
        inner: The local that trains.
        alpha: α.
    """

    clips_per_example = True
    stackable = True

    inner: Local
    alpha: float

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        own = memory.get(OWN, torch.zeros_like(model.vector))
        reply, memory = self.inner(model, inbox, client, memory, turn)
        fresh = own - self.alpha * (model.vector - inbox["model"])
        return reply, {**memory, OWN: fresh}


@dataclass(frozen=True)
class Corrected(Checked):
    """x ← x + u − s,   s ← s − (|S|/N) u, for the combined update u of those present, S.

    s = h/α of the paper, so that x + u is the mean of the trained models, and s is minus the sum of
    all that clients moved, over N: what their linear terms hold them back by.

    Attributes:
        clients: N, the size of the roster; 0: it is not known yet.
    """

    clients: int = 0

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        present = len(table["client"])
        shift = state.get("shift", torch.zeros_like(new)) - new * (present / self.clients)
        return old + new - shift, {"shift": shift}
