"""Intercepts of the sites: each has its own bias in the last layer, and a new one the mean."""

from dataclasses import dataclass
from typing import ClassVar

from unseen.core import Client, Inbox, Local, Memory, Model, Reply, Turn
from unseen.core.parts import Wrapper
from unseen.errors import UnseenError
from unseen.methods.gradient.heads import Head

OWN = "intercepts.own"


@dataclass(frozen=True)
class OwnIntercepts(Wrapper):
    """Another local under the client's own bias of the last layer.

    The bias is what differs between sites where outcomes are more frequent at one than at another.
    What the server makes of the rows is the mean of the sites' biases, which a new site uses until
    its own is known.

    Attributes:
        inner: the other local.
        head: the last layer's name; None: the last linear one.
    """

    outermost: ClassVar[bool] = True

    inner: Local
    head: str | None = None

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        part = bias_of(model, self.head)
        if OWN in memory:
            model.vector[part] = memory[OWN].to(model.vector)
        rest: Memory = {name: value for name, value in memory.items() if name != OWN}
        received = {**inbox, "model": model.vector.clone()}
        reply, rest = self.inner(model, received, client, rest, turn)
        return reply, {**rest, OWN: model.vector[part].clone()}


def bias_of(model: Model, name: str | None) -> slice:
    """Return where the bias of the last layer lies in the model's vector."""
    head = Head.of(model, name)
    outputs = head.layer.out_features
    if head.layer.bias is None:
        raise UnseenError(
            f"intercepts are the bias of the last layer, and {head.name!r} has none.",
            remedy="Build the model with a bias there, or name another layer.",
        )
    return slice(head.part.stop - outputs, head.part.stop)
