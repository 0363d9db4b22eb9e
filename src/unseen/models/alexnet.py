"""AlexNet under torchvision's names, and FedBN's with BatchNorm under its own.

Note:
    No activation here works in place: hooks read what lies before it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from unseen.errors import choice, number
from unseen.models.digit_nets import image
from unseen.models.layers import Sequential, named, standardising

#: Below this side nothing is left after the third pooling.
SMALLEST = 63


def alexnet(
    shape: tuple[int, ...],
    outputs: int,
    *,
    head: Literal["plain", "csac"] = "plain",
    dropout: float = 0.5,
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
    choice("alexnet(head)", head, ("plain", "csac"))
    number("alexnet(dropout)", dropout, 0, math.nextafter(1, 0))
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


def alexnet_bn(shape: tuple[int, ...], outputs: int) -> nn.Sequential:
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
    features: dict[str, nn.Module] = {}
    widths, kernels = (bands, 64, 192, 384, 256, 256), (11, 5, 3, 3, 3)
    for i, (before, width) in enumerate(pairwise(widths), start=1):
        stride, padding = (4, 2) if i == 1 else (1, kernels[i - 1] // 2)
        features[f"conv{i}"] = nn.Conv2d(before, width, kernels[i - 1], stride, padding)
        features[f"bn{i}"] = nn.BatchNorm2d(width)
        features[f"relu{i}"] = nn.ReLU()
        if i in (1, 2, 5):
            features[f"maxpool{i}"] = nn.MaxPool2d(3, stride=2)
    return named(
        features=named(**features),
        avgpool=MeanPool(6),
        flatten=nn.Flatten(),
        classifier=named(
            fc1=nn.Linear(256 * 6 * 6, 4096),
            bn6=nn.BatchNorm1d(4096),
            relu6=nn.ReLU(),
            fc2=nn.Linear(4096, 4096),
            bn7=nn.BatchNorm1d(4096),
            relu7=nn.ReLU(),
            fc3=nn.Linear(4096, outputs),
        ),
    )


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
        """Return maps [N, C, side, side]."""
        if x.shape[-2:] == (self.side, self.side):
            return x
        return self.means(x.shape[-2], x) @ x @ self.means(x.shape[-1], x).T

    def means(self, length: int, like: Tensor) -> Tensor:
        """Return the weights of the means.

        Returns:
            [side, length]: row i averages the entries ⌊i·length/side⌋ to ⌈(i+1)·length/side⌉ − 1.
        """
        cell = torch.arange(self.side, device=like.device)[:, None]
        entry = torch.arange(length, device=like.device)
        first, end = cell * length // self.side, -(-(cell + 1) * length // self.side)
        inside = ((entry >= first) & (entry < end)).to(like.dtype)
        return inside / inside.sum(1, keepdim=True)

    def extra_repr(self) -> str:
        """Return the side."""
        return f"side={self.side}"
