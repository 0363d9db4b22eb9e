"""FedILC inside a client: the geometric or arithmetic mean over the client's environments."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Turn
from unseen.core.parts import Wrapper
from unseen.errors import UnseenError
from unseen.methods.combine.geometric import RunningLogSums, WeightedGeometricMean, Zeros
from unseen.methods.gradient.backprop import Backprop, Gradient, Step
from unseen.methods.gradient.per_example import (
    chunks_of_gradients,
    linear_signals,
    outer_log_sums,
    outputs_and_signals,
    put,
)
from unseen.ranges import Count


@dataclass(frozen=True)
class Environments(Wrapper):
    """g ← mean_ε g_ε, coordinate by coordinate, over the environments ε inside a client.

    Attributes:
        inner: the gradient of an environment.
        by: what an environment is: a single `"example"` (FedILC, Algorithm 2), a mini-`"batch"` of
            a random partition (FedILC §5 and its released code, so the default), or the column
            `"environment"` of the data.
        rule: `"geometric"`, the weighted geometric mean, or `"mean"`.
        zeros, agreement: see `unseen.methods.combine.WeightedGeometricMean`.
        batch_size: of the mini-batches.
        chunk: by example in nets that are not all linear layers, how many gradients to hold at a
            time.

    Note:
        The gradients of environments are summed up one after the other: no two of them exist at a
        time. Those of examples do not exist at all where the net is made of linear layers; for
        other nets `chunk` of them are formed at a time.

        All weigh equally, a short last batch too, as released.
    """

    inner: Gradient
    by: Literal["example", "batch", "environment"] = "batch"
    rule: Literal["geometric", "mean"] = "geometric"
    zeros: Zeros = "skip"
    agreement: float = 0.0
    batch_size: Count = 32
    chunk: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by == "example" and not isinstance(self.inner, Backprop):
            raise UnseenError(
                "the geometric mean over examples is of the loss's own gradients.",
                remedy=f"Put {type(self.inner).__name__} around the environments, not inside.",
            )
        WeightedGeometricMean(self.zeros, self.agreement)  # refuses what it cannot take

    @property
    def geometric(self) -> WeightedGeometricMean:
        """The rule that turns sums over environments into their geometric mean."""
        return WeightedGeometricMean(self.zeros, self.agreement)

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        if self.by == "example" and self.rule == "geometric":
            yield self._over_examples(model, inbox, client, memory, turn)
            return
        with self.inner.open(model, inbox, client, memory, turn) as inner:
            if self.by == "example":  # their arithmetic mean is the gradient itself
                yield inner
            else:
                yield self._over_parts(model, inner, client, turn)

    def _over_parts(self, model: Model, inner: Step, client: Client, turn: Turn) -> Step:
        generator = turn.generator("environments")
        size, device = len(model.vector), model.device

        def step(x: Tensor, y: Tensor) -> Tensor:
            parts = self._parts(y, client, generator)
            sums, mean = RunningLogSums(size, device), torch.zeros_like(model.vector)
            total = torch.zeros((), device=device)
            for index in parts:
                total += inner(x[index], y[index]) * len(index)
                if self.rule == "mean":
                    mean.add_(model.gradient, alpha=1 / len(parts))
                else:
                    sums.add(model.gradient, self.geometric.floor)
            if self.rule == "geometric":
                mean.copy_(self.geometric.mean(sums.sums()))
            model.gradient.copy_(mean)
            return total / len(y)

        return step

    def _parts(self, y: Tensor, client: Client, generator: torch.Generator) -> list[Tensor]:
        if self.by == "batch":
            order = torch.randperm(len(y), generator=generator).to(y.device)
            return list(order.split(self.batch_size))
        meta = client.split("train").meta
        if "environment" not in meta:
            raise UnseenError(
                f"client {client.name!r} names no environments: its data have no column "
                f"'environment', only {', '.join(sorted(meta)) or 'none'}.",
                remedy="Choose by='batch'.",
            )
        codes = meta["environment"]
        if len(codes) != len(y):
            raise UnseenError(
                f"named environments are of the whole training split, {len(codes)} examples; "
                f"found a batch of {len(y)}.",
                remedy="Take the gradient over the whole split.",
            )
        return [(codes == code).nonzero().flatten() for code in codes.unique()]

    def _over_examples(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:
        assert isinstance(self.inner, Backprop)
        loss, rule = self.inner.loss.open(model, inbox, client, memory, turn), self.geometric

        def algebra(x: Tensor, y: Tensor) -> Tensor:
            value, signals = linear_signals(model, loss, x, y)
            model.gradient.zero_()
            for name, (delta, a) in signals.items():
                mean = rule.mean(outer_log_sums(delta, a, rule.floor).sums())
                put(model, name, mean.view(delta.shape[1], a.shape[1]))
            return value

        def in_chunks(x: Tensor, y: Tensor) -> Tensor:
            assert self.chunk is not None
            value, delta = outputs_and_signals(model, loss, x, y)
            sums = RunningLogSums(len(model.vector), model.device)
            for gradients in chunks_of_gradients(model, x, delta, self.chunk):
                for gradient in gradients:
                    sums.add(gradient, rule.floor)
            model.gradient.copy_(rule.mean(sums.sums()))
            return value

        return algebra if self.chunk is None else in_chunks
