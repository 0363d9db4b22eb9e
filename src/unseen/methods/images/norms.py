"""Layers that join batch and instance normalisation, and how they take BatchNorm's place.

Note:
    Instance normalisation standardises each channel of each example by its own mean and variance
    over the image, in training and in evaluation alike: there must be more than one pixel. It is
    for images, so BatchNorm over vectors is left as it is.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def instance_norm(x: Tensor, like: _BatchNorm) -> Tensor:
    """Apply instance normalisation under the weight, bias and ε of a BatchNorm layer."""
    return F.instance_norm(x, weight=like.weight, bias=like.bias, eps=like.eps)


class Assembled(nn.Module):
    """s_b BN(x) + s_i IN(x) with (s_b, s_i) = softmax of two scalars, and an affine map in each.

    Note:
        Both scalars start as 1 and IN's map as BN's.

    Source:
        gPerXAN (Le et al. 2024).
    """

    def __init__(self, batch: _BatchNorm) -> None:
        super().__init__()
        plain = torch.ones(batch.num_features), torch.zeros(batch.num_features)
        weight, bias = (batch.weight, batch.bias) if batch.affine else plain
        self.batch = batch
        self.score_batch = nn.Parameter(torch.ones_like(weight[:1]))
        self.instance_weight = nn.Parameter(weight.detach().clone())
        self.instance_bias = nn.Parameter(bias.detach().clone())
        self.score_instance = nn.Parameter(torch.ones_like(weight[:1]))

    def forward(self, x: Tensor) -> Tensor:
        s_b, s_i = torch.cat([self.score_batch, self.score_instance]).softmax(0)
        weight, bias = self.instance_weight, self.instance_bias
        instance = F.instance_norm(x, weight=weight, bias=bias, eps=self.batch.eps)
        mixed: Tensor = s_b * self.batch(x) + s_i * instance
        return mixed


class Hybrid(nn.Module):
    """ρ BN(x) + (1 − ρ) IN(x) under one affine map, ρ = σ(gate) learnt for each channel, 1/2 first.

    Source:
        Nam and Kim 2018, "Batch-Instance Normalization for Adaptively Style-Invariant Neural
        Networks", which clips ρ to [0, 1] after each step and starts it at 1.
    """

    def __init__(self, batch: _BatchNorm) -> None:
        super().__init__()
        self.batch = batch
        like = batch.weight.detach() if batch.affine else torch.empty(batch.num_features)
        self.gate = nn.Parameter(torch.zeros_like(like))

    def forward(self, x: Tensor) -> Tensor:
        batch, instance = self.batch(x), instance_norm(x, self.batch)
        rho = self.gate.sigmoid().view(-1, *[1] * (x.ndim - 2))
        mixed: Tensor = instance + rho * (batch - instance)
        return mixed


class Halves(nn.Module):
    """IN for the first half of the channels, BN for the others.

    Source:
        Pan et al. 2018, "Two at Once: Enhancing Learning and Generalization Capacities via
        IBN-Net".
    """

    def __init__(self, batch: _BatchNorm) -> None:
        super().__init__()
        self.batch = batch

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[1] // 2
        instance = instance_norm(x, self.batch)
        return torch.cat([instance[:, :half], self.batch(x)[:, half:]], dim=1)


def without_memory(batch: _BatchNorm) -> _BatchNorm:
    """Return BatchNorm by the statistics of each batch alone, at prediction too, and no affine map.

    Source:
        HarmoFL's released networks (Jiang et al. 2022).
    """
    return type(batch)(
        batch.num_features, batch.eps, batch.momentum, affine=False, track_running_stats=False
    )


def replaced(network: nn.Module, make: Callable[[_BatchNorm], nn.Module]) -> nn.Module:
    """Return the network, changed in place, with `make(layer)` for each BatchNorm over images.

    Args:
        network: What is changed. A layer that occurs in two places is one in both; layers that have
            a BatchNorm inside already are left.
        make: Takes a BatchNorm over images or volumes.
    """
    layers: dict[int, nn.Module] = {}

    def visit(module: nn.Module) -> nn.Module:
        if id(module) in layers:
            return layers[id(module)]
        layers[id(module)] = module
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d):
            layers[id(module)] = make(module)
        elif not isinstance(module, Assembled | Hybrid | Halves):
            for name, child in list(module._modules.items()):
                if child is not None:
                    setattr(module, name, visit(child))
        return layers[id(module)]

    return visit(network)


#: A network -> the network, changed in place, with one of the above for each BatchNorm over images.
assembled = partial(replaced, make=Assembled)
hybrid = partial(replaced, make=Hybrid)
halves = partial(replaced, make=Halves)
statistics_of_batches = partial(replaced, make=without_memory)
