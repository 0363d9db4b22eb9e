"""gPerXAN on the client: its own BatchNorm, and the received head as a guide."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core import Client, Inbox, Layout, Local, Memory, Model, Reply, Turn
from unseen.core.losses import Loss, LossFunction
from unseen.core.parts import Wrapper
from unseen.methods.gradient.heads import Head, loss_of
from unseen.methods.images.norms import Assembled
from unseen.ranges import Checked, NotNegative, log

#: A client's own BatchNorm weights and statistics, in its memory.
WEIGHTS, STATISTICS = "gperxan.weights", "gperxan.statistics"
#: What a BatchNorm layer holds.
TENSORS = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True)
class Guided(Checked, named="gperxan"):
    """ℓ(h(f), y) + λ ℓ(h₀(f), y), f = F(x): h₀ is the head as received, frozen.

    Attributes:
        loss: ℓ.
        reg: λ ≥ 0; 0.5 as released. The two losses are added up: while h is near h₀ the body's
            gradient is 1 + λ times FedAvg's, which under SGD is a learning rate 1 + λ times as
            large.
        head: the layer's name.

    Source:
        Le et al. 2024, "Efficiently Assemble Normalization Layers and Regularization for Federated
        Domain Generalization".
    """

    loss: Loss
    reg: Annotated[NotNegative, log(0.01, 10)] = 0.5
    head: str | None = None

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> LossFunction:
        inner = self.loss.open(model, inbox, client, memory, turn)
        head = Head.of(model, self.head)
        received = inbox["model"][head.part][None]

        def loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
            features, outputs = head.run(model, x)
            guide = loss_of(inner, head.apply(received, features)[:, 0], x, y)
            return loss_of(inner, outputs, x, y) + self.reg * guide

        return loss if self.reg else inner


@dataclass(frozen=True)
class OwnNorms(Wrapper, named="gperxan"):
    """Another local that starts from the received model under the client's own BatchNorm.

    Attributes:
        inner: the local that trains.
        personal: `"batchnorm"` keeps BatchNorm's tensors alone; `"released"` also s_b's scalar, as
            the released code does since its name contains that of the layer.

    Note:
        What the client sends is its whole model, so that the server's mean holds the mean of the
        clients' BatchNorm; what it keeps is its own. A client that diverged keeps what it had.
    """

    outermost: ClassVar[bool] = True

    inner: Local
    personal: Literal["batchnorm", "released"] = "batchnorm"

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        names = self.names(model)
        weights = mask(model.layout, names, model.vector)
        statistics = mask(model.buffer_layout, names, model.buffers)
        if WEIGHTS in memory:
            model.vector[weights] = memory[WEIGHTS]
            model.buffers[statistics] = memory[STATISTICS]
        received = {**inbox, "model": model.vector.clone(), "buffers": model.buffers.clone()}
        reply, memory = self.inner(model, received, client, memory, turn)
        personal = {WEIGHTS: model.vector[weights], STATISTICS: model.buffers[statistics]}
        return reply, {**memory, **personal}

    def names(self, model: Model) -> set[str]:
        """Return the tensors that stay with the client."""
        names: set[str] = set()
        for name, layer in model.module.named_modules():
            prefix = f"{name}." if name else ""
            if isinstance(layer, _BatchNorm):
                names |= {prefix + tensor for tensor in TENSORS}
            elif isinstance(layer, Assembled) and self.personal == "released":
                names.add(prefix + "score_batch")
        return names


def mask(layout: Layout, names: set[str], like: Tensor) -> Tensor:
    """Return where in a vector [P] of this layout the named tensors lie."""
    where = torch.zeros(layout.size, dtype=torch.bool, device=like.device)
    for name, view in layout.views(where).items():
        if name in names:
            view.fill_(True)
    return where
