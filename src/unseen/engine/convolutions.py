"""Convolutions in one pass of M models, as products of matrices.

`vmap` makes one grouped convolution of M small ones, for which a GPU's libraries have slow kernels
alone. As a product of the patches with the filters it is M products of matrices of a decent size.
"""

from functools import partial
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

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
