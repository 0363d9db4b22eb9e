"""One batch of models: the rows of one [M, P] matrix are M perceptrons that train together.

Each step takes one batch of every model's data, one pass in closed form over strided views of the
matrix, and one optimiser step on all rows. Up to rounding the results are those of training one by
one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from unseen.core.optimiser import Adam
from unseen.core.parts import layers
from unseen.core.vector import stack
from unseen.engine.batch_plan import Answer, BatchPlan, Member, Pool, planned
from unseen.engine.perceptrons import with_residual

#: Models of one batch: with more of them, rows and moments leave a CPU's cache.
TOGETHER = 64


@dataclass
class Trainer:
    """Trains models of any kinds; those of one kind as one batch.

    Attributes:
        pools: Kind of inputs and labels -> their training data.
    """

    pools: dict[Any, Pool] = field(default_factory=dict)

    def __call__(self, members: Sequence[Member]) -> list[Answer]:
        """Return what the members reply, in their order."""
        alike: dict[Any, list[int]] = {}
        for i, member in enumerate(members):
            alike.setdefault(kind(member), []).append(i)
        by_place: dict[int, Answer] = {}
        for places in alike.values():
            # Neighbours take about as many steps, so that few of them are padding.
            places.sort(key=lambda i: len(members[i].split))
            for part in runs(places, TOGETHER):
                own = [members[i] for i in part]
                by_place |= zip(part, train(own, self.pool(own)), strict=True)
        return [by_place[i] for i in range(len(members))]

    def pool(self, members: Sequence[Member]) -> Pool:
        """Return the data of all members, which are of one kind."""
        splits = [member.split for member in members]
        x, y, device = splits[0].x, splits[0].y, members[0].model.device
        key = (tuple(x.shape[1:]), x.dtype, y.dtype, device)
        pool = self.pools.setdefault(key, Pool(device))
        pool.add(splits)
        return pool


def runs(places: Sequence[int], size: int) -> list[Sequence[int]]:
    """Return runs of places, of about equal length and of up to `size`."""
    count = -(-len(places) // size)
    cuts = [round(len(places) * i / count) for i in range(count + 1)]
    return [places[a:b] for a, b in pairwise(cuts)]


def kind(member: Member) -> tuple[Any, ...]:
    """Return what the members of one batch share."""
    model, split, recipe = member.model, member.split, member.local.training
    return (
        model.layout.fingerprint,
        member.chain,
        model.device,
        type(recipe.optimiser),
        recipe.loss,
        tuple(map(type, layers(member.local.gradient))),
        tuple(split.x.shape[1:]),
        split.x.dtype,
        split.y.dtype,
    )


def train(members: Sequence[Member], pool: Pool) -> list[Answer]:
    """Return the members as they are after training.

    Note:
        Nothing in a step waits for the device: batches and rates are there before the first, and
        losses are read after the last.

    Args:
        members: Who trains what, M models of one kind.
        pool: Their data.
    """
    plan = planned(members, pool)
    models = Models(members, pool, plan)
    for t in range(len(plan.index)):
        models.step(t)
    counts = plan.sizes.sum(0).clamp(min=1)
    means, steps = (models.total / counts).tolist(), (plan.sizes > 0).sum(0).tolist()
    sizes = [len(member.split) for member in members]
    numbers = zip(models.matrix, sizes, steps, means, strict=True)
    return [Answer(row, {"examples": n, "steps": s, "loss": v}) for row, n, s, v in numbers]


class Models:
    """M models on their way: rows, moments and losses, changed in place by every step."""

    def __init__(self, members: Sequence[Member], pool: Pool, plan: BatchPlan) -> None:
        model, recipe = members[0].model, members[0].local.training
        self.pool, self.plan, self.chain = pool, plan, members[0].chain
        self.loss, self.adam = recipe.loss, isinstance(recipe.optimiser, Adam)
        self.decays = bool(plan.columns["weight_decay"].any())
        self.pulls = bool(plan.columns["mu"].any())
        self.received = stack(len(members), model.vector)
        for row, member in zip(self.received, members, strict=True):
            row.copy_(member.inbox["model"])
        self.matrix = stack(len(members), model.vector)
        self.matrix.copy_(self.received)
        self.gradient = stack(len(members), model.vector)
        self.views = model.layout.views(self.matrix)
        self.gradients = model.layout.views(self.gradient)
        self.first = torch.zeros_like(self.matrix)
        self.second = torch.zeros_like(self.matrix if self.adam else self.matrix[:0])
        self.total = self.matrix.new_zeros(len(members))
        outputs = self.views[self.chain.layers[-1].weight].shape[1]
        self.targets = pool.targets(self.loss, outputs)

    def step(self, t: int) -> None:
        plan, columns, gradient = self.plan, self.plan.columns, self.gradient
        self.differentiate(t)
        if plan.constant is not None:
            gradient += plan.constant
        if self.pulls:
            gradient.addcmul_(columns["mu"], self.matrix - self.received)
        if self.decays:
            gradient.addcmul_(columns["weight_decay"], self.matrix)
        if not self.adam:
            self.first.mul_(columns["momentum"]).add_(gradient)
            self.matrix.addcmul_(plan.rates[t], self.first, value=-1)
            return
        b1, b2 = columns["beta1"], columns["beta2"]
        self.first.lerp_(gradient, 1 - b1)
        self.second.mul_(b2).addcmul_(1 - b2, gradient.square_())
        root = (self.second.sqrt() / (1 - b2 ** (t + 1)).sqrt()).add_(columns["eps"])
        self.matrix.addcmul_(plan.rates[t] / (1 - b1 ** (t + 1)), self.first / root, value=-1)

    def differentiate(self, t: int) -> None:
        """Leave every model's gradient of step t, and count its loss."""
        plan = self.plan
        x, target = self.pool.batch(plan.index[t], self.targets)
        for change, draws in plan.changes:
            x, target = change.batched(x, target, *(values[t] for values in draws))
        values = self.chain.forward(self.views, x)
        each, residual = with_residual(self.loss, values[-1], target)
        slopes = residual * plan.shares[t].unsqueeze(-1)
        self.chain.backward(self.views, values, slopes, self.gradients)
        self.total.addcmul_((each * plan.shares[t]).sum(1), plan.sizes[t])
