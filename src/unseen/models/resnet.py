"""ResNets under torchvision's names, so that published weights fit.

No activation here works in place: hooks read what lies before it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from unseen.errors import choice
from unseen.models.digit_nets import image
from unseen.models.layers import standardising

HeadKind = Literal["plain", "csac"]


def resnet18(
    shape: tuple[int, ...], outputs: int, *, head: HeadKind = "plain", standardise: bool = False
) -> ResNet:
    """ResNet-18, for images of any size and number of bands.

    3×3 convolutions in pairs with a shortcut, layer1 to layer4, head fc. With 3 bands and 1000
    plain outputs: 11 689 512 parameters. At 224×224 the layers' maps are 64×56², 128×28², 256×14²,
    512×7²; the whole net halves the side five times, so small images end in one pixel.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        head: "csac" puts a linear layer to 256 with BatchNorm and ReLU (`bottleneck`) before fc, as
            CSAC's released code does.
        standardise: Subtract the mean of ImageNet's pixels and divide by their deviation, by band,
            as for the images that torchvision's weights were trained on.

    Source:
        He et al. 2016, Table 1, the first weights as in torchvision.
    """
    bands, _, _ = image("resnet18", shape, smallest=1)
    choice("resnet18(head)", head, ("plain", "csac"))
    first = standardising("resnet18", bands) if standardise else nn.Identity()
    return ResNet(bands, outputs, (2, 2, 2, 2), False, head, first)


def resnet50(
    shape: tuple[int, ...], outputs: int, *, head: HeadKind = "plain", standardise: bool = False
) -> ResNet:
    """ResNet-50, for images of any size and number of bands.

    1×1, 3×3, 1×1 convolutions with a shortcut, layer1 to layer4, head fc. With 3 bands and 1000
    plain outputs: 25 557 032 parameters. At 224×224 the layers' maps are 256×56², 512×28²,
    1024×14², 2048×7².

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        head: See `resnet18`.
        standardise: See `resnet18`.

    Source:
        He et al. 2016, Table 1.

    Departs from:
        The paper as torchvision does: where the side is halved, the 3×3 convolution has the stride
        and not the first 1×1.
    """
    bands, _, _ = image("resnet50", shape, smallest=1)
    choice("resnet50(head)", head, ("plain", "csac"))
    first = standardising("resnet50", bands) if standardise else nn.Identity()
    return ResNet(bands, outputs, (3, 4, 6, 3), True, head, first)


class ResNet(nn.Module):
    """A stem, four stages of blocks and a head, under torchvision's names.

    depths: blocks per stage. deep: of three convolutions each, the last four times as wide. first:
    what the images pass before the stem.
    """

    def __init__(
        self, bands: int, outputs: int, depths: tuple[int, ...], deep: bool, head: HeadKind,
        first: nn.Module,
    ) -> None:  # fmt: skip
        super().__init__()
        self.standardise = first
        self.conv1 = nn.Conv2d(bands, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        block = Deep if deep else Basic
        before, stages = 64, []
        for i, depth in enumerate(depths):
            width, blocks = 64 * 2**i, []
            for j in range(depth):
                blocks.append(block(before, width, stride=2 if i > 0 and j == 0 else 1))
                before = width * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.bottleneck: nn.Module = nn.Identity()
        if head == "csac":
            self.bottleneck = nn.Sequential(nn.Linear(before, 256), nn.BatchNorm1d(256), nn.ReLU())
            before = 256
        self.fc = nn.Linear(before, outputs)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, outputs] of images [N, bands, H, W]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(self.standardise(x)))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = self.bottleneck(torch.flatten(self.avgpool(x), 1))
        z: Tensor = self.fc(x)
        return z


class Basic(nn.Module):
    """relu(x + two 3×3 convolutions of x)."""

    expansion = 1

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(before, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The block's maps."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        out: Tensor = self.relu(y + (x if self.downsample is None else self.downsample(x)))
        return out


class Deep(nn.Module):
    """relu(x + a 1×1, a 3×3 and a 1×1 convolution of x); four times as wide at the end."""

    expansion = 4

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(before, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The block's maps."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        out: Tensor = self.relu(y + (x if self.downsample is None else self.downsample(x)))
        return out


def _shortcut(before: int, after: int, stride: int) -> nn.Sequential | None:
    """A 1×1 convolution where the block changes the shape; none where x can be added as it is."""
    if stride == 1 and before == after:
        return None
    return nn.Sequential(
        nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after)
    )
