"""FedGloSS on the client: training begins uphill of the received model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Local, Memory, Model, Reply, Turn
from unseen.core.parts import Wrapper
from unseen.ranges import NotNegative

#: The inbox entry of the server's model of the round before.
BEFORE = "before"


@dataclass(frozen=True)
class Ahead(Wrapper):
    """Another local that begins at x + ε, ε = ρ (x₋ − x) / ‖x₋ − x‖; ε is taken off at the end.

    x₋: the server's model of the round before, so that ε points up along its last step; 0 where
    there is none. What the other local finds in the inbox as `model` is x + ε.

    Attributes:
        inner: The other local.
        radius: ρ.
    """

    inner: Local
    radius: NotNegative

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        step = uphill(inbox["model"], inbox[BEFORE], self.radius)
        model.vector.add_(step)
        reply, memory = self.inner(
            model, {**inbox, "model": model.vector.clone()}, client, memory, turn
        )
        model.vector.sub_(step)
        return reply, memory


def uphill(model: Tensor, before: Tensor, radius: float) -> Tensor:
    """Return the step [P] of this length from the model back to the one before, or none."""
    back = before - model
    length = back.norm()
    return back * torch.where(length > 0, radius / length, 0)
