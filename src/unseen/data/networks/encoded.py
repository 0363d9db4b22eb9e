"""FedSR's network: features that are drawn from a normal distribution in front of the head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.data.networks.layers import around_head

#: softplus⁻¹(0.1).
FIRST = -2.2521684610440904


class Encoded(nn.Module):
    """h(z), z ~ N(μ(f), σ(f)²) in training and z = μ(f) else, for the features f that enter.

    μ and σ = softplus(s) are a linear layer of f; r(z | y) = N(m_y, softplus(t_y)²) is what `fedsr`
    holds them to, one distribution for each class.

    Args:
        head: The linear layer that is replaced; h begins as it.
    """

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        d, classes = head.in_features, max(2, head.out_features)  # two where one logit tells them
        self.encoder = nn.Linear(d, 2 * d)
        with torch.no_grad():  # μ(f) = f and σ(f) = 0.1 at first, so that a trained net stays one
            self.encoder.weight.zero_()
            self.encoder.weight[:d].fill_diagonal_(1)
            self.encoder.bias.zero_()
            self.encoder.bias[d:].fill_(FIRST)
        self.mean = nn.Parameter(torch.zeros(classes, d))
        self.spread = nn.Parameter(torch.ones(classes, d))
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = split(self.encoder(x))
        if self.training:
            mean = mean + deviation * torch.randn_like(mean)
        outputs: Tensor = self.head(mean)
        return outputs


def split(encoded: Tensor) -> tuple[Tensor, Tensor]:
    """Return μ and σ [N, d] of what the encoder gives [N, 2d]."""
    mean, raw = encoded.chunk(2, dim=1)
    return mean, F.softplus(raw)


def with_encoder(network: nn.Module) -> nn.Module:
    """Return the network with its last linear layer behind an encoder.

    Raises:
        UnseenError: It has none.
    """
    return around_head(network, Encoded, "fedsr encodes what enters")
