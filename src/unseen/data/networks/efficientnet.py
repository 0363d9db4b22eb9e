"""EfficientNet-Lite under the names of efficientnet-lite-pytorch, so that its weights fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unseen.data.networks.digit_nets import image
from unseen.data.networks.layers import Shape
from unseen.data.networks.stages import Stage, Staged
from unseen.errors import number

#: TensorFlow's moving averages and what it adds to variances.
EPSILON, MOMENTUM = 1e-3, 0.01
#: What pixels from 0 to 255 are less, and over, before the first convolution.
CENTRE, SCALE = 127.0, 128.0
STEM, TOP = 32, 1280


class Group(NamedTuple):
    """Blocks of one width: how many, kernel, stride of the first, expansion, width."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    width: int


GROUPS = (
    Group(1, 3, 1, 1, 16), Group(2, 3, 2, 6, 24), Group(2, 5, 2, 6, 40), Group(3, 3, 2, 6, 80),
    Group(3, 5, 1, 6, 112), Group(4, 5, 2, 6, 192), Group(1, 3, 1, 6, 320),
)  # fmt: skip


def efficientnet_lite0(shape: Shape, outputs: int, *, dropout: float = 0.0) -> EfficientNetLite:
    """EfficientNet-Lite0; its weights are of images in colour, 224×224; grey ones count as three.

    Inverted residual blocks _blocks.0 to _blocks.15 without squeeze-and-excitation, ReLU6, head
    _fc. The input in [0, 1] is standardised as (255 x − 127) / 128.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        dropout: The share of features that a training step leaves out before the head.

    Note:
        With 1000 outputs: 4 652 008 parameters, 75.1 % of ImageNet's validation images right by the
        authors' figures. The blocks' maps have 16, 24, 40, 80, 112, 192 and 320 channels; the
        trunk ends in 1280 features.

    Source:
        Tan and Le 2019, Table 1, as its authors changed it for phones (2020, "Higher accuracy on
        vision models with EfficientNet-Lite").

    Departs from:
        The training of its authors, which leaves out 0.2 of the features, and whole blocks: an
        option, and never.
    """
    return EfficientNetLite("efficientnet-lite0", shape, outputs, 1.0, 1.0, dropout)


def efficientnet_lite1(shape: Shape, outputs: int, *, dropout: float = 0.0) -> EfficientNetLite:
    """EfficientNet-Lite1: Lite0 with 21 blocks; its weights are of 240×240.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        dropout: See `efficientnet_lite0`.

    Note:
        With 1000 outputs: 5 416 680 parameters, 76.7 % on ImageNet.

    Source:
        See `efficientnet_lite0`.
    """
    return EfficientNetLite("efficientnet-lite1", shape, outputs, 1.0, 1.1, dropout)


def efficientnet_lite2(shape: Shape, outputs: int, *, dropout: float = 0.0) -> EfficientNetLite:
    """EfficientNet-Lite2: 21 blocks, a tenth wider than those of Lite0; its weights are of 260×260.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        dropout: See `efficientnet_lite0`.

    Note:
        With 1000 outputs: 6 092 072 parameters, 77.6 % on ImageNet.

    Source:
        See `efficientnet_lite0`.
    """
    return EfficientNetLite("efficientnet-lite2", shape, outputs, 1.1, 1.2, dropout)


