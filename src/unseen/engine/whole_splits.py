"""What M models give of whole training splits as one batch: gradients, variances, penalties.

For perceptrons, in closed form and without a step: a gradient of a net of a few thousand weights is
some microseconds of arithmetic and a millisecond of calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from unseen.core.losses import Loss
from unseen.core.parts import innermost
from unseen.core.vector import Layout, stack
from unseen.engine.batch_losses import through_residual, with_residual
from unseen.engine.batch_plan import Answer, Examinee, Pool
from unseen.engine.perceptrons import Chain, Views, product
from unseen.methods.gradient import Fishr
from unseen.methods.gradient.fishr import VARIANCE
from unseen.methods.local.train import FullGradient, Measure

#: Examples of one batch on a CPU, padding included: with more of them, they leave the cache.
ROWS = 2**13


def together(lengths: Sequence[int], rows: int = ROWS) -> list[range]:
    """Return runs of places whose models pass as one batch.

    Args:
        lengths: Of the models' splits, ascending.
        rows: The most examples of a batch, padding included; a longer split passes alone.
    """
    begins = [0]
    for i, length in enumerate(lengths):
        if (i + 1 - begins[-1]) * length > rows and i > begins[-1]:
            begins.append(i)
    return list(map(range, begins, [*begins[1:], len(lengths)]))


def loss_of(local: FullGradient | Measure) -> Loss:
    """Return the loss of a local that a batch can take."""
    of = innermost(local.gradient) if isinstance(local, FullGradient) else local.statistic
    return cast(Loss, cast(Any, of).loss)


def answers(members: Sequence[Examinee], pool: Pool) -> list[Answer]:
    """Return what M members of one kind send."""
    whole = Pass.of(members, pool)
    if isinstance(members[0].local, Measure):
        return variances(members, whole)
    plain = gradients(members, whole)
    return plain if members[0].penalty is None else with_penalty(plain, members, whole)


def variances(members: Sequence[Examinee], whole: Pass) -> list[Answer]:
    """Return what `Measure` replies."""
    names = [member.local.name for member in members if isinstance(member.local, Measure)]
    rows = zip(names, whole.variance().flatten(1), whole.sizes, strict=True)
    return [Answer({name: row}, {"examples": size}) for name, row, size in rows]


def gradients(members: Sequence[Examinee], whole: Pass) -> list[Answer]:
    """Return what `FullGradient` replies."""
    rows = zip(whole.gradient().neg_(), whole.sizes, whole.losses.tolist(), strict=True)
    return [
        Answer({"model": row}, {"examples": size, "steps": 1, "loss": loss})
        for row, size, loss in rows
    ]


def with_penalty(plain: Sequence[Answer], members: Sequence[Examinee], whole: Pass) -> list[Answer]:
    """Return the answers with the row and the scalar that `Penalised` adds."""
    means = torch.stack([member.inbox[VARIANCE] for member in members])
    values, slopes = whole.penalty(means, means.new_tensor(list(map(lam, members))))
    more = zip(plain, slopes.neg_(), values.tolist(), strict=True)
    return [
        Answer({**rows, "penalty": row}, {**scalars, "penalty": value})
        for (rows, scalars), row, value in more
    ]


def lam(member: Examinee) -> float:
    """Return λ of a member's penalty, 0 as long as it waits."""
    wrapper = member.penalty
    assert wrapper is not None and isinstance(wrapper.penalty, Fishr)
    return wrapper.penalty.lam if member.turn.round >= wrapper.warmup else 0.0


