"""How far rounding may carry a result: from the arithmetic, never from what one processor shows.

Processors, and the kernels that torch picks for them, sum in other orders and with or without fused
multiplication. What holds for all of them: Higham, Accuracy and Stability of Numerical Algorithms,
2nd edition, chapter 3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

#: TorchJD's weightings that iterate, and how near to their answer: cvxpy's solvers, ECOS and
#: Clarabel, stop at 1e-8 by default, so that two runs of them differ by no more than that.
SOLVED_TO = {"cagrad": 1e-8, "nash-mtl": 1e-8}


def gamma(n: int, dtype: torch.dtype) -> float:
    """γ_n = n u / (1 − n u), u = eps / 2: the relative error that n roundings in a row can make.

    A sum of n products is off by at most γ_n Σ |a_i b_i|, in whatever order it is formed.
    """
    nu = n * torch.finfo(dtype).eps / 2
    assert nu < 1, f"{n} roundings in {dtype} leave no digit"
    return nu / (1 - nu)


def product(a: Tensor, b: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """How far each entry of a @ b, formed in `dtype`, may be from the exact one: γ_n |a| @ |b|."""
    n = a.shape[-1]
    return gamma(n, dtype or a.dtype) * (a.double().abs() @ b.double().abs())


def sensitivity(function: Callable[[Tensor], Tensor], gram: Tensor, step: float = 1e-6) -> Tensor:
    """How far each result moves per relative error of inner products [..., K, K], at worst.

    Each entry is moved by ±step √(G_ii G_jj), the scale of a dot product's error, with random
    signs. If c are the derivatives by the K² entries, the worst case is Σ|c| ≤ K √Σc² (Cauchy and
    Schwarz), and √Σc² is what random signs give in the root mean square: so the largest of some
    draws, K times.
    """
    K, here = gram.shape[-1], function(gram)
    scale = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    most = torch.zeros_like(here)
    for draw in range(4):
        signs = torch.randn(gram.shape, generator=torch.Generator().manual_seed(draw)).sign()
        signs = signs.triu() + signs.triu(1).mT
        moved = function(gram + step * signs * scale[..., :, None] * scale[..., None, :])
        most = torch.maximum(most, (moved - here).abs() / step)
    return K * most


def roundings(module: nn.Module, x: Tensor) -> int:
    """The most roundings in a row behind one entry of the gradient: the products that each layer
    sums for an output, for an input's gradient and, over positions and examples, for a weight's."""
    found = 1

    def count(layer: nn.Module, _: object, output: Tensor) -> None:
        nonlocal found
        weight = getattr(layer, "weight", None)
        if weight is not None:
            forward, positions = weight[0].numel(), output.numel() // output.shape[1]
            found += forward + weight.numel() // max(1, weight.shape[1:2].numel()) + positions

    hooks = [layer.register_forward_hook(count) for layer in module.modules()]
    module(x)
    for hook in hooks:
        hook.remove()
    return found
