"""SCAFFOLD on the client: control variates that keep local steps from drifting."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Local, Memory, Model, Reply, Turn
from unseen.core.parts import Wrapper, innermost
from unseen.methods.gradient.backprop import Batched, Gradient, Step
from unseen.methods.local.accumulation import accumulated, rate
from unseen.methods.local.train import whole_gradient

#: The slot and inbox entry of c, and the client's own c_i in its memory.
CONTROL, OWN = "control", "scaffold.control"
#: The slot that takes the place of `control` where the clients' weights move.
RENEWED = "renewed"


@dataclass(frozen=True)
class Controlled(Batched):
    """g ← g − c_i + c; c_i estimates ∇F_i and c their mean, and both are 0 at first.

    Attributes:
        inner: The gradient that is corrected.

    Source:
        Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        Algorithm 1, line 10.
    """

    clips_per_example = True
    stackable = True

    inner: Gradient

    def constant(self, inbox: Inbox, memory: Memory) -> Tensor:
        return inbox[CONTROL] - memory[OWN] if OWN in memory else inbox[CONTROL]

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:
        correction = self.constant(inbox, memory)

        def step(x: Tensor, y: Tensor) -> Tensor:
            value = inner(x, y)
            model.gradient.add_(correction)
            return value

        return step


@dataclass(frozen=True)
class Controls(Wrapper):
    """Another local around which c_i is renewed; its reply has c_i⁺ − c_i and c_i⁺ − c.

        option 1:  c_i⁺ = ∇F_i(x)                                        one more pass over the data
        option 2:  c_i⁺ = c_i − c + (x − y_i − ηB b₀) / (ηA)

    Note:
        x: received; y_i: trained; A, B: see `unseen.methods.local.accumulation`; b₀: the momentum
        the round
        began with, if the client keeps its optimiser; η: the rate as scheduled. The two differences
        are the rows `control` and `renewed`, of which one is sent.

    Attributes:
        inner: The local that trains.
        option: 1 is in training mode, over the whole split; BatchNorm statistics stay as they were.
            2 is, for plain SGD with A = K and B = 0, line 12 as printed; in general it is the mean
            of the round's gradients, each weighed as the optimiser weighed it.
    """

    clips_per_example = True
    stackable = True

    inner: Local
    option: Literal[1, 2] = 2

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        own = memory.get(OWN, torch.zeros_like(model.vector))
        fresh = self._gradient(model, inbox, client, memory, turn) if self.option == 1 else None
        first = memory.get("optimiser.momentum")
        reply, memory = self.inner(model, inbox, client, memory, turn)
        if fresh is None:
            fresh = self._mean_gradient(model, inbox, own, first, int(reply.scalars["steps"]), turn)
        rows = {**reply.rows, CONTROL: fresh - own, RENEWED: fresh - inbox[CONTROL]}
        return Reply(rows, reply.scalars), {**memory, OWN: fresh}

    def _mean_gradient(
        self, model: Model, inbox: Inbox, own: Tensor, first: Tensor | None, steps: int, turn: Turn
    ) -> Tensor:
        """Return c_i⁺ by option 2; c_i of a client that took no step."""
        A, B = accumulated(self.inner, steps, turn)
        if not A:
            return own
        moved = inbox["model"] - model.vector
        fresh = moved / (rate(innermost(self.inner).training, turn) * A)
        fresh += own - inbox[CONTROL]
        if first is not None:
            fresh -= first * (B / A)
        return fresh

    def _gradient(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Tensor:
        """Return ∇F_i(x) by what the local descends, without the correction."""
        gradient: Gradient = innermost(self.inner).gradient
        inbox = {**inbox, CONTROL: torch.zeros_like(model.vector)}
        memory = {name: value for name, value in memory.items() if name != OWN}
        whole_gradient(gradient, model, inbox, client, memory, turn, aside=True)
        return model.gradient.clone()
