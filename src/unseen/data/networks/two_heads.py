"""JiGen's network: a second head beside the first, which only training reads."""

from __future__ import annotations

from torch import Tensor, nn

from unseen.data.networks.layers import around_head


class TwoHeads(nn.Module):
    """The outputs are those of the first head; the second tells the order of tiles.

    Args:
        head: The linear layer that is replaced.
        outputs: Of the second head, which begins at 0: all orders are as likely.
    """

    def __init__(self, head: nn.Linear, outputs: int) -> None:
        super().__init__()
        # Before the head, which stays the last linear layer of the net.
        self.order = nn.Linear(head.in_features, outputs)
        nn.init.zeros_(self.order.weight)
        nn.init.zeros_(self.order.bias)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(x)
        return outputs


def with_order(network: nn.Module, outputs: int) -> nn.Module:
    """Return the network with a second head of so many outputs beside its last linear layer."""
    return around_head(network, lambda head: TwoHeads(head, outputs), "jigen has a second head at")
