"""DenseNet-121 under torchvision's names, so that published weights fit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unseen.models.digit_nets import image
from unseen.models.layers import named, standardising

DEPTHS = (6, 12, 24, 16)
GROWTH = 32


def densenet121(
    shape: tuple[int, ...], outputs: int, *, standardise: bool = False
) -> nn.Sequential:
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
        """Return maps [N, before + depth · 32, H, W]."""
        maps = [x]
        for layer in self.values():
            maps.append(layer(torch.cat(maps, 1)))
        return torch.cat(maps, 1)
