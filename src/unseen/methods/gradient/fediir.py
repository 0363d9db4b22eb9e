"""FedIIR: the head's gradient, and how far a batch's is from the mean over clients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Turn
from unseen.core.losses import Loss, LossFunction
from unseen.methods.gradient.heads import Head, loss_of
from unseen.ranges import Checked, NotNegative, log

#: The inbox entry, and the exchange and slot, of the mean gradient ḡ [Ph].
MEAN = "head-gradient"


@dataclass(frozen=True)
class HeadGradient:
    """∇_h of the mean loss over a split, flat [Ph], with h the head.

    Attributes:
        loss: the loss of a batch.
        batch_size: of the batches.
        drop_last: leave out a short last one.
        head: the layer's name.

    Note:
        In closed form, δᵀ(f, 1) with δ the loss's gradient at the outputs: nothing is propagated
        through the body. In batches, the mean of which is weighted by their examples, so that
        BatchNorm sees batches of the size it is trained with.
    """

    loss: Loss
    batch_size: int = 32
    drop_last: bool = False
    head: str | None = None

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Callable[[Tensor, Tensor], Tensor]:
        loss = self.loss.open(model, inbox, client, memory, turn)
        head, size = Head.of(model, self.head), self.batch_size

        def measure(x: Tensor, y: Tensor) -> Tensor:
            total, count = torch.zeros_like(model.vector[head.part]), 0
            for a, b in zip(x.split(size), y.split(size), strict=True):
                if self.drop_last and count and len(b) < size:
                    continue
                with torch.no_grad():
                    features, outputs = head.run(model, a)
                outputs.requires_grad_()
                (delta,) = torch.autograd.grad(loss_of(loss, outputs, a, b), [outputs])
                total += len(b) * head.gradient(delta, features)
                count += len(b)
            return total / count

        return measure

    def zeros(self, model: Model) -> Tensor:
        """Return the mean before round 0."""
        return torch.zeros_like(model.vector[Head.of(model, self.head).part])


@dataclass(frozen=True)
class Invariance(Checked, named="fediir"):
    """ℓ + γ ‖∇_h ℓ − ḡ‖² on each batch, ḡ as received and held fixed.

    Attributes:
        loss: ℓ.
        gamma: γ ≥ 0; 0 is FedAvg. The released code has 0.01 (RotatedMNIST), 0.005 (VLCS), 0.001
            (PACS, and the default elsewhere) and 0.0005 (OfficeHome).
        head: the layer's name, by default the last linear one.

    Note:
        ∇_h ℓ = δᵀ(f, 1) is plain differentiable arithmetic once δ is: one derivative of second
        order at the outputs, and one backward pass through the net.

    Source:
        Guo et al. 2023, "Out-of-Distribution Generalization of Federated Learning via Implicit
        Invariant Relationships", and its released code.
    """

    loss: Loss
    gamma: Annotated[NotNegative, log(0.00001, 0.1)] = 0.001
    head: str | None = None

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> LossFunction:
        inner = self.loss.open(model, inbox, client, memory, turn)
        head, mean = Head.of(model, self.head), inbox[MEAN]

        def loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
            features, outputs = head.run(model, x)
            value = loss_of(inner, outputs, x, y)
            (delta,) = torch.autograd.grad(value, [outputs], create_graph=True)
            gap = head.gradient(delta, features) - mean
            return value + self.gamma * gap.square().sum()

        return loss if self.gamma else inner
