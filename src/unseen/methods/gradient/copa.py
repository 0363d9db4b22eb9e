"""COPA: a body under its own head and the frozen heads of all others; and their ensemble."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core import Client, Inbox, Local, Memory, Model, Reply, Turn
from unseen.core.losses import Loss, LossFunction
from unseen.core.parts import Wrapper
from unseen.methods.gradient.heads import Head, loss_of
from unseen.ranges import Checked

#: The slot and inbox entry of all heads [N, Ph], one row per client of the roster.
HEADS = "heads"


def first_head(name: str | None, model: Model) -> Tensor:
    """Return one client's row before round 0: the head that the model starts with."""
    return model.vector[Head.of(model, name).part].clone()


@dataclass(frozen=True)
class Collaboration(Checked, named="copa"):
    """ℓ(h_j(f), y) over all N heads, f = F(x): the others' heads h_j as received, frozen.

    Attributes:
        loss: ℓ.
        scale: `"mean"`, the body F descends (1/N) Σ_j ℓ(h_j(f), y) and the own head h_k its own
            loss, so that both take steps as long as those of a single loss; `"sum"`, all descend
            Σ_j ℓ(h_j(f), y), which is N times the rate for the body. The value is the mean or the
            sum.
        head: the layer's name.
    """

    loss: Loss
    scale: Literal["mean", "sum"] = "mean"
    head: str | None = None

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> LossFunction:
        inner = self.loss.open(model, inbox, client, memory, turn)
        head, rows = Head.of(model, self.head), inbox[HEADS]
        others = rows[torch.arange(len(rows), device=rows.device) != turn.index]
        M = len(others)

        def loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
            features, outputs = head.run(model, x)
            value = loss_of(inner, outputs, x, y)
            if not M:
                return value
            # A mean over all pairs of an example and a head is the mean of the heads' losses.
            stacked = head.apply(others, features).flatten(0, 1)
            shared = loss_of(inner, stacked, x, y.repeat_interleave(M))
            if self.scale == "sum":
                return value + M * shared
            # Takes from the body, and not from the own head, what makes its share 1 / (M + 1).
            frozen = loss_of(inner, head.frozen(features), x, y)
            return value + M / (M + 1) * (shared - frozen)

        return loss


@dataclass(frozen=True)
class OwnHead(Wrapper):
    """Another local that works with the client's own head, which it sends as a separate row.

    Note:
        In the vector the head is put back as received: the model's update is 0 there. A client that
        is not on the roster has none.

        What the other local finds in the inbox as `model` is the received body under the client's
        own head, so that a proximal term holds each client near its own.
    """

    outermost: ClassVar[bool] = True

    inner: Local
    head: str | None = None

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        part = Head.of(model, self.head).part
        if turn.index >= 0:
            model.vector[part] = inbox[HEADS][turn.index]
        received = {**inbox, "model": model.vector.clone()}
        reply, memory = self.inner(model, received, client, memory, turn)
        row = model.vector[part].clone()
        model.vector[part] = inbox["model"][part]
        return Reply({**reply.rows, HEADS: row}, reply.scalars), memory


@dataclass(frozen=True)
class Ensemble(Checked, named="copa"):
    """The prediction of all heads on the shared features, as outputs that any loss can read.

    Attributes:
        of: `"probabilities"`, log (1/N) Σ_j softmax(h_j(f)), or for one logit the log-odds of the
            mean probability; or `"logits"`, (1/N) Σ_j h_j(f).
        numbers: regression, where it is the latter.
        head: the layer's name.
    """

    of: Literal["probabilities", "logits"] = "probabilities"
    numbers: bool = False
    head: str | None = None

    def __call__(self, model: Model, inbox: Inbox, x: Tensor) -> Tensor:
        head = Head.of(model, self.head)
        features, _ = head.run(model, x)
        z = head.apply(inbox[HEADS], features)
        if self.numbers or self.of == "logits":
            return z.mean(1)
        if z.shape[-1] == 1:
            return F.logsigmoid(z).logsumexp(1) - F.logsigmoid(-z).logsumexp(1)
        return z.log_softmax(-1).logsumexp(1) - math.log(z.shape[1])
