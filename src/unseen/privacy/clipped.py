"""Sums of clipped gradients of single examples: by algebra for linear layers, else in chunks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn.modules.batchnorm import _NormBase

from unseen.core.losses import CrossEntropy, Loss, SquaredError, cross_entropy, squared_error
from unseen.core.vector import Model
from unseen.errors import Incompatible, UnseenError
from unseen.gradient.per_example import linear_layers, linear_signals, put

#: (outputs [N, C], y [N]) -> the mean over the examples.
OutputLoss = Callable[[Tensor, Tensor], Tensor]


def output_loss(loss: Loss, name: str) -> OutputLoss:
    """A loss as a mean over examples, each of which counts for itself; others are refused."""
    if type(loss) is SquaredError:
        return squared_error
    if type(loss) is CrossEntropy and not loss.balanced:
        alpha = loss.smoothing
        return lambda outputs, y: cross_entropy(outputs, y, alpha)
    why = (
        "balanced class weights make one example's loss depend on how many others there are of "
        "its class: leave balanced out"
        if type(loss) is CrossEntropy
        else f"{type(loss).__name__} is not known to be a mean of single examples' losses"
    )
    raise Incompatible(f"{name}", f"{why}.")


def check_layers(module: torch.nn.Module, name: str) -> None:
    """Refuse networks whose layers normalise over the batch or keep running statistics."""
    for layer_name, layer in module.named_modules():
        if isinstance(layer, _NormBase) and (
            "BatchNorm" in type(layer).__name__ or layer.track_running_stats
        ):
            raise Incompatible(
                f"{name}",
                f"the layer {layer_name!r} ({type(layer).__name__}) normalises "
                "each example by the others of its batch and sends their statistics along with the "
                "model, so that no bound on one example's part holds. Take a network with "
                "GroupNorm or LayerNorm, such as domainbed-cnn, or one without, such as "
                "mlp(widths=[64]).",
            )


def linear(model: Model) -> bool:
    """Return whether all that is trained lies in linear layers, each used once."""
    try:
        linear_layers(model)
    except UnseenError:
        return False
    return True


def clipped_sum(
    model: Model, loss: OutputLoss, x: Tensor, y: Tensor, clip: float, chunk: int, algebra: bool
) -> Tensor:
    """Leave Σ_n min(1, C / ‖g_n‖) g_n in `model.gradient`, and return the mean loss.

    g_n is example n's gradient over all parameters together.

    Args:
        model: The network, in whose gradient the sum is left.
        loss: A mean over examples.
        x, y: The batch.
        clip: C.
        chunk: How many gradients are formed at a time, where not by algebra.
        algebra: Whether to use matrix products, for networks of linear layers.

    Returns:
        The batch's mean loss.
    """
    model.gradient.zero_()
    if not len(y):
        return torch.zeros((), device=model.device)
    if algebra:
        return _by_algebra(model, loss, x, y, clip)

    def one(vector: Tensor, example: Tensor, label: Tensor) -> Tensor:
        return loss(model.at(vector, example[None]), label[None])

    # Layers that draw do so for each example, as they do in a batch.
    gradients = vmap(grad_and_value(one), in_dims=(None, 0, 0), randomness="different")
    total = torch.zeros_like(model.gradient)
    value = torch.zeros((), device=model.device)
    vector = model.vector.detach()
    for examples, labels in zip(x.split(chunk), y.split(chunk), strict=True):
        each, losses = gradients(vector, examples, labels)
        total += factors(each.square().sum(1), clip) @ each
        value += losses.detach().sum()
    model.gradient.copy_(total)
    return value / len(y)


def _by_algebra(model: Model, loss: OutputLoss, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """The gradient of example n is δ_n a_nᵀ in each layer: its norm is ‖δ_n‖ ‖a_n‖, and the sum
    of the clipped ones (c ∘ δ)ᵀ a. No example's gradient is ever formed."""
    value, pairs = linear_signals(model, lambda m, x, y: loss(m(x), y), x, y)
    squares = sum(d.square().sum(1) * a.square().sum(1) for d, a in pairs.values())
    assert isinstance(squares, Tensor)
    c = factors(squares, clip)
    for name, (delta, a) in pairs.items():
        put(model, name, (delta * c[:, None]).T @ a)
    return value


def factors(squares: Tensor, clip: float) -> Tensor:
    """min(1, C / ‖g‖) for squared norms [N]; 1 for a gradient of 0.

    >>> factors(torch.tensor([4.0, 0.25, 0.0]), 1.0)
    tensor([0.5000, 1.0000, 1.0000])
    """
    return (clip / squares.sqrt()).clamp(max=1.0)
