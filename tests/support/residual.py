"""A small net with residual blocks, next to one of plain convolutions."""

from __future__ import annotations

import torch
from torch import nn

from unseen.core.turn import keyed
from unseen.data.networks import build

NAMES = ["site-a", "site-b", "site-c"]


class Residual(nn.Module):
    """Blocks by the names of a ResNet, with activations in place: maps of 8, 4 and 2 pixels."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.layer1, self.layer2, self.layer3 = Block(4, 4, 1), Block(4, 6, 2), Block(6, 8, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer3(self.layer2(self.layer1(self.stem(x)))).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, C, out, stride):
        super().__init__()
        self.conv = nn.Conv2d(C, out, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(out)
        self.skip = nn.Conv2d(C, out, 1, stride, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.norm(self.conv(x))
        out += self.skip(x)
        return self.relu(out)


def residual(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Residual()


def nets(kind: str) -> tuple[nn.Module, nn.Module, list[str]]:
    """The fused and the client's own model, and their layers."""
    fused, own = (
        build("bn-cnn", (1, 8, 8), 3, keyed(name)) if kind == "bn-cnn" else residual(seed)
        for seed, name in enumerate(("fused", "own"))
    )
    for module in own.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean += 0.2
            module.running_var *= 1.3
    return fused, own, ["conv1", "conv2"] if kind == "bn-cnn" else ["layer1", "layer2", "layer3"]
