"""CSAC's projections to features of one size, and its attention over pairs of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core import Layout

#: Fused first: the model that is trained, then the client's own.
SIDES = ("fused", "own")


@dataclass(frozen=True)
class Projections:
    """Proj of CSAC's Eq. 5: maps [N, C, H, W] of each layer to [N, c, g, w], one convolution each.

    g, w: the smallest height and width among the layers.

    Attributes:
        layout: of the vector.
        strides, paddings: of each layer's convolution.

    Note:
        Kernels as in the released code: 3 with stride 2 where a side is twice the smallest, else as
        long as it takes without a stride, which is 1 where nothing shrinks. The two models have
        their own; all lie in one vector [Q].
    """

    layout: Layout
    strides: tuple[tuple[int, int], ...]
    paddings: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, maps: Sequence[Tensor], channels: int | Literal["smallest"]) -> Projections:
        """Return the projections for maps like these."""
        sizes = [tuple(m.shape[1:]) for m in maps]
        smallest = [min(axis) for axis in zip(*sizes, strict=True)]
        c = smallest[0] if channels == "smallest" else channels
        shapes, strides, paddings = {}, [], []
        for i, (C, *size) in enumerate(sizes):
            axes = [_axis(s, t) for s, t in zip(size, smallest[1:], strict=True)]
            (kh, sh, ph), (kw, sw, pw) = axes
            strides.append((sh, sw))
            paddings.append((ph, pw))
            for side in SIDES:
                shapes[f"{side}.{i}.weight"] = torch.empty(c, C, kh, kw, device="meta")
                shapes[f"{side}.{i}.bias"] = torch.empty(c, device="meta")
        return cls(Layout.of(shapes), tuple(strides), tuple(paddings))

    def draw(self, generator: torch.Generator, like: Tensor) -> Tensor:
        """Return fresh weights [Q], uniform in ±1/√fan-in as torch starts a convolution."""
        vector = torch.rand(self.layout.size, generator=generator) * 2 - 1
        views = self.layout.views(vector)
        for name, view in views.items():
            view /= views[name.replace("bias", "weight")][0].numel() ** 0.5
        return vector.to(like)

    def __call__(self, vector: Tensor, side: str, maps: Sequence[Tensor]) -> Tensor:
        views = self.layout.views(vector)
        each = zip(maps, self.strides, self.paddings, strict=True)
        return torch.stack(
            [
                F.conv2d(m, views[f"{side}.{i}.weight"], views[f"{side}.{i}.bias"], stride, padding)
                for i, (m, stride, padding) in enumerate(each)
            ]
        )


def _axis(size: int, target: int) -> tuple[int, int, int]:
    """Return the kernel, stride and padding that bring one axis from `size` to `target`."""
    return (3, 2, 1) if size == 2 * target else (1 + size - target, 1, 0)


def attention(
    fused: Tensor, own: Tensor, kind: Literal["both", "position", "channel", "none"] = "both"
) -> Tensor:
    """Return α [R, R] of CSAC's Eqs. 7-9 for projected maps [R, N, c, g, w]; each row sums to 1.

    With A_l, B_m [c, d] the maps of one example, d = g w, and averages over the batch,

        α^p_l = softmax_m avg(A_lᵀ B_m)     α^c_l = softmax_m avg(A_l B_mᵀ)     α = (α^p + α^c)/2

    Note:
        The average of all entries of AᵀB is the product of A's and B's means over pixels, that of
        ABᵀ of their means over channels: the [d, d] and [c, c] maps are never formed.
    """
    R, N = fused.shape[:2]
    if kind == "none":
        return fused.new_full((R, R), 1 / R)
    A, B = fused.flatten(3), own.flatten(3)
    averaged = {"position": (-1,), "channel": (-2,), "both": (-1, -2)}[kind]
    weights = [
        torch.einsum("lnk,mnk->lm", A.mean(axis), B.mean(axis)).div(N).softmax(-1)
        for axis in averaged
    ]
    return torch.stack(weights).mean(0)
