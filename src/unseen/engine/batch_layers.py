"""BatchNorm and Dropout in one pass of M models: each with its own statistics and its own draws.

In such a pass a batch that is shorter than the longest has padding, which must not enter a model's
statistics; and Dropout draws for each model what it draws when the model trains alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core import Model, Turn
from unseen.errors import UnseenError

#: Layers with statistics that a batch of models can have.
NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d


@dataclass(frozen=True)
class Drop:
    """One call of Dropout in a pass.

    Attributes:
        p: The probability of dropping a number.
        shape: Of one example there.
        channels_last: Whether channels come last in memory, in whose order numbers are drawn.
    """

    p: float
    shape: tuple[int, ...]
    channels_last: bool

    def draw(self, examples: int, generator: torch.Generator) -> Tensor:
        """Return what the examples are multiplied by: 0, or 1 / (1 − p)."""
        form = torch.channels_last if self.channels_last else torch.contiguous_format
        mask = torch.empty(examples, *self.shape).to(memory_format=form)
        if self.p == 1:
            return mask.zero_()
        return mask.bernoulli_(1 - self.p, generator=generator).div_(1 - self.p)


@dataclass
class Masks:
    """The draws of all Dropout layers of M models, step by step.

    Attributes:
        drops: The calls of Dropout, in their order in a pass.
        turns: Where each model's draws come from.
        sizes: The examples of each batch [T, M], on the CPU.
        form: B, the most examples, and the device.
    """

    drops: Sequence[Drop]
    turns: Sequence[Turn]
    sizes: Tensor
    form: tuple[int, torch.device]
    generators: list[torch.Generator] = field(default_factory=list)

    def at(self, t: int) -> tuple[Tensor, ...]:
        """Return the masks [M, B, ...] of step t, which follows step t − 1 or begins again at 0."""
        if not self.drops:
            return ()
        if t == 0:
            self.generators = [turn.generator("layers") for turn in self.turns]
        (most, device), sizes = self.form, self.sizes[t].tolist()
        masks = [torch.zeros(len(sizes), most, *drop.shape) for drop in self.drops]
        for m, (examples, generator) in enumerate(zip(sizes, self.generators, strict=True)):
            for drop, mask in zip(self.drops if examples else (), masks, strict=False):
                mask[m, :examples] = drop.draw(examples, generator)
        return tuple(mask.to(device) for mask in masks)


def drops_of(model: Model, x: Tensor) -> tuple[list[Drop], int]:
    """Return the calls of Dropout in a pass, and the width of the outputs.

    Args:
        model: The network, which is left in evaluation mode.
        x: One example [1, ...].
    """
    drops: list[Drop] = []

    def watch(layer: nn.Dropout, inputs: tuple[Tensor], _: Tensor) -> None:
        (z,) = inputs
        last = z.ndim == 4 and z.is_contiguous(memory_format=torch.channels_last)
        drops.append(Drop(layer.p, tuple(z.shape[1:]), last and not z.is_contiguous()))

    module = model.module.eval()
    layers = [m for m in module.modules() if isinstance(m, nn.Dropout) and m.p]
    hooks = [layer.register_forward_hook(watch) for layer in layers]
    try:
        with torch.no_grad():
            width = model(x).shape[-1]
    finally:
        for hook in hooks:
            hook.remove()
    return drops, width


@contextmanager
def sharing(
    module: nn.Module, share: Tensor, least: int, masks: Iterable[Tensor]
) -> Iterator[None]:
    """Let a network pass one model's batch, of which some examples are padding.

    Args:
        module: The network, in training mode.
        share: Each example's share of the batch [B], 0 for padding; all 0: a model that rests.
        least: The fewest examples of any batch.
        masks: What each call of Dropout multiplies by [B, ...].
    """
    following = iter(masks)
    forwards: dict[nn.Module, Callable[[Tensor], Tensor]] = {}
    for layer in module.modules():
        if isinstance(layer, NORMS):
            forwards[layer] = partial(normalised, layer, share, least)
        elif isinstance(layer, nn.Dropout) and layer.p:
            forwards[layer] = partial(dropped, following)
    with instead(forwards):
        yield


@contextmanager
def instead(forwards: Mapping[nn.Module, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Let layers compute something else than their own `forward`."""
    for layer, forward in forwards.items():
        layer.forward = forward
    try:
        yield
    finally:
        for layer in forwards:
            del layer.forward


def dropped(masks: Iterator[Tensor], x: Tensor) -> Tensor:
    """Return x by the next mask."""
    return x * next(masks).to(x.dtype)


def normalised(layer: _BatchNorm, share: Tensor, least: int, x: Tensor) -> Tensor:
    """Return BatchNorm in training mode over the examples that are there, and move its statistics.

    Per channel, μ and σ² over examples and places, y = γ (x − μ) / √(σ² + ε) + β; the running mean
    goes to (1 − m) r + m μ, the running variance likewise with n σ² / (n − 1) for σ².

    Args:
        layer: Whose tensors are one model's.
        share: Each example's share of the batch [B].
        least: The fewest examples of any batch.
        x: [B, C, ...].

    Raises:
        UnseenError: If some batch has one number per channel.
    """
    places = x[0, 0].numel()
    if least * places == 1:
        raise UnseenError(
            "BatchNorm needs more than one number per channel; found a batch of one example.",
            remedy="Set training.drop_last = true, or take another batch size.",
        )
    axes, each = [0, *range(2, x.ndim)], (1, -1, *[1] * (x.ndim - 2))
    weights = share.view(-1, *[1] * (x.ndim - 1)) / places
    values = x.to(share.dtype)
    mean = (values * weights).sum(axes)
    apart = values - mean.view(each)
    variance = (apart.square() * weights).sum(axes)
    if layer.running_mean is not None and layer.running_var is not None:
        count = (share > 0).sum() * places
        there = (layer.momentum or 0.0) * share.sum()  # 0 for a model that rests
        unbiased = variance.detach() * (count / (count - 1).clamp(min=1))
        layer.running_mean.add_((mean.detach() - layer.running_mean) * there)
        layer.running_var.add_((unbiased - layer.running_var) * there)
    y = apart * (variance + layer.eps).rsqrt().view(each)
    if layer.weight is not None:
        y = y * layer.weight.view(each) + layer.bias.view(each)
    return y.to(x.dtype)


def unfit_layers(module: nn.Module) -> str:
    """Return which layer of a network a batch of models cannot have, or ""."""
    for layer in module.modules():
        name = type(layer).__name__
        if isinstance(layer, _BatchNorm):
            if not isinstance(layer, NORMS) or layer.momentum is None:
                return f"{name} keeps statistics in a way of its own"
        elif isinstance(layer, nn.modules.dropout._DropoutNd):
            if layer.p and type(layer) is not nn.Dropout:
                return f"{name} draws for one model at a time"
        elif any(buffer.is_floating_point() for buffer in layer.buffers(recurse=False)):
            return f"{name} has statistics of its own"
    return ""
