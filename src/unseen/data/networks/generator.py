"""FedADG's network: beside the head, a generator of the features that clients align theirs to."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.data.networks.layers import around_head


class Generator(nn.Module):
    """ReLU(W₂ LeakyReLU(W₁ (e, h) + b₁) + b₂) of noise e [N, noise] and one-hot labels h [N, C].

    Args:
        features: What it makes, as many as enter the head.
        classes: C.
        noise: Numbers of noise.
        width: Of the hidden layer.
    """

    def __init__(self, features: int, classes: int, noise: int, width: int) -> None:
        super().__init__()
        self.classes, self.noise = classes, noise
        self.first = nn.Linear(noise + classes, width)
        self.second = nn.Linear(width, features)
        draws = torch.Generator().manual_seed(0)  # no study's draw: the same weights everywhere
        for layer in (self.first, self.second):
            nn.init.xavier_uniform_(layer.weight, generator=draws)
            nn.init.zeros_(layer.bias)

    def forward(self, e: Tensor, y: Tensor) -> Tensor:
        h = F.one_hot(y, self.classes).to(e.dtype)
        hidden = F.leaky_relu(self.first(torch.cat([e, h], 1)))
        features: Tensor = self.second(hidden).relu()
        return features


class Referred(nn.Module):
    """The head, and beside it the generator, which outputs do not depend on.

    Args:
        head: The linear layer that is replaced.
        generator: Of what enters it.
    """

    def __init__(self, head: nn.Linear, generator: Generator) -> None:
        super().__init__()
        self.generator = generator  # before the head, which stays the last linear layer
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(x)
        return outputs


def with_generator(network: nn.Module, noise: int, width: int) -> nn.Module:
    """Return the network with a generator of features beside its last linear layer."""

    def beside(head: nn.Linear) -> nn.Module:
        classes = max(2, head.out_features)
        return Referred(head, Generator(head.in_features, classes, noise, width))

    return around_head(network, beside, "fedadg generates what enters")