@dataclass(frozen=True)
class Pass:
    """M models forward over the whole training splits of their clients.

    Attributes:
        chain: The network.
        loss: The loss.
        layout: Of the rows.
        views: The models' tensors by name [M, ...].
        values: What enters each layer, and the logits [M, B, D].
        target: What the outputs should be [M, B, C].
        residual: δ, each example's derivative by the outputs [M, B, C]; 0 for padding.
        there: 1 for an example, 0 for padding [M, B, 1].
        sizes: Examples of each split.
        counts: The same as a tensor [M, 1, 1].
        losses: Mean losses [M].
    """

    chain: Chain
    loss: Loss
    layout: Layout
    views: Views
    values: Sequence[Tensor]
    target: Tensor
    residual: Tensor
    there: Tensor
    sizes: Sequence[int]
    counts: Tensor
    losses: Tensor

    @classmethod
    def of(cls, members: Sequence[Examinee], pool: Pool) -> Pass:
        """Take M members of one kind through their network."""
        model, loss = members[0].model, loss_of(members[0].local)
        chain = Chain.of(model.module)
        assert chain is not None  # what is no perceptron is not here
        views = model.layout.views(torch.stack([member.inbox["model"] for member in members]))
        splits = [member.client.split("train") for member in members]
        lengths = list(map(len, splits))
        sizes = torch.tensor(lengths).unsqueeze(1)
        begins = torch.tensor([pool.begin[id(split.x)] for split in splits]).unsqueeze(1)
        places = torch.arange(int(sizes.max()))
        index = torch.where(places < sizes, begins + places, begins).to(pool.device)
        there = (places < sizes).to(pool.device, torch.float32).unsqueeze(-1)
        counts = sizes.to(pool.device).unsqueeze(-1)
        outputs = views[chain.layers[-1].weight].shape[1]
        x, target = pool.batch(index, pool.targets(loss, outputs))
        values = chain.forward(views, x)
        each, residual = with_residual(loss, values[-1], target)
        losses = (each * there.squeeze(-1)).sum(1) / counts.flatten()
        return cls(
            chain, loss, model.layout, views, values, target, residual * there, there, lengths,
            counts, losses,
        )  # fmt: skip

    def gradient(self) -> Tensor:
        """Return the gradients of the mean losses [M, P]."""
        return self.back(self.residual / self.counts)

    def back(self, derivative: Tensor, ahead: Tensor | None = None) -> Tensor:
        """Return gradients [M, P]; see `Chain.backward`."""
        example = self.views[self.chain.layers[0].weight].new_empty(self.layout.size)
        rows = stack(len(derivative), example)
        self.chain.backward(self.views, self.values, derivative, self.layout.views(rows), ahead)
        return rows

    def moments(self) -> Moments:
        """Return what variances of the head's gradients are made of, in float64."""
        a, delta = self.values[-2].double(), self.residual.double()
        if self.chain.layers[-1].bias is not None:
            a = torch.cat([a, a.new_ones(*a.shape[:2], 1)], -1)
        return Moments(delta, a, self.counts)

    def variance(self) -> Tensor:
        """Return `HeadCovariance`'s diagonal [M, o, i], with i + 1 columns if there is a bias."""
        return self.moments().variance()

    def penalty(self, mean: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        """Return λ ‖C − C̄‖² [M] in float64, and its gradients by the models [M, P].

        Args:
            mean: C̄ [M, H].
            lam: λ [M].
        """
        moments = self.moments()
        variance = moments.variance()
        apart = variance - mean.view_as(variance)
        lam = lam.view(-1, 1, 1)
        by_delta, by_a = moments.backward(2 * lam * apart)
        features = by_a[..., : self.values[-2].shape[-1]].float()
        by_outputs = through_residual(self.loss, self.residual, self.target, by_delta.float())
        values = (lam * apart.square()).sum((1, 2))
        return values, self.back(by_outputs * self.there, features)


@dataclass(frozen=True)
class Moments:
    """Variances over examples of δ aᵀ, for M models.

    Attributes:
        delta: δ [M, B, o]; 0 for padding.
        a: The head's inputs [M, B, i].
        counts: Examples [M, 1, 1].
    """

    delta: Tensor
    a: Tensor
    counts: Tensor

    def mean(self) -> Tensor:
        """Return δᵀa/N [M, o, i]."""
        return product(self.delta.mT, self.a) / self.counts

    def variance(self) -> Tensor:
        """Return (δ²)ᵀ(a²)/N − (δᵀa/N)² [M, o, i]."""
        squares = product(self.delta.square().mT, self.a.square())
        return squares / self.counts - self.mean().square()

    def backward(self, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives by δ and by a from that by the variances [M, o, i]."""
        by_squares = 2 * slope / self.counts
        by_products = by_squares * self.mean()
        by_delta = self.delta * product(self.a.square(), by_squares.mT)
        by_delta -= product(self.a, by_products.mT)
        by_a = self.a * product(self.delta.square(), by_squares)
        by_a -= product(self.delta, by_products)
        return by_delta, by_a
