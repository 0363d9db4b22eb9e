"""FedIIR: clients whose batches pull on the head as the average client's data does."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from unseen.core import (
    ONE_LABEL,
    Client,
    Exchange,
    Inbox,
    Memory,
    Method,
    Model,
    MovingAverage,
    Slot,
    Turn,
)
from unseen.core.losses import Loss, LossFunction
from unseen.methods.base import asking, federated
from unseen.methods.combine import Mean, Weights
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.heads import Head, loss_of
from unseen.methods.local.train import Measure, Train
from unseen.methods.options import options_from
from unseen.methods.recipe import Training
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


@options_from(Invariance)
def fediir(
    training: Training,
    *,
    ema: float = 0.95,
    weights: Weights = "examples",
    **options: Any,
) -> Method:
    """Penalise clients where the head's gradient differs from the mean one.

        first exchange:  ḡ ← β ḡ + (1 − β) Σ_k p_k ∇_h F_k(x)
        second:          min_w  ℓ(w; batch) + γ ‖∇_h ℓ(w; batch) − ḡ‖²,   x ← Σ_k p_k y_k

    h: the head, the last linear layer; F_k: the mean loss over client k's training split, at the
    model x that was received, in training mode; ḡ: 0 before round 0, and without a correction for
    it, as released, so that it takes some 20 rounds to reach its size.

    Args:
        training: The recipe.
        ema: β in [0, 1], 0.95 as released.
        weights: p_k, both of the models and of the gradients; the released code has uniform ones
            for the models and weighs gradients by batches, that is by examples.
        **options: The other options of the page.

    Note:
        The loss that is reported contains the penalty, which is added to it: the rate of the loss's
        own part stays FedAvg's.

    Departs from:
        the released code, whose classifier h is three layers for all but RotatedMNIST, where a
        short last batch counts as a whole one in ḡ, and whose pass for ḡ also moves BatchNorm's
        statistics.
    """
    head = options["head"]
    first = HeadGradient(training.loss, training.batch_size, training.drop_last, head)
    slot = Slot(Mean(weights), apply=MovingAverage(ema), sends="value", start=first.zeros)
    measure = Exchange(MEAN, Measure(MEAN, first), {MEAN: slot})
    local = Train(Backprop(Invariance(training.loss, **options)), training)
    method = federated("fediir", training, Mean(weights), "guo2023fediir", local)
    shares = ("the head's gradient at the received model",)
    method = replace(method, exchanges=(measure, *method.exchanges), shares=shares)
    return asking(method, ONE_LABEL)
