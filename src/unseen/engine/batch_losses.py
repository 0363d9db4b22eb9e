"""Losses of a batch of models in closed form: every example's own, and its derivatives."""

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.losses import CrossEntropy, Loss, SquaredError


def targets(y: Tensor, loss: Loss, outputs: int) -> Tensor:
    """Return what outputs [..., C] should be: shares of classes after smoothing, or numbers."""
    if isinstance(loss, SquaredError):
        return y.unsqueeze(-1)
    assert isinstance(loss, CrossEntropy)  # `stackable` admits no other
    if outputs == 1:
        return (y.to(torch.float32) * (1 - loss.smoothing) + loss.smoothing / 2).unsqueeze(-1)
    shares = F.one_hot(y, outputs).to(torch.float32)
    return shares * (1 - loss.smoothing) + loss.smoothing / outputs if loss.smoothing else shares


def per_example(loss: Loss, outputs: Tensor, target: Tensor) -> Tensor:
    """Return the loss of every example [M, B] for outputs and targets [M, B, C]."""
    if isinstance(loss, SquaredError):
        return (outputs - target).square().squeeze(-1)
    if outputs.shape[-1] > 1:
        return -(outputs.log_softmax(-1) * target).sum(-1)
    each = F.binary_cross_entropy_with_logits(outputs, target, reduction="none")
    return each.squeeze(-1)


def with_residual(loss: Loss, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of every example [M, B], and its derivative by the outputs [M, B, C].

    Note:
        Written out, the softmax of a few classes is several times as fast as torch's on a CPU.
    """
    if isinstance(loss, CrossEntropy) and outputs.shape[-1] > 1:
        logits = outputs - outputs.amax(-1, keepdim=True)
        shares = logits.exp()
        total = shares.sum(-1, keepdim=True)
        each = total.log().squeeze(-1) - (logits * target).sum(-1)  # targets sum to 1
        return each, shares.div_(total).sub_(target)
    each = per_example(loss, outputs, target)
    if isinstance(loss, SquaredError):
        return each, 2 * (outputs - target)
    return each, outputs.sigmoid() - target


def through_residual(loss: Loss, residual: Tensor, target: Tensor, slope: Tensor) -> Tensor:
    """Return the derivative by the outputs [M, B, C] from that by the residuals, `slope`.

    Args:
        loss: The loss.
        residual: What `with_residual` returned.
        target: Its targets.
        slope: The derivative by every residual [M, B, C].
    """
    if isinstance(loss, SquaredError):
        return 2 * slope
    shares = residual + target
    if residual.shape[-1] == 1:
        return shares * (1 - shares) * slope
    return shares * (slope - (shares * slope).sum(-1, keepdim=True))
