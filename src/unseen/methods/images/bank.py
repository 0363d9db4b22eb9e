"""Banks: what every client sends of a few of its images to all others."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unseen.core import Client, Exchange, Inbox, Memory, Method, Model, Put, Reply, Slot, Turn
from unseen.errors import UnseenError, number
from unseen.methods.combine import Collect


@dataclass(frozen=True)
class Bank:
    """The local of an exchange in which each client sends `describe(x)` of a few images.

    Every client receives every row.

    Attributes:
        name: Of the exchange, its slot and its inbox entry.
        describe: Images [N, C, H, W] -> [N, ...].
        count: Images per client, drawn from the training split without replacement, and again from
            the start where it has fewer, so that all rows are of one length.
    """

    name: str
    describe: Callable[[Tensor], Tensor]
    count: int = 16

    def __post_init__(self) -> None:
        number(f"{self.name}(bank)", self.count, 1, whole=True)

    def exchange(self, every: int = 0) -> Exchange:
        """Return the exchange, of all clients: in round 0, then each `every` rounds unless 0."""
        slot = Slot(Collect(), apply=Put(), sends="value", start=self.start)
        return Exchange(self.name, self, {self.name: slot}, rounds=(0, every), who="all")

    def start(self, model: Model) -> Tensor:
        """Return one client's row before it has sent any: zeros."""
        if model.shape is None or len(model.shape) != 3:
            raise UnseenError(
                f"{self.name} collects images' properties, so the shape of one image must be known "
                f"beforehand: Model(module, shape=(channels, height, width)); found {model.shape}."
            )
        one = torch.zeros(1, *model.shape, dtype=model.vector.dtype)
        return torch.zeros(self.count * self.describe(one).numel()).to(model.vector)

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        split = client.split("train")
        n = len(split)
        index = torch.randperm(n, generator=turn.generator("bank"))
        index = index.repeat(math.ceil(self.count / n))[: self.count]
        row = self.describe(split.batch(index.to(split.x.device))[0]).flatten()
        return Reply({self.name: row}, {"examples": n}), memory

    def others(self, inbox: Inbox, turn: Turn) -> Tensor:
        """Return what the other clients sent, one row per image; a lone client's own."""
        rows = inbox[self.name]
        answered = rows.any(dim=1)  # the row of a client whose reply never came is all zeros
        if 0 <= turn.index < len(answered) and int(answered.sum()) > int(answered[turn.index]):
            answered[turn.index] = False
        if not bool(answered.any()):
            raise UnseenError(f"no client's reply to the exchange {self.name!r} was received.")
        return rows[answered].reshape(-1, rows.shape[1] // self.count)

    def draw(self, pool: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Return `count` rows of what `others` gave, each drawn uniformly and independently."""
        return pool[torch.randint(len(pool), (count,), generator=generator).to(pool.device)]


def with_bank(method: Method, bank: Bank, every: int = 0) -> Method:
    """Return the method with the bank's exchange before all others."""
    return replace(method, exchanges=(bank.exchange(every), *method.exchanges))