class EfficientNetLite(Staged):
    """A stem, inverted residual blocks, a 1×1 convolution, the mean over places, and a head.

    Args:
        name: The net, as errors name it.
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        width: What the blocks' channels are multiplied by; those of stem and top are the same.
        depth: What the numbers of blocks are multiplied by, but for the first and the last group.
        dropout: See `efficientnet_lite0`.
    """

    def __init__(
        self, name: str, shape: Shape, outputs: int, width: float, depth: float, dropout: float
    ) -> None:
        super().__init__()
        number("dropout", dropout, 0, 0.99)
        bands, _, _ = image(name, shape, smallest=1)
        self.bands = bands
        self._conv_stem = Same(3 if bands == 1 else bands, STEM, 3, stride=2)
        self._bn0 = norm(STEM)
        blocks, before = list[Block](), STEM
        for i, group in enumerate(GROUPS):
            inside = 0 < i < len(GROUPS) - 1
            after = rounded(group.width * width)
            for j in range(math.ceil(group.blocks * depth) if inside else group.blocks):
                stride = group.stride if j == 0 else 1
                blocks.append(Block(before, after, group.kernel, stride, group.expansion))
                before = after
        # Unlike in a list, a block that is cut off leaves the others their names.
        self._blocks = nn.ModuleDict({str(i): block for i, block in enumerate(blocks)})
        self._conv_head = nn.Conv2d(before, TOP, 1, bias=False)
        self._bn1 = norm(TOP)
        self._avg_pooling = nn.AdaptiveAvgPool2d(1)
        self._dropout = nn.Dropout(dropout)
        self._fc = nn.Linear(TOP, outputs)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def stages(self) -> tuple[Stage, ...]:
        names = [f"_blocks.{name}" for name in self._blocks]
        return (
            Stage("stem", ("_conv_stem", "_bn0"), self._stem),
            *(Stage("block", (name,), self.get_submodule(name)) for name in names),
            Stage("top", ("_conv_head", "_bn1"), self._top),
            Stage("head", ("_dropout", "_fc"), self._head),
        )

    def _stem(self, x: Tensor) -> Tensor:
        if self.bands == 1:
            x = x.expand(-1, 3, -1, -1)
        x = (255 * x - CENTRE) / SCALE
        return relu6(self._bn0(self._conv_stem(x)))

    def _top(self, x: Tensor) -> Tensor:
        x = relu6(self._bn1(self._conv_head(x)))
        return torch.flatten(self._avg_pooling(x), 1)

    def _head(self, x: Tensor) -> Tensor:
        z: Tensor = self._fc(self._dropout(x))
        return z


class Block(nn.Module):
    """A 1×1 convolution that widens, one by channel, a 1×1 that narrows, and x where it fits.

    Each with BatchNorm, the first two with ReLU6.
    """

    def __init__(self, before: int, after: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = before * expansion
        if expansion > 1:
            self._expand_conv = nn.Conv2d(before, inner, 1, bias=False)
            self._bn0 = norm(inner)
        self._depthwise_conv = Same(inner, inner, kernel, stride=stride, groups=inner)
        self._bn1 = norm(inner)
        self._project_conv = nn.Conv2d(inner, after, 1, bias=False)
        self._bn2 = norm(after)
        self.widens, self.adds = expansion > 1, stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y = relu6(self._bn0(self._expand_conv(x))) if self.widens else x
        y = relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        out: Tensor = x + y if self.adds else y
        return out


class Same(nn.Conv2d):
    """A convolution with TensorFlow's padding, of which an odd zero goes right and below."""

    def __init__(
        self, before: int, after: int, kernel: int, *, stride: int = 1, groups: int = 1
    ) -> None:
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(before, after, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride[0] > 1:
            x = nn.functional.pad(x, [*self._sides(x.shape[3]), *self._sides(x.shape[2])])
        y: Tensor = super().forward(x)
        return y

    def _sides(self, length: int) -> Iterator[int]:
        """Zeros before and after an axis, so that the output has ⌈length / stride⌉ places."""
        stride, kernel = self.stride[0], self.kernel_size[0]
        total = max((math.ceil(length / stride) - 1) * stride + kernel - length, 0)
        yield from (total // 2, total - total // 2)


def norm(channels: int) -> nn.BatchNorm2d:
    """Return BatchNorm with TensorFlow's constants."""
    return nn.BatchNorm2d(channels, EPSILON, MOMENTUM)


def relu6(x: Tensor) -> Tensor:
    """Return min(max(x, 0), 6)."""
    return nn.functional.hardtanh(x, 0.0, 6.0)


def rounded(channels: float) -> int:
    """Return the nearest multiple of 8 that is not less than 0.9 of the number."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest
