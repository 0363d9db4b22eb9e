"""What a client minimises: cross-entropy for classes, with Dice for masks; squared error."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.client import Client
from unseen.core.labels import IGNORED
from unseen.core.parts import Part
from unseen.core.turn import Turn
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model
from unseen.errors import UnseenError
from unseen.ranges import NotNegative, Share

LossFunction = Callable[[Model, Tensor, Tensor], Tensor]


class Loss(Protocol):
    """What a client minimises: opened once per exchange, then (model, x, y) -> scalar."""

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> LossFunction: ...


@dataclass(frozen=True)
class CrossEntropy(Part, named="cross-entropy"):
    """Mean cross-entropy of a batch; one output column is the logit of class 1.

        − Σ_i Σ_c w_c q_ic log p_ic / Σ_i w_{y_i},   q_ic = (1 − α) 1[c = y_i] + α/C

    Note:
        It is `torch.nn.functional.cross_entropy(weight, label_smoothing)`, also for one logit z,
        which means the two logits 0 and z. A class's weight belongs to its part of the smoothed
        label, not to the example.

    Attributes:
        smoothing: α of label smoothing, y ← (1 − α) y + α/C.
        balanced: Whether class c has the weight w_c = n / (C n_c) by the counts of this client's
            training split, so that rare classes count as much as common ones; else w_c = 1.
    """

    stackable = True

    smoothing: Share = 0.0
    balanced: bool = False

    @property
    def divisible(self) -> bool:
        """Whether a batch's loss is the mean of its parts', by their examples."""
        return not self.balanced

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> LossFunction:
        if client.classes is None and client.split("train").y.is_floating_point():
            raise UnseenError(
                f"client {client.name!r} has numbers to predict; cross-entropy takes classes.",
                remedy="Train by Training(loss=SquaredError()), or give the client integer labels "
                "and the number of classes.",
            )
        weights = balance(client).to(model.vector) if self.balanced else None

        return lambda model, x, y: cross_entropy(model(x), y, self.smoothing, weights)


@dataclass(frozen=True)
class SquaredError(Part):
    """Mean of (f(x) − y)² over a batch, for regression."""

    stackable = True
    divisible: ClassVar[bool] = True

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> LossFunction:
        return lambda model, x, y: squared_error(model(x), y)


@dataclass(frozen=True)
class CrossEntropyDice(Part, named="cross-entropy-dice"):
    """Cross-entropy of the pixels of a batch and soft Dice over the batch, for masks.

        a · mean_{i,k} −log p_{ik y_ik}  +  d · (1 − (1/(C−1)) Σ_{c>0} D_c)

        D_c = (2 Σ_{i,k} p_{ikc} 1[y_ik = c] + ε) / (Σ_{i,k} p_{ikc} + Σ_{i,k} 1[y_ik = c] + ε)

    p: the softmax over classes at pixel k of image i; class 0 is background and has no D_c. Pixels
    that are ignored are in no sum.

    Attributes:
        entropy: a.
        dice: d.
        smooth: ε: a class that a batch neither has nor predicts costs nothing.

    Source:
        Milletari et al. 2016, "V-Net", soft Dice; the sum of both, Dice over the batch, without the
        background and with ε = 1e-5, as in Isensee et al. 2021, "nnU-Net".

    Departs from:
        V-Net in the denominator, which has squares there and none in nnU-Net.
    """

    entropy: NotNegative = 1.0
    dice: NotNegative = 1.0
    smooth: NotNegative = 1e-5

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> LossFunction:
        return lambda model, x, y: self.value(model(x), y)

    def value(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of outputs [N, C, H, W] and masks [N, H, W].

        Example:
            >>> flat = torch.zeros(1, 2, 1, 2)  # p = 1/2: log 2, and D = (1 + ε) / (2 + ε)
            >>> round(float(CrossEntropyDice().value(flat, torch.tensor([[[0, 1]]]))), 4)
            1.1931
        """
        entropy, counted, both, sizes = (part.sum(0) for part in pixel_sums(outputs, y))
        return self.combined(entropy / counted.clamp(min=1), both, sizes)

    def combined(self, entropy: Tensor, both: Tensor, sizes: Tensor) -> Tensor:
        """Return the loss [...] of the mean entropy [...] and of the sums of D [..., C − 1]."""
        overlap = (2 * both + self.smooth) / (sizes + self.smooth)
        return self.entropy * entropy + self.dice * (1 - overlap.mean(-1))


def pixel_sums(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sums over each image's pixels that `CrossEntropyDice` is made of.

    Args:
        outputs: Logits [N, C, H, W].
        y: Masks [N, H, W].

    Returns:
        Σ −log p_y [N], the number of pixels that count [N], Σ p 1[y = c] and Σ p + Σ 1[y = c] of
        each foreground class [N, C − 1].
    """
    counted = y != IGNORED
    logs = F.cross_entropy(outputs, y, ignore_index=IGNORED, reduction="none").sum((1, 2))
    p = outputs.softmax(1) * counted[:, None]
    true = [y == c for c in range(1, outputs.shape[1])]
    both = [(p[:, c] * t).sum((1, 2)) for c, t in enumerate(true, start=1)]
    sizes = [p[:, c].sum((1, 2)) + t.sum((1, 2)) for c, t in enumerate(true, start=1)]
    return logs, counted.sum((1, 2)), torch.stack(both, 1), torch.stack(sizes, 1)


def cross_entropy(
    outputs: Tensor, y: Tensor, smoothing: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """Return the mean cross-entropy of a batch.

    Args:
        outputs: Logits [N, C], or of class 1 [N, 1].
        y: Classes [N].
        smoothing: α of `CrossEntropy`.
        weights: w of `CrossEntropy` [C].

    Example:
        >>> round(float(cross_entropy(torch.zeros(1, 4), torch.tensor([2]))), 4)  # log 4
        1.3863
    """
    if weights is not None and smoothing and outputs.shape[-1] == 1:
        outputs = F.pad(outputs, (1, 0))
    if outputs.shape[-1] > 1:
        return F.cross_entropy(outputs, y, weights, label_smoothing=smoothing)
    soft = y.to(outputs.dtype) * (1 - smoothing) + smoothing / 2
    each = F.binary_cross_entropy_with_logits(outputs.squeeze(-1), soft, reduction="none")
    return each.mean() if weights is None else (each * weights[y]).sum() / weights[y].sum()


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean of (f(x) − y)² for outputs [N, 1] and targets y [N]."""
    return F.mse_loss(outputs.squeeze(-1), y)


def balance(client: Client) -> Tensor:
    """Return n / (C n_c) for each class of the client's training split [C], 0 for absent ones."""
    y = client.split("train").y
    counts = torch.bincount(y.cpu(), minlength=client.classes or 0).double()
    return torch.where(counts > 0, len(y) / (len(counts) * counts.clamp(min=1)), 0)
