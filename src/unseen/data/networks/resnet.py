"""ResNets under torchvision's names, so that published weights fit.

Note:
    No activation here works in place: hooks read what lies before it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from unseen.data.networks.digit_nets import image
from unseen.data.networks.layers import Grey, Shape, standardising
from unseen.data.networks.stages import Stage, Staged
from unseen.ranges import Acts

HeadKind = Literal["plain", "csac"]


def resnet18(
    shape: Shape,
    outputs: int,
    *,
    head: HeadKind = "plain",
    standardise: Annotated[
        bool, Acts("weights='random'", lambda o: o["weights"] == "random")
    ] = False,
    weights: Literal["random", "imagenet"] = "random",
) -> ResNet:
    """ResNet-18, for images of any size and number of bands.

    3×3 convolutions in pairs with a shortcut, layer1 to layer4, head fc.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        head: "csac" puts a linear layer to 256 with BatchNorm and ReLU (`bottleneck`) before fc, as
            CSAC's released code does.
        standardise: Subtract the mean of ImageNet's pixels and divide by their deviation, by band,
            as for the images that torchvision's weights were trained on.
        weights: "imagenet" is the trunk of `resnet18/resnet18.safetensors` in the data folder,
            which has three blocks in layer4 and takes 255 x less the mean of ImageNet's pixels by
            band; studies load the file and check its digest, and the head begins at random.

    Note:
        The weights of "imagenet" are CNTK's, from the NuGet package
        Microsoft.ML.DnnImageFeaturizer.ResNet18 0.23.1 (MIT), under torchvision's names: in a table
        "ResNet-18 (2-2-2-3), ImageNet, CNTK's weights". They are not torchvision's, so compare
        gains, not levels, with tables of a ResNet-18. At 224×224 CNTK subtracts a mean image,
        whose means by band are subtracted here.

        With 3 bands and 1000 plain outputs: 11 689 512 parameters. At 224×224 the layers' maps are
        64×56², 128×28², 256×14², 512×7²; the whole net halves the side five times, so small images
        end in one pixel.

    Source:
        He et al. 2016, Table 1, the first weights as in torchvision.
    """
    if weights == "random":
        return ResNet("resnet18", shape, outputs, (2, 2, 2, 2), False, head, standardise)
    net = ResNet("resnet18", shape, outputs, (2, 2, 2, 3), False, head, False)
    net.standardise = Grey(shape[0])
    return net


def resnet50(
    shape: Shape, outputs: int, *, head: HeadKind = "plain", standardise: bool = False
) -> ResNet:
    """ResNet-50, for images of any size and number of bands.

    1×1, 3×3, 1×1 convolutions with a shortcut, layer1 to layer4, head fc.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        head: See `resnet18`.
        standardise: See `resnet18`.

    Note:
        With 3 bands and 1000 plain outputs: 25 557 032 parameters. At 224×224 the layers' maps are
        256×56², 512×28², 1024×14², 2048×7².

    Source:
        He et al. 2016, Table 1.

    Departs from:
        The paper as torchvision does: where the side is halved, the 3×3 convolution has the stride
        and not the first 1×1.
    """
    return ResNet("resnet50", shape, outputs, (3, 4, 6, 3), True, head, standardise)


class ResNet(Staged):
    """A stem, four stages of blocks and a head, under torchvision's names.

    Args:
        name: The net, as errors name it.
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        depths: Blocks of each stage.
        deep: Whether blocks are of three convolutions, the last four times as wide.
        head: See `resnet18`.
        standardise: See `resnet18`.
    """

    def __init__(
        self, name: str, shape: Shape, outputs: int, depths: tuple[int, ...],
        deep: bool, head: HeadKind, standardise: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        bands, _, _ = image(name, shape, smallest=1)
        first = standardising(name, bands, standardise)
        self.standardise = first.get("standardise", nn.Identity())
        self.conv1 = nn.Conv2d(bands, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        before, stages = 64, []
        for i, depth in enumerate(depths):
            blocks = []
            for j in range(depth):
                blocks.append(Block(before, 64 * 2**i, 2 if i > 0 and j == 0 else 1, deep))
                before = 64 * 2**i * (4 if deep else 1)
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

    def stages(self) -> tuple[Stage, ...]:
        layers = ("layer1", "layer2", "layer3", "layer4")
        names = [f"{n}.{i}" for n in layers for i in range(len(self.get_submodule(n)))]  # type: ignore[arg-type]
        return (
            Stage("stem", ("standardise", "conv1", "bn1"), self._stem),
            *(Stage("block", (name,), self.get_submodule(name)) for name in names),
            Stage("top", ("avgpool",), self._top),
            Stage("head", ("bottleneck", "fc"), self._head, in_turn=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.first or self.last is not None:
            return super().forward(x)
        x = self._stem(x)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)  # as one, since methods name layers and read what they make
        return self._head(self._top(x))

    def _stem(self, x: Tensor) -> Tensor:
        y: Tensor = self.maxpool(self.relu(self.bn1(self.conv1(self.standardise(x)))))
        return y

    def _top(self, x: Tensor) -> Tensor:
        return torch.flatten(self.avgpool(x), 1)

    def _head(self, x: Tensor) -> Tensor:
        z: Tensor = self.fc(self.bottleneck(x))
        return z


class Block(nn.ModuleDict):
    """relu(x + convolutions of x), each with BatchNorm, and ReLU between them.

    Two of 3×3, or, if deep, a 1×1, a 3×3 and a 1×1 that is four times as wide. Where they change
    the shape, a 1×1 convolution takes x there too.
    """

    def __init__(self, before: int, width: int, stride: int, deep: bool) -> None:
        super().__init__()
        plain = ((3, width, stride), (3, width, 1))
        layers = ((1, width, 1), (3, width, stride), (1, 4 * width, 1)) if deep else plain
        self.depth, inner = len(layers), before
        for i, (kernel, after, step) in enumerate(layers, start=1):
            self[f"conv{i}"] = nn.Conv2d(inner, after, kernel, step, kernel // 2, bias=False)
            self[f"bn{i}"] = nn.BatchNorm2d(after)
            inner = after
        self["relu"] = nn.ReLU()
        if stride > 1 or inner != before:
            shortcut = nn.Conv2d(before, inner, 1, stride=stride, bias=False)
            self["downsample"] = nn.Sequential(shortcut, nn.BatchNorm2d(inner))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i in range(1, self.depth + 1):
            y = self[f"bn{i}"](self[f"conv{i}"](y))
            if i < self.depth:
                y = self["relu"](y)
        out: Tensor = self["relu"](y + (self["downsample"](x) if "downsample" in self else x))
        return out
