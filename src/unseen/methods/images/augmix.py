"""AugMix on whole batches: chains of small distortions, mixed with each other and the image."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.ranges import Checked, Range

#: The affine operations, which come first, and those on pixels.
AFFINE = ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")
PIXELWISE = ("autocontrast", "equalize", "posterize", "solarize")
WIDTH, DEPTH = 3, 3


@dataclass(frozen=True)
class AugMix(Checked, named="augmix"):
    """m x + (1 − m) Σ_i w_i chain_i(x) for images [N, C, H, W] with pixels in [0, 1].

    w ~ Dirichlet(1, 1, 1), m ~ U(0, 1) = Beta(1, 1), chain_i: 1 to 3 operations, each drawn among
    nine with a level ~ U(0.1, severity), all of it for each image.

    Attributes:
        severity: The highest level, from 0.1 to 10.

    Note:
        Rotation by up to 3° per level, shear by 0.03, translation by a thirtieth of the side,
        posterize to 4 − ⌊0.4 level⌋ bits, solarize above 1 − 0.1 level, autocontrast and equalize
        of each channel.

    Source:
        Hendrycks et al. 2020, "AugMix", Algorithm 1 and its released operations.

    Departs from:
        them in that pixels stay floating point between operations, that affine operations
        interpolate bilinearly, and that equalize ranks the pixels themselves where theirs fills 256
        bins.
    """

    severity: Annotated[float, Range(0.1, 10)] = 3.0

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        N = len(x)
        w = -torch.rand(WIDTH, N, generator=generator).clamp_min(1e-12).log()
        w, m = w / w.sum(0), torch.rand(N, generator=generator)
        depth = torch.randint(1, DEPTH + 1, (WIDTH, N), generator=generator)
        total = torch.zeros_like(x)
        for i in range(WIDTH):
            chain = x
            for d in range(DEPTH):
                chain = self.operation(chain, depth[i] > d, generator)
            total += w[i].view(-1, 1, 1, 1).to(x) * chain
        m = m.view(-1, 1, 1, 1).to(x)
        return m * x + (1 - m) * total

    def operation(self, x: Tensor, active: Tensor, generator: torch.Generator) -> Tensor:
        """Apply one operation, drawn for each image, to those that are active."""
        N = len(x)
        kind = torch.randint(len(AFFINE) + len(PIXELWISE), (N,), generator=generator)
        level = 0.1 + (self.severity - 0.1) * torch.rand(N, generator=generator)
        sign = torch.randint(2, (N,), generator=generator) * 2 - 1
        out = x.clone()
        moved = active & (kind < len(AFFINE))
        if bool(moved.any()):
            at = moved.to(x.device)
            out[at] = warped(x[at], kind[moved], (level * sign)[moved])
        for k, name in enumerate(PIXELWISE, start=len(AFFINE)):
            at = active & (kind == k)
            if bool(at.any()):
                out[at.to(x.device)] = pixelwise(name, x[at.to(x.device)], level[at])
        return out


def warped(x: Tensor, kind: Tensor, level: Tensor) -> Tensor:
    """Return images under the affine operation `AFFINE[kind]` at a signed level, black outside."""
    N, _, height, width = x.shape
    amount = torch.tensor([math.radians(3), 0.03, 0.03, 1 / 30, 1 / 30])[kind] * level
    theta = torch.eye(2, 3).repeat(N, 1, 1)
    for n, (k, a) in enumerate(zip(kind.tolist(), amount.tolist(), strict=True)):
        match AFFINE[k]:
            case "rotate":
                # Coordinates run from −1 to 1 along both sides, whatever their lengths are.
                cos, sin, aspect = math.cos(a), math.sin(a), height / width
                theta[n, :, :2] = torch.tensor([[cos, sin * aspect], [-sin / aspect, cos]])
            case "shear-x":
                theta[n, 0, 1] = a * height / width
            case "shear-y":
                theta[n, 1, 0] = a * width / height
            case "translate-x":
                theta[n, 0, 2] = 2 * a
            case "translate-y":
                theta[n, 1, 2] = 2 * a
    grid = F.affine_grid(theta.to(x), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def pixelwise(name: str, x: Tensor, level: Tensor) -> Tensor:
    """Return images in [0, 1] under an operation that moves no pixel."""
    level = level.view(-1, 1, 1, 1).to(x)
    if name == "posterize":
        step = 2 ** (4 + (0.4 * level).floor())  # of 256 levels, for 4 − ⌊0.4 level⌋ bits
        return ((x * 255 + 1e-4) / step).floor() * step / 255  # k / 255 · 255 may fall short of k
    if name == "solarize":
        return torch.where(x < 1 - level / 10, x, 1 - x)
    flat = x.flatten(2)
    low, high = flat.amin(2, keepdim=True), flat.amax(2, keepdim=True)
    if name == "autocontrast":
        even = (flat - low) / torch.where(high > low, high - low, 1)
    else:
        ranks = torch.searchsorted(flat.sort(2).values, flat)
        others = flat.shape[2] - (flat == high).sum(2, keepdim=True)
        even = ranks / others.clamp_min(1)
    return torch.where(high > low, even.to(x), flat).view_as(x)
