"""What a batch of models needs before its first step: data, batches, rates, and what is indices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Split, Turn
from unseen.core.losses import Loss
from unseen.core.parts import layers
from unseen.core.turn import keyed
from unseen.engine.batch_layers import Masks, Trace, traced
from unseen.engine.batch_losses import targets
from unseen.engine.perceptrons import Chain
from unseen.methods.gradient.backprop import Batched
from unseen.methods.images.augment import Generators
from unseen.methods.local.batches import batch_grid
from unseen.methods.local.train import FullGradient, Measure, Penalised, Train
from unseen.methods.recipe import Training


@dataclass(frozen=True)
class Member:
    """One model of a batch: of which network, whose data it meets, and what came with it."""

    model: Model
    client: Client
    inbox: Inbox
    memory: Memory
    turn: Turn


@dataclass(frozen=True)
class Trainee(Member):
    """A model that trains by steps, as `local` would train it alone."""

    local: Train


@dataclass(frozen=True)
class Examinee(Member):
    """A model that stays as it is and meets the whole training split once.

    Attributes:
        local: What is sent: a gradient or a statistic.
        penalty: What adds a penalty's gradient to the reply.
    """

    local: FullGradient | Measure
    penalty: Penalised | None = None


class Answer(NamedTuple):
    """What a member replies: rows by name, of a training the vector [P] after it, and scalars."""

    rows: Mapping[str, Tensor]
    scalars: Mapping[str, float]


@dataclass(frozen=True)
class Now:
    """What one step of the M models needs.

    Attributes:
        index: Rows of the pooled data [M, B].
        share: Each example's share of its batch, 0 for padding [M, B].
        size: The examples of each batch [M].
        rate: Learning rates [M, 1].
        draws: Those of the changes of the batch.
        masks: Those of Dropout's calls [M, B, ...].
    """

    index: Tensor
    share: Tensor
    size: Tensor
    rate: Tensor
    draws: tuple[tuple[Tensor, ...], ...]
    masks: tuple[Tensor, ...]

    def tensors(self) -> Iterator[Tensor]:
        yield from (self.index, self.share, self.size, self.rate, *self.masks)
        for own in self.draws:
            yield from own

    def clone(self) -> Now:
        """Return it in tensors of its own."""
        draws = tuple(tuple(values.clone() for values in own) for own in self.draws)
        masks = tuple(mask.clone() for mask in self.masks)
        return Now(
            self.index.clone(), self.share.clone(), self.size.clone(), self.rate.clone(), draws,
            masks,
        )  # fmt: skip

    def copy_(self, other: Now) -> None:
        """Take on another step's values, in place."""
        for own, values in zip(self.tensors(), other.tensors(), strict=True):
            own.copy_(values)


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
        masks: What Dropout draws, as the steps come.
        images: What augmentation does to their images.
        least: The fewest examples of any batch.
        outputs: C, the width of the network's outputs.
    """

    index: Tensor
    shares: Tensor
    sizes: Tensor
    rates: Tensor
    columns: Mapping[str, Tensor]
    constant: Tensor | None
    changes: Sequence[tuple[Batched, tuple[Tensor, ...]]]
    masks: Masks
    images: Images | None
    least: int
    outputs: int

    def at(self, t: int) -> Now:
        """Return what step t needs, as views; steps come in their order, again from 0."""
        draws = tuple(tuple(values[t] for values in own) for _, own in self.changes)
        numbers = self.index[t], self.shares[t], self.sizes[t], self.rates[t]
        return Now(*numbers, draws, self.masks.at(t))


def trace_of(member: Trainee) -> Trace:
    """Return what a member's network does with a batch, which of a perceptron is known."""
    chain, layout = Chain.of(member.model.module), member.model.layout
    if chain is None or chain.drops:
        return traced(member.model, example_of(member.client, member.local.training))
    head = layout.names.index(chain.layers[-1].weight)
    return Trace((), layout.shapes[head][0], "")


def example_of(client: Client, recipe: Training) -> Tensor:
    """Return a first example [1, ...] as a step meets it; zeros of an empty split."""
    split = client.split("train")
    x, _ = split.batch(slice(0, 1))
    if not len(split):
        x = x.new_zeros(1, *split.x.shape[1:])
    return recipe.augment(x, keyed("an example")) if recipe.augment is not None else x


