"""StableFDG's network: beside the features that enter the head, its last maps by attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.models.layers import around_head


class LastMaps:
    """What a layer gave in the latest pass; a hook on that layer, which travels with copies.

    Args:
        layer: The layer.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.layer, self.maps = layer, torch.empty(0)

    def __call__(self, _layer: nn.Module, _inputs: object, output: Tensor) -> None:
        self.maps = output

    def take(self) -> Tensor:
        """Return the maps [N, C, H, W], and keep them no longer than the pass."""
        maps, self.maps = self.maps, torch.empty(0)
        return maps


class Highlighter(nn.Module):
    """h(f, Σ_p a_p z_p): what enters the head, and the last maps weighed by attention.

        a = softmax_p k_p·(q̄ + q̄')/2,   q̄ = mean_p q_p,   q_p, k_p = W_q z_p + b_q, W_k z_p + b_k

    z_p: the maps at pixel p; q_p and k_p are scaled to length 1; q̄': the mean query of the
    partner, of an example itself where it has none.

    Args:
        head: The linear layer that is replaced; h begins as it, with weights 0 for what is added.
        source: What keeps the last maps.
        channels: Of these.
        width: The length of queries and keys.

    Attributes:
        partners: For a training batch the place of each example's partner [N]; None: all are alone.
    """

    def __init__(self, head: nn.Linear, source: LastMaps, channels: int, width: int) -> None:
        super().__init__()
        self.source = source
        self.partners: Tensor | None = None
        self.query, self.key = nn.Linear(channels, width), nn.Linear(channels, width)
        draws = torch.Generator().manual_seed(0)  # no study's draw: the same weights everywhere
        for layer in (self.query, self.key):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", generator=draws)
            nn.init.zeros_(layer.bias)
        self.head = nn.Linear(head.in_features + channels, head.out_features, head.bias is not None)
        with torch.no_grad():
            self.head.weight.zero_()
            self.head.weight[:, : head.in_features] = head.weight
            if head.bias is not None:
                self.head.bias.copy_(head.bias)

    def forward(self, x: Tensor) -> Tensor:
        z = self.source.take().flatten(2).transpose(1, 2)
        query = F.normalize(self.query(z), dim=2).mean(1)
        if self.training and self.partners is not None and len(self.partners) == len(z):
            query = (query + query[self.partners]) / 2
        close = F.normalize(self.key(z), dim=2) @ query[:, :, None]
        attended = (close.softmax(1) * z).sum(1)
        outputs: Tensor = self.head(torch.cat([x, attended], 1))
        return outputs


def with_highlighter(network: nn.Module, layer: str, channels: int, width: int) -> nn.Module:
    """Return the network whose head also takes the maps of a layer, weighed by attention.

    Args:
        network: The network, which is changed.
        layer: The layer's name.
        channels: Of its maps.
        width: The length of queries and keys.
    """
    source = LastMaps(network.get_submodule(layer))
    source.layer.register_forward_hook(source)
    purpose = "stablefdg widens what enters"
    return around_head(network, lambda h: Highlighter(h, source, channels, width), purpose)
