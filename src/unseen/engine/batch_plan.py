"""What a batch of models needs before its first step: data, batches, rates, and what is indices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Split, Turn
from unseen.core.losses import Loss
from unseen.core.parts import layers
from unseen.engine.perceptrons import Chain, targets
from unseen.methods.gradient.backprop import Batched
from unseen.methods.local.batches import batch_grid
from unseen.methods.local.train import Train


@dataclass(frozen=True)
class Member:
    """One model of a batch, which trains as `local` would train it alone.

    Attributes:
        model: Its network.
        client, inbox, memory, turn: Whose data it meets, and what came with it.
        local: The training.
        chain: What its network is.
    """

    model: Model
    client: Client
    inbox: Inbox
    memory: Memory
    turn: Turn
    local: Train
    chain: Chain

    @property
    def split(self) -> Split:
        """The rows it trains on."""
        return self.client.split("train")


class Answer(NamedTuple):
    """What a member replies: the vector [P] after its training, and scalars."""

    vector: Tensor
    scalars: Mapping[str, float]


@dataclass(frozen=True)
class BatchPlan:
    """What every step of the M models needs, on their device, before the first of them.

    Attributes:
        index: Rows of the pooled data [T, M, B].
        shares: Each example's share of its batch, 0 for padding [T, M, B].
        sizes: The examples of each batch [T, M].
        rates: Learning rates [T, M, 1]; 0 from a model's last step on.
        columns: One number per model [M, 1], by the name of an option.
        constant: What is added to every gradient of a model [M, P]; None for nothing.
        changes: What is done to a step's batch, outermost first, and with which draws [T, M, ...].
    """

    index: Tensor
    shares: Tensor
    sizes: Tensor
    rates: Tensor
    columns: Mapping[str, Tensor]
    constant: Tensor | None
    changes: Sequence[tuple[Batched, tuple[Tensor, ...]]]


class Pool:
    """Training splits of many clients in one tensor on the device, each of them once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.begin: dict[int, int] = {}
        self.x, self.y = torch.empty(0), torch.empty(0)
        self.splits: list[Split] = []  # alive, so that no other's rows get the id of one's
        self._targets: dict[tuple[Loss, int], Tensor] = {}

    def add(self, splits: Iterable[Split]) -> None:
        """Take in the splits that are not here yet."""
        new = {id(split.x): split for split in splits if id(split.x) not in self.begin}
        if not new:
            return
        for split in new.values():
            self.begin[id(split.x)] = sum(map(len, self.splits))
            self.splits.append(split)
        self.x = torch.cat([s.x for s in self.splits]).to(self.device)  # type: ignore[misc]
        self.y = torch.cat([s.y for s in self.splits]).to(self.device)
        self._targets.clear()

    def batch(self, index: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs [M, B, ...] and targets [M, B, C], of the targets of all rows."""
        x = self.x.index_select(0, index.flatten()).view(*index.shape, *self.x.shape[1:])
        own = targets.index_select(0, index.flatten())
        return (x.float() / 255 if x.dtype == torch.uint8 else x.float()), own.view(
            *index.shape, -1
        )

    def targets(self, loss: Loss, outputs: int) -> Tensor:
        """Return what the outputs should be [N, C], for all rows."""
        if (key := (loss, outputs)) not in self._targets:
            self._targets[key] = targets(self.y, loss, outputs)
        return self._targets[key]


def planned(members: Sequence[Member], pool: Pool) -> BatchPlan:
    """Plan every member's batches, as drawn when it trains alone, and its numbers."""
    device, M = pool.device, len(members)
    grids = [batch_grid(len(m.split), m.local.training, m.turn) for m in members]
    T, B = max(map(len, grids)), max(grid.shape[1] for grid in grids)
    index = torch.full((T, M, B), -1)
    rates, begins = torch.zeros(M), torch.zeros(M, dtype=torch.long)
    for m, (member, grid) in enumerate(zip(members, grids, strict=True)):
        recipe, turn = member.local.training, member.turn
        rates[m] = recipe.optimiser.lr * recipe.schedule(turn.round, turn.rounds)
        begins[m] = pool.begin[id(member.split.x)]
        index[: len(grid), m, : grid.shape[1]] = grid
    there = index >= 0
    sizes = there.sum(-1)
    shares = there / sizes.clamp(min=1).unsqueeze(-1)
    begins = begins.unsqueeze(1)  # padding is a model's own first row
    index = torch.where(there, index + begins, begins.clamp(max=len(pool.y) - 1))
    names = ("momentum", "weight_decay", "beta1", "beta2", "eps")
    numbers = {n: [getattr(m.local.training.optimiser, n, 0.0) for m in members] for n in names}
    steps = [own[:count] for own, count in zip(sizes.T.tolist(), map(len, grids), strict=True)]
    numbers["mu"], constant, changes = wrapped(members, steps, (T, B), device)
    return BatchPlan(
        index=index.to(device),
        shares=shares.to(device),
        sizes=sizes.float().to(device),
        rates=(rates * (sizes > 0)).unsqueeze(-1).to(device),
        columns={n: torch.tensor(v, device=device).unsqueeze(1) for n, v in numbers.items()},
        constant=constant,
        changes=changes,
    )


def wrapped(
    members: Sequence[Member],
    sizes: Sequence[Sequence[int]],
    form: tuple[int, int],
    device: torch.device,
) -> tuple[list[float], Tensor | None, list[tuple[Batched, tuple[Tensor, ...]]]]:
    """Return what the wrappers around the members' gradients do to every step.

    Args:
        members: M models, whose gradients have the same wrappers with their own options.
        sizes: The examples of each member's steps.
        form: T and B.
        device: Where the models are.

    Returns:
        μ of each one's proximal terms, what is added to their gradients [M, P], and the changes of
        their batches with their draws.
    """
    mu, changes = [0.0] * len(members), list[tuple[Batched, tuple[Tensor, ...]]]()
    constant: Tensor | None = None
    for own in zip(*(layers(member.local.gradient) for member in members), strict=True):
        if not isinstance(own[0], Batched):
            continue
        mu = [now + part.pull for now, part in zip(mu, own, strict=True)]
        added = [p.constant(m.inbox, m.memory) for p, m in zip(own, members, strict=True)]
        if any(row is not None for row in added):
            nothing = torch.zeros_like(next(row for row in added if row is not None))
            rows = torch.stack([nothing if row is None else row for row in added])
            constant = rows if constant is None else constant + rows
        draws = [
            part.draws(member.inbox, member.client, member.turn, steps, form)
            for part, member, steps in zip(own, members, sizes, strict=True)
        ]
        if draws[0]:
            together = tuple(torch.stack(each, 1).to(device) for each in zip(*draws, strict=True))
            changes.append((own[0], together))
    return mu, constant, changes
