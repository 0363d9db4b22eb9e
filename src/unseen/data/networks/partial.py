"""Which of a network's tensors train: all, BatchNorm and biases, or low-rank adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.errors import UnseenError
from unseen.expression import parse, resolve
from unseen.ranges import Checked, Count


class FrozenNorm(nn.Module):
    """BatchNorm with the statistics of the first weights, in training too; its map may train.

    y = γ (x − μ) / √(σ² + ε) + β, where μ and σ² never change, and so are no buffers that travel.

    Args:
        batch: The layer whose place it takes, under the same names of tensors.
    """

    def __init__(self, batch: _BatchNorm) -> None:
        super().__init__()
        self.eps = batch.eps
        self.weight, self.bias = batch.weight, batch.bias
        self.running_mean = nn.Parameter(_statistic(batch.running_mean), requires_grad=False)
        self.running_var = nn.Parameter(_statistic(batch.running_var), requires_grad=False)
        self.register_buffer("num_batches_tracked", batch.num_batches_tracked)

    def forward(self, x: Tensor) -> Tensor:
        statistics = self.running_mean, self.running_var
        return nn.functional.batch_norm(x, *statistics, self.weight, self.bias, eps=self.eps)


def _statistic(values: Tensor | None) -> Tensor:
    if values is None:
        raise UnseenError(
            "training.buffers = 'frozen' keeps BatchNorm's statistics, and a layer has none."
        )
    return values.detach().clone()


def with_frozen_norms(network: nn.Module) -> nn.Module:
    """Return the network with every BatchNorm's statistics frozen."""
    for name, layer in list(network.named_modules()):
        if isinstance(layer, _BatchNorm):
            network.set_submodule(name, FrozenNorm(layer))
    return network


class LowRank(nn.Conv2d):
    """A frozen 1×1 convolution with an adapter of low rank: weight W + B A.

    A [r, in] begins at random and B [out, r] at 0, so that the first outputs are those of W alone.

    Args:
        inner: The convolution, whose weight and name stay.
        rank: r.

    Source:
        Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", §4.1, here for
        convolutions; its scaling α / r is 1.
    """

    def __init__(self, inner: nn.Conv2d, rank: int) -> None:
        before, after = inner.in_channels, inner.out_channels
        super().__init__(before, after, 1, inner.stride[0], bias=inner.bias is not None)
        self.weight, self.bias = inner.weight, inner.bias
        self.down = nn.Parameter(torch.empty(rank, before))
        self.up = nn.Parameter(torch.zeros(after, rank))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + (self.up @ self.down)[:, :, None, None]
        y: Tensor = self._conv_forward(x, weight, self.bias)
        return y


#: Leaves trainable what a choice names, and freezes all else but the head.
Choice = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class All(Checked, named="train"):
    """Every tensor trains."""

    def __call__(self, network: nn.Module) -> nn.Module:
        return network


@dataclass(frozen=True)
class Norms(Checked, named="train"):
    """The affine maps of normalisation layers, all biases and the head train; all else is frozen.

    Source:
        Ben Zaken et al. 2022, "BitFit", for biases; Frankle et al. 2021, "Training BatchNorm and
        Only BatchNorm".
    """

    def __call__(self, network: nn.Module) -> nn.Module:
        kinds = (_BatchNorm, FrozenNorm, nn.GroupNorm, nn.LayerNorm)
        trainable = {id(layer.bias) for layer in network.modules() if hasattr(layer, "bias")}
        norms = [layer for layer in network.modules() if isinstance(layer, kinds)]
        if not norms:
            raise UnseenError(
                "train = 'norms' trains normalisation layers, and what trains of the network has "
                "none.",
                remedy="Freeze less of it, or set train = 'all'.",
            )
        return _only(network, trainable | {id(layer.weight) for layer in norms})


@dataclass(frozen=True)
class Adapters(Checked, named="train"):
    """Adapters of low rank on 1×1 convolutions and the head train; all else is frozen.

    Attributes:
        rank: See `LowRank`.
    """

    rank: Count = 4

    def __call__(self, network: nn.Module) -> nn.Module:
        places = [name for name, layer in network.named_modules() if _pointwise(layer)]
        if not places:
            raise UnseenError(
                "train = 'adapters' changes 1×1 convolutions, and what trains of the network has "
                "none.",
                remedy="Freeze less of it, or set train = 'all'.",
            )
        for name in places:
            layer = network.get_submodule(name)
            network.set_submodule(name, LowRank(layer, self.rank))  # type: ignore[arg-type]
        adapters = [layer for layer in network.modules() if isinstance(layer, LowRank)]
        return _only(network, {id(t) for layer in adapters for t in (layer.down, layer.up)})


CHOICES = {"all": All, "norms": Norms, "adapters": Adapters}


def choice(train: str) -> Choice:
    """Return what an expression says of the tensors that train.

    Example:
        >>> choice("adapters(rank=2)")
        Adapters(rank=2)
    """
    calls = parse(train)
    if len(calls) != 1:
        raise UnseenError(f"train takes one name; found {len(calls)} joined by + in {train!r}.")
    part: Choice = resolve("train", calls[0], CHOICES)  # type: ignore[assignment]
    return part


def _pointwise(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.groups == 1


def _only(network: nn.Module, trainable: set[int]) -> nn.Module:
    """Freeze all tensors but these, by identity, and the head."""
    head = {id(tensor) for tensor in _head(network)}
    for tensor in network.parameters():
        tensor.requires_grad_(tensor.requires_grad and id(tensor) in trainable | head)
    return network


def _head(network: nn.Module) -> Iterator[Tensor]:
    linear = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    yield from linear[-1].parameters() if linear else ()
