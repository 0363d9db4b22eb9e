"""BatchNorm and Dropout in one pass of M models: each with its own statistics and its own draws.

In such a pass a batch that is shorter than the longest has padding, which must not enter a model's
statistics; and Dropout draws for each model what it draws when the model trains alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core import Model, Turn
from unseen.core.global_draws import global_draws
from unseen.core.turn import keyed
from unseen.errors import UnseenError

#: Layers with statistics that a batch of models can have.
NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d

#: Examples with which a network is tried for what changes their outputs.
SOME = 8


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


@dataclass(frozen=True)
class Trace:
    """What a network does with a batch, as tried with a few examples.

    Attributes:
        drops: The calls of Dropout in a pass, in their order.
        outputs: The width of the outputs.
        unfit: Why it cannot train in a batch of models, or "".
    """

    drops: tuple[Drop, ...]
    outputs: int
    unfit: str


#: Model -> shape of an example -> its trace.
TRACES: WeakKeyDictionary[Model, dict[tuple[int, ...], Trace]] = WeakKeyDictionary()


def traced(model: Model, example: Tensor) -> Trace:
    """Return what a network does with a batch; it is tried once, and left in training mode.

    Args:
        model: The network.
        example: One example [1, ...].
    """
    own = TRACES.setdefault(model, {})
    shape = tuple(example.shape[1:])
    if shape not in own:
        buffers = model.buffers.clone()
        model.module.train()
        with torch.no_grad(), global_draws():
            own[shape] = tried(model, example.to(model.device))
        model.buffers.copy_(buffers)
    return own[shape]


def tried(model: Model, example: Tensor) -> Trace:
    """Return the trace of passes of two and of three examples, and of some with padding."""
    two, three = (passed(model, torch.cat([example] * count)) for count in (2, 3))
    drops, outputs, unfit = two
    if not unfit and two != three:
        unfit = three[2] or "its layers are called otherwise for another number of examples"
    if not unfit and not apart(model, example, drops):
        unfit = "an output depends on other examples, or draws, outside BatchNorm and Dropout"
    return Trace(drops, outputs, unfit)


def passed(model: Model, x: Tensor) -> tuple[tuple[Drop, ...], int, str]:
    """Return the calls of Dropout in a pass of x, the outputs' width, and what is unfit."""
    drops, reasons = list[Drop](), list[str]()

    def watch(layer: nn.Module, inputs: tuple[Tensor, ...], _: object) -> None:
        z, name = inputs[0], type(layer).__name__
        last = z.ndim == 4 and z.is_contiguous(memory_format=torch.channels_last)
        if len(z) != len(x):
            reasons.append(f"{name} meets something else than the batch along the first axis")
        if isinstance(layer, nn.Dropout):
            drops.append(Drop(layer.p, tuple(z.shape[1:]), last and not z.is_contiguous()))
            if not (last or z.is_contiguous()):
                reasons.append("Dropout meets numbers in another order of memory")

    hooks = [layer.register_forward_hook(watch) for layer in watched(model.module)]
    try:
        outputs = model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(drops), outputs.shape[-1], reasons[0] if reasons else ""


def apart(model: Model, example: Tensor, drops: Sequence[Drop]) -> bool:
    """Return whether neither padding nor other draws change other outputs, or the statistics."""
    generator = keyed("a trial")
    noise = torch.randn(SOME, *example.shape[1:], generator=generator).to(example)
    masks = [drop.draw(SOME + 1, generator).to(example.device) for drop in drops]
    share = torch.tensor([1 / SOME] * SOME + [0.0]).to(example)
    passes, buffers = list[Tensor](), model.buffers.clone()
    for key, padding in enumerate((torch.zeros_like(example), torch.ones_like(example))):
        torch.set_rng_state(keyed(f"a trial/{key}").get_state())
        with sharing(model.module, share, SOME, masks):
            outputs = model(torch.cat([example + noise, padding]))[:SOME]
        passes.append(torch.cat([outputs.flatten(), model.buffers]))
        model.buffers.copy_(buffers)
    return torch.allclose(passes[0], passes[1], rtol=1e-3, atol=1e-6, equal_nan=True)


def watched(module: nn.Module) -> list[nn.Module]:
    """Return the layers of a network in training mode that a batch of models sees to itself."""
    return [
        layer
        for layer in module.modules()
        if layer.training and (type(layer) in NORMS or (type(layer) is nn.Dropout and layer.p))
    ]


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
    with instead(by_products(module, share.device) | {
        layer: partial(normalised, layer, share, least)
        if isinstance(layer, _BatchNorm) else partial(dropped, following)
        for layer in watched(module)
    }):  # fmt: skip
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
    # A model that rests has statistics too: of nothing but 0, layer by layer would grow by 1 / √ε.
    shares = torch.where(share.sum() > 0, share, torch.full_like(share, 1 / len(share)))
    weights = shares.view(-1, *[1] * (x.ndim - 1)) / places
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
        y = y * layer.weight.view(each)
    if layer.bias is not None:
        y = y + layer.bias.view(each)
    return y.to(x.dtype)


def unfit_layers(module: nn.Module) -> str:
    """Return which layer of a network a batch of models cannot have, or ""."""
    met = set[nn.Module]()
    for _, layer in module.named_modules(remove_duplicate=False):
        name = type(layer).__name__
        own = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
        if layer in met and own:
            return f"a {name} is there under two names"
        met.add(layer)
        if "forward" in vars(layer):
            return f"{name} has a forward of its own"
        if isinstance(layer, _BatchNorm):
            if type(layer) not in NORMS or layer.momentum is None:
                return f"{name} keeps statistics in a way of its own"
        elif isinstance(layer, nn.modules.dropout._DropoutNd):
            if layer.p and type(layer) is not nn.Dropout:
                return f"{name} draws for one model at a time"
        elif any(buffer.is_floating_point() for buffer in layer.buffers(recurse=False)):
            return f"{name} has statistics of its own"
    return ""


#: Numbers in the patches of one example, k² times what enters: with more of them, memory is dear.
PATCHES = 2**18


def by_products(module: nn.Module, device: torch.device) -> dict[nn.Module, partial[Tensor]]:
    """Return what the convolutions of a network compute instead of their own `forward`.

    On a CPU none of them do: there the batch of models is not what costs.
    """
    if device.type == "cpu":
        return {}
    return {layer: partial(convolved, layer) for layer in module.modules() if plain(layer)}


def plain(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Return whether a layer is a convolution of images over all channels, with zeros around."""
    return (
        type(layer) is nn.Conv2d
        and layer.groups == 1
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


def convolved(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Return y[b, o, h, w] = Σ_ijc W[o, c, i, j] x[b, c, s h + i, s w + j] + β[o].

    Args:
        layer: A plain convolution with stride s, whose tensors are one model's.
        x: [B, C, H, W].

    Returns:
        [B, O, H', W'], with channels last in memory.
    """
    (kh, kw), (sh, sw), (ph, pw) = layer.kernel_size, layer.stride, map(int, layer.padding)
    if ph or pw:
        x = pad(x, (pw, pw, ph, ph))
    patches = x.unfold(2, kh, sh).unfold(3, kw, sw)
    if patches[0].numel() > PATCHES:
        return torch.conv2d(x, layer.weight, layer.bias, layer.stride)
    filters = layer.weight.permute(2, 3, 1, 0).flatten(0, 2)
    y = patches.permute(0, 2, 3, 4, 5, 1).flatten(3) @ filters
    if layer.bias is not None:
        y = y + layer.bias
    return y.permute(0, 3, 1, 2)
