"""A U-Net, for masks: a class for every pixel of an image."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from unseen.data.networks.digit_nets import image, whole_numbers
from unseen.data.networks.layers import Sequential, Shape, named
from unseen.errors import UnseenError

Norm = Literal["batch", "group", "none"]
#: Channels of one group of GroupNorm.
GROUPED = 8


class UNet(nn.Module):
    """Convolutions at falling sizes and back, each size joined to what it was on the way down.

    Attributes:
        down: A block per size, from the image's own to the smallest.
        pool: 2×2 max pooling between them.
        up: Transposed convolutions 2×2 of stride 2, from the smallest size on.
        back: A block per size, of what came up and what was there on the way down.
        head: A 1×1 convolution to the classes.
    """

    def __init__(self, depth: int, outputs: int, widths: Sequence[int], norm: Norm) -> None:
        super().__init__()
        sizes = list(pairwise(widths[::-1]))
        self.down = nn.ModuleList(_block(a, b, norm) for a, b in pairwise((depth, *widths)))
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in sizes)
        self.back = nn.ModuleList(_block(2 * b, b, norm) for _, b in sizes)
        self.head = nn.Conv2d(widths[0], outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [N, outputs, H, W] of images [N, depth, H, W]."""
        before: list[Tensor] = []
        for place, block in enumerate(self.down):
            x = block(self.pool(x) if place else x)
            before.append(x)
        before.pop()
        for up, block in zip(self.up, self.back, strict=True):
            x = block(torch.cat([before.pop(), up(x)], 1))
        logits: Tensor = self.head(x)
        return logits


def unet(
    shape: Shape, outputs: int, *, widths: Sequence[int] = (8, 16, 32), norm: Norm = "batch"
) -> UNet:
    """A U-Net, which returns a logit of every class at every pixel [N, outputs, H, W].

    Two 3×3 convolutions with ReLU at each size, 2×2 max pooling on the way down, transposed
    convolutions on the way up, skip connections, and a 1×1 convolution as the head.

    Args:
        shape: Of one image; its sides are multiples of 2^(len(widths) − 1).
        outputs: Number of classes.
        widths: Channels at each size, from the image's own down.
        norm: After each 3×3 convolution: "batch", "group" (GroupNorm of groups of eight channels,
            which keeps no statistics that sites would differ in) or "none".

    Note:
        With widths [8, 16, 32], one channel and two classes: 29 490 parameters with BatchNorm.

    Source:
        Ronneberger et al. 2015, "U-Net".

    Departs from:
        it in convolutions that keep the size, so that masks are of the image's own; in
        normalisation, which it lacks; in widths, which it has from 64 to 1024.
    """
    whole_numbers("unet(widths)", widths)
    if not widths:
        raise UnseenError("unet(widths) needs at least one width; found none.")
    depth, *sides = image("unet", shape, 2 ** (len(widths) - 1))
    step = 2 ** (len(widths) - 1)
    if any(side % step for side in sides):
        raise UnseenError(
            f"unet of {len(widths)} widths takes images whose sides are multiples of {step}; found "
            f"{sides[0]} by {sides[1]}.",
            remedy="Read the images at another size, or take fewer widths.",
        )
    if norm == "group" and any(width % GROUPED for width in widths):
        what = f"unet(norm='group') takes widths that are multiples of {GROUPED}; found "
        raise UnseenError(f"{what}{list(widths)}.")
    return UNet(depth, outputs, widths, norm)


def _block(before: int, after: int, norm: Norm) -> Sequential:
    """Two 3×3 convolutions, each normalised and rectified; BatchNorm makes a bias needless."""
    layers: dict[str, nn.Module] = {}
    for i, width in enumerate((before, after), start=1):
        layers[f"conv{i}"] = nn.Conv2d(width, after, 3, padding=1, bias=norm != "batch")
        if norm == "batch":
            layers[f"norm{i}"] = nn.BatchNorm2d(after)
        elif norm == "group":
            layers[f"norm{i}"] = nn.GroupNorm(after // GROUPED, after)
        layers[f"relu{i}"] = nn.ReLU()
    return named(**layers)