class Images:
    """Augmentation of the images of M models, each by its own draws.

    Args:
        members: Whose they are, with one augmentation for all.
        sizes: The examples of each batch [T, M], on the CPU.
    """

    def __init__(self, members: Sequence[Trainee], sizes: Tensor) -> None:
        self.augment = members[0].local.training.augment
        self.turns, self.sizes = [member.turn for member in members], sizes
        self.generators: list[torch.Generator] = []

    def at(self, t: int, x: Tensor) -> Tensor:
        """Return the changed images of step t [M, B, ...]; steps as in `Plan.at`."""
        if t == 0:
            self.generators = [turn.generator("augment") for turn in self.turns]
        (M, B), sizes = x.shape[:2], self.sizes[t]
        there = (torch.arange(B) < sizes.unsqueeze(1)).flatten().nonzero().flatten().to(x.device)
        each = zip(self.generators, sizes.tolist(), strict=True)
        source = Generators(tuple((own, count) for own, count in each if count))
        if not len(there):
            return x
        changed = self.augment(x.flatten(0, 1).index_select(0, there), source)  # type: ignore[arg-type,misc]
        full = changed.new_zeros(M * B, *changed.shape[1:]).index_copy_(0, there, changed)
        return full.view(M, B, *changed.shape[1:])


class Pool:
    """Training splits of many clients in one tensor on the device, each of them once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.begin: dict[int, int] = {}
        self.x, self.y = torch.empty(0), torch.empty(0)
        self.splits: list[Split] = []  # alive, so that no other's images get the id of one's
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

    def inputs(self, index: Tensor) -> Tensor:
        """Return the rows at an index [M, B] as floating point [M, B, ...]."""
        x = self.x.index_select(0, index.flatten()).view(*index.shape, *self.x.shape[1:])
        return x.float() / 255 if x.dtype == torch.uint8 else x.float()

    def batch(self, index: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs [M, B, ...] and targets [M, B, C], of the targets of all rows."""
        own = targets.index_select(0, index.flatten())
        return self.inputs(index), own.view(*index.shape, -1)

    def targets(self, loss: Loss, outputs: int) -> Tensor:
        """Return what the outputs should be [N, C], for all rows."""
        if (key := (loss, outputs)) not in self._targets:
            self._targets[key] = targets(self.y, loss, outputs)
        return self._targets[key]


def planned(members: Sequence[Trainee], pool: Pool) -> BatchPlan:
    """Plan every member's batches, as drawn when it trains alone, and its numbers."""
    device, M = pool.device, len(members)
    grids = [
        batch_grid(len(member.client.split("train")), member.local.training, member.turn)
        for member in members
    ]
    T, B = max(map(len, grids)), max(grid.shape[1] for grid in grids)
    index = torch.full((T, M, B), -1)
    rates, begins = torch.zeros(M), torch.zeros(M, dtype=torch.long)
    for m, (member, grid) in enumerate(zip(members, grids, strict=True)):
        recipe, turn = member.local.training, member.turn
        rates[m] = recipe.optimiser.lr * recipe.schedule(turn.round, turn.rounds)
        begins[m] = pool.begin[id(member.client.split("train").x)]
        index[: len(grid), m, : grid.shape[1]] = grid
    there = index >= 0
    sizes = there.sum(-1)
    shares = there / sizes.clamp(min=1).unsqueeze(-1)
    begins = begins.unsqueeze(1)  # padding is a model's own first row
    index = torch.where(there, index + begins, begins.clamp(max=len(pool.y) - 1))
    images = Images(members, sizes) if members[0].local.training.augment is not None else None
    trace = trace_of(members[0])
    masks = Masks(trace.drops, [member.turn for member in members], sizes, (B, device))
    names = ("momentum", "weight_decay", "beta1", "beta2", "eps")
    numbers = {n: [getattr(m.local.training.optimiser, n, 0.0) for m in members] for n in names}
    steps = [own[:count] for own, count in zip(sizes.T.tolist(), map(len, grids), strict=True)]
    numbers["mu"], constant, changes = wrapped(members, steps, (T, B), device)
    columns = {n: torch.tensor(v, device=device).unsqueeze(1) for n, v in numbers.items()}
    rate = (rates * (sizes > 0)).unsqueeze(-1)
    index, shares, rate = index.to(device), shares.to(device), rate.to(device)
    counts, least = sizes.float().to(device), int(sizes[sizes > 0].min()) if there.any() else 0
    return BatchPlan(
        index, shares, counts, rate, columns, constant, changes, masks, images, least,
        trace.outputs,
    )  # fmt: skip


def wrapped(
    members: Sequence[Trainee],
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
