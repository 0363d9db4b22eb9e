"""A gradient or a statistic over a large training split: sums over parts of it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core import Client, Inbox, Memory, Model, Split, Turn

#: Numbers of inputs that a gradient over a whole split holds at a time; a larger split is summed
#: over in parts.
LARGE = 2**22
#: The same on a CPU, where what a convolution makes of more is written to memory and read again.
LARGE_ON_CPU = 2**19


@dataclass(frozen=True)
class InParts:
    """A split in parts of some rows.

    Attributes:
        split: The split.
        size: The rows of a part.
        device: Where the parts go.
    """

    split: Split
    size: int
    device: torch.device

    @property
    def count(self) -> int:
        return len(self.split)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for begin in range(0, self.count, self.size):
            x, y = self.split.batch(slice(begin, begin + self.size))
            yield x.to(self.device), y.to(self.device)


def in_parts(
    of: object, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn,
    chunk: int | None = None,
) -> Tensor | None:  # fmt: skip
    """Return what a gradient or a statistic is over a large training split, part by part.

    Args:
        of: The gradient or statistic.
        model: The model.
        inbox: What the client received.
        client: The client.
        memory: What it remembers.
        turn: Which exchange it is.
        chunk: The most rows of a part; None: as many as hold `LARGE` numbers, or `LARGE_ON_CPU`.

    Returns:
        None where the split is small, where its sums are not those of its parts, or where
        BatchNorm would normalise each part by itself: it is then to be taken whole.
    """
    split = client.split("train")
    large = LARGE_ON_CPU if torch.device(model.device).type == "cpu" else LARGE
    size = chunk or max(1, large // max(1, split.x[slice(0, 1)].numel()))
    norms = (m for m in model.module.modules() if isinstance(m, _BatchNorm))
    if len(split) <= size or not hasattr(of, "in_parts") or any(m.training for m in norms):
        return None
    parts = InParts(split, size, torch.device(model.device))
    value: Tensor | None = of.in_parts(model, inbox, client, memory, turn, parts)
    return value
