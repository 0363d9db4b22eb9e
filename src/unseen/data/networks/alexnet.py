"""AlexNet and DenseNet-121 under torchvision's names, FedBN's AlexNet under its own.

Note:
    No activation here works in place: hooks read what lies before it.
"""

import math
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from unseen.data.networks.digit_nets import image
from unseen.data.networks.layers import Sequential, Shape, named, numbered, standardising
from unseen.ranges import Range

#: Below this side nothing is left after the third pooling.
SMALLEST = 63


def alexnet(
    shape: Shape,
    outputs: int,
    *,
    head: Literal["plain", "csac"] = "plain",
    dropout: Annotated[float, Range(0, math.nextafter(1, 0))] = 0.5,
    standardise: bool = False,
) -> nn.Sequential:
    """AlexNet in torchvision's widths, for images of 63×63 and larger, any number of bands.

    Five convolutions (features.0, .3, .6, .8, .10) and three linear layers, the last of them
    classifier.6.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        head: "csac" draws the weights of classifier.6 from Glorot's uniform, a tenth as large, and
            sets its bias to zero, as CSAC's released code does.
        dropout: Before the first two linear layers.
        standardise: See `resnet18`.

    Note:
        With 3 bands and 1000 outputs: 61 100 840 parameters. At 224×224 the maps after the
        convolutions are 64×55², 192×27², 384×13², 256×13², 256×13², and 256×6² are flattened.
        CSAC's last three convolutions are
        `csac(layers=["features.6", "features.8", "features.10"])`; its released code reads them
        after ReLU and pooling: features.7, features.9, features.12.

    Source:
        Krizhevsky 2014 (one column, no response normalisation), as in torchvision.
    """
    bands, _, _ = image("alexnet", shape, SMALLEST)
    net = named(
        **standardising("alexnet", bands, standardise),
        features=Sequential(
            nn.Conv2d(bands, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=2),
        ),
        avgpool=MeanPool(6),
        flatten=nn.Flatten(),
        classifier=nn.Sequential(
            nn.Dropout(dropout), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(),
            nn.Dropout(dropout), nn.Linear(4096, 4096), nn.ReLU(),
            last := nn.Linear(4096, outputs),
        ),
    )  # fmt: skip
    if head == "csac":
        nn.init.xavier_uniform_(last.weight, gain=0.1)
        nn.init.zeros_(last.bias)
    return net


def alexnet_bn(shape: Shape, outputs: int) -> nn.Sequential:
    """FedBN's AlexNet: BatchNorm after every layer but the last, no dropout, head classifier.fc3.

    Images of 63×63 and larger, any number of bands.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.

    Note:
        The names are those of FedBN's released net: features.conv1 to features.bn5, classifier.fc1,
        bn6, fc2, bn7, fc3. GA's DomainNet has "the same model structure"; FedBN trains it from
        scratch on 256×256 images. With 3 bands and ten classes: 57 063 498 parameters.

    Source:
        Li et al. 2021, "FedBN: Federated Learning on Non-IID Features via Local Batch
        Normalization".
    """
    bands, _, _ = image("alexnet-bn", shape, SMALLEST)

    def block(before: int, width: int, i: int) -> dict[str, nn.Module]:
        kernel, stride, padding = ((11, 4, 2), (5, 1, 2), (3, 1, 1))[min(i, 3) - 1]
        conv = nn.Conv2d(before, width, kernel, stride, padding)
        pool = {"maxpool": nn.MaxPool2d(3, stride=2)} if i in (1, 2, 5) else {}
        return {"conv": conv, "bn": nn.BatchNorm2d(width), "relu": nn.ReLU(), **pool}

    return named(
        features=named(**numbered((bands, 64, 192, 384, 256, 256), block)),
        avgpool=MeanPool(6),
        flatten=nn.Flatten(),
        classifier=named(
            fc1=nn.Linear(256 * 6 * 6, 4096), bn6=nn.BatchNorm1d(4096), relu6=nn.ReLU(),
            fc2=nn.Linear(4096, 4096), bn7=nn.BatchNorm1d(4096), relu7=nn.ReLU(),
            fc3=nn.Linear(4096, outputs),
        ),
    )  # fmt: skip


class MeanPool(nn.Module):
    """Means over side × side cells of a map, which overlap where the sides do not divide.

    Note:
        What `nn.AdaptiveAvgPool2d(side)` computes, as two matrix products, since that layer has no
        deterministic gradient on a GPU. A map of that size passes as it is.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] == (self.side, self.side):
            return x
        return self.means(x.shape[-2], x) @ x @ self.means(x.shape[-1], x).T

    def means(self, length: int, like: Tensor) -> Tensor:
        """Return the weights of the means.

        Returns:
            [side, length]: row i averages the entries ⌊i·length/side⌋ to ⌈(i+1)·length/side⌉ − 1.
        """
        cell, entry = (torch.arange(n, device=like.device) for n in (self.side, length))
        cell = cell[:, None]
        first, end = cell * length // self.side, -(-(cell + 1) * length // self.side)
        inside = ((entry >= first) & (entry < end)).to(like.dtype)
        return inside / inside.sum(1, keepdim=True)


DEPTHS = (6, 12, 24, 16)
GROWTH = 32


def densenet121(shape: Shape, outputs: int, *, standardise: bool = False) -> nn.Sequential:
    """DenseNet-121: four blocks in which each layer reads the maps of all before it.

    The head is classifier. Images of 29×29 and larger, any number of bands.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        standardise: See `resnet18`.

    Note:
        With 3 bands and 1000 outputs: 7 978 856 parameters. At 224×224 the blocks' maps are
        256×56², 512×28², 1024×14², 1024×7².

    Source:
        Huang et al. 2017, Table 1, growth 32 and compression 1/2, the first weights as in
        torchvision.
    """
    bands, _, _ = image("densenet121", shape, smallest=29)
    parts: dict[str, nn.Module] = {
        "conv0": nn.Conv2d(bands, 64, 7, stride=2, padding=3, bias=False),
        "norm0": nn.BatchNorm2d(64),
        "relu0": nn.ReLU(),
        "pool0": nn.MaxPool2d(3, stride=2, padding=1),
    }
    width = 64
    for i, depth in enumerate(DEPTHS, start=1):
        parts[f"denseblock{i}"] = DenseBlock(width, depth)
        width += depth * GROWTH
        if i < len(DEPTHS):
            parts[f"transition{i}"] = named(
                norm=nn.BatchNorm2d(width),
                relu=nn.ReLU(),
                conv=nn.Conv2d(width, width // 2, 1, bias=False),
                pool=nn.AvgPool2d(2),
            )
            width //= 2
    net = named(
        **standardising("densenet121", bands, standardise),
        features=named(**parts, norm5=nn.BatchNorm2d(width)),
        relu=nn.ReLU(),
        mean=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=nn.Linear(width, outputs),
    )
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
        elif isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
    return net


class DenseBlock(nn.ModuleDict):
    """The maps that came in, and those of each layer, made from all before it."""

    def __init__(self, before: int, depth: int) -> None:
        super().__init__()
        for i in range(depth):
            width = before + i * GROWTH
            self[f"denselayer{i + 1}"] = named(
                norm1=nn.BatchNorm2d(width),
                relu1=nn.ReLU(),
                conv1=nn.Conv2d(width, 4 * GROWTH, 1, bias=False),
                norm2=nn.BatchNorm2d(4 * GROWTH),
                relu2=nn.ReLU(),
                conv2=nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False),
            )

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer in self.values():
            maps.append(layer(torch.cat(maps, 1)))
        return torch.cat(maps, 1)
