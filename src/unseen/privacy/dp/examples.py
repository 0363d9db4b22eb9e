"""The privacy of single examples: DP-SGD in the place of a method's gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unseen.core.client import Client
from unseen.core.exchange import Local, Method, Reply, Turn
from unseen.core.losses import Loss
from unseen.core.parts import Wrapper, able
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model
from unseen.errors import Incompatible, number
from unseen.gradient import Backprop, Step
from unseen.local.scaffold import Controls
from unseen.local.train import Train
from unseen.methods.base import TRAIN, trained, with_exchange
from unseen.privacy.clipped import clipped_sum, linear, output_loss
from unseen.privacy.dp.noise import PUBLIC, check_noise, check_scalars, kept
from unseen.privacy.stream import keyed_memory, stream
from unseen.recipe import Training


@dataclass(frozen=True)
class Examples:
    """DP-SGD: g ← (Σ_n min(1, C / ‖g_n‖) g_n + σ C ξ) / B, ξ ~ N(0, 1) in each coordinate.

    B is the training's batch size; every example is in a step's batch with probability B / n,
    drawn independently (Poisson sampling), as the accountants assume.

    Attributes:
        clip: C, the largest norm of one example's gradient.
        noise: σ, in units of C.
        delta: The δ that ε is stated for; below one over a client's number of examples.
        chunk: How many examples' gradients are formed at a time where the network does not consist
            of linear layers alone.
        seed: For tests only; noise and batches then follow from it, and nothing is protected.

    Source:
        Abadi et al. 2016, "Deep Learning with Differential Privacy", Algorithm 1, with sums divided
        by the expected batch size as there.
    """

    clip: float
    noise: float
    delta: float
    chunk: int = 16
    seed: int | None = None

    def __post_init__(self) -> None:
        check_noise("examples", self.clip, self.noise, self.delta)
        number("dp(chunk)", self.chunk, 1, whole=True)


@dataclass(frozen=True)
class Noised:
    """The gradient of DP-SGD in `Backprop`'s place; see `Examples`.

    Attributes:
        expected: B, the expected size of a batch; None where the whole training split is one.
    """

    loss: Loss
    dp: Examples
    expected: int | None = None

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        """Steps whose noise comes from the client's secret; to be opened once per exchange."""
        loss = output_loss(self.loss, "dp")
        size = self.expected or len(client.split("train"))
        draws, deviation = stream(memory, "gradient"), self.dp.noise * self.dp.clip
        algebra = linear(model)

        def step(x: Tensor, y: Tensor) -> Tensor:
            nonlocal algebra
            value = clipped_sum(model, loss, x, y, self.dp.clip, self.dp.chunk, algebra)
            if self.dp.noise:
                noise = draws.normal(len(model.gradient)) * deviation
                # Added in float64 and rounded once.
                model.gradient.copy_(model.gradient.double() + noise.to(model.device))
            model.gradient.div_(size)
            return value

        yield step


@dataclass(frozen=True)
class Poisson:
    """Batches of independent draws: every example with probability B / n, in every step.

    As many steps as shuffled batches would be; a batch may be of any size, 0 included. Whose
    example was drawn is secret, since that is what amplifies the privacy of a batch.
    """

    def __call__(
        self, count: int, recipe: Training, memory: Memory, turn: Turn
    ) -> Iterator[Tensor]:
        draws, rate = stream(memory, "batches"), rate_of(count, recipe)
        for _ in range(steps_of(count, recipe)):
            yield torch.from_numpy((draws.uniform(count) < rate).nonzero()[0])


def rate_of(count: int, recipe: Training) -> float:
    """Return the probability B / n with which an example is in a step's batch."""
    return min(1.0, recipe.batch_size / count)


def steps_of(count: int, recipe: Training) -> int:
    """Steps of one exchange with Poisson batches: those of as many passes over shuffled ones."""
    if recipe.steps is not None:
        return recipe.steps
    whole, rest = divmod(count, recipe.batch_size)
    return (recipe.epochs or 0) * max(1, whole + (1 if rest and not recipe.drop_last else 0))


@dataclass(frozen=True)
class Guarded(Wrapper):
    """Another local with the client's secret at hand, whose reply keeps only what is public.

    Left out: every scalar but the number of examples, of steps and what follows from them. The
    mean training loss is among what is left out.
    """

    inner: Local
    dp: Examples

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """The other local's rows, which the noise inside has made private."""
        ready = keyed_memory(memory, inbox, turn, self.dp.seed)
        reply, after = self.inner(model, inbox, client, ready, turn)
        public = {name: value for name, value in reply.scalars.items() if name in PUBLIC}
        return Reply(reply.rows, public), kept(after, ready)


def with_example_noise(method: Method, dp: Examples) -> Method:
    """Return the method whose clients train by DP-SGD; all else of it must follow from that."""
    name = f"{method.name}+dp"
    for exchange in method.exchanges:
        if exchange.slots and exchange.name != TRAIN:
            what = ", ".join(method.shares) or exchange.name
            raise Incompatible(
                f"{name}",
                f"the exchange {exchange.name!r} sends what is computed from the "
                f"data outside the clipped and noised steps ({what}).",
            )
    exchange = trained(method)
    check_scalars(name, exchange, PUBLIC)
    local = Guarded(_noised_local(exchange.local, dp, name), dp)
    return with_exchange(method, replace(exchange, local=local))


def _noised_local(local: Any, dp: Examples, name: str) -> Local:
    """The local with the noised gradient inside; refused if it reads the data by itself."""
    if not able(local, "clips_per_example") or (isinstance(local, Controls) and local.option == 1):
        option = " with option 1" if isinstance(local, Controls) else ""
        raise Incompatible(
            f"{name}",
            f"{type(local).__name__}{option} looks at the client's examples "
            "outside the clipped and noised steps, which the guarantee does not cover.",
        )
    if isinstance(local, Wrapper):
        wrapped: Local = local.around(_noised_local(local.inner, dp, name))
        return wrapped
    expected = local.training.batch_size if isinstance(local, Train) else None
    gradient = _noised_gradient(local.gradient, dp, expected, name)
    if isinstance(local, Train):
        training = replace(local.training, sampling=Poisson())
        return replace(local, gradient=gradient, training=training)
    full: Local = replace(local, gradient=gradient)
    return full


def _noised_gradient(gradient: Any, dp: Examples, expected: int | None, name: str) -> Any:
    if not able(gradient, "clips_per_example"):
        raise Incompatible(
            f"{name}",
            f"{type(gradient).__name__} makes more of a batch than the sum of "
            "its examples' gradients, and no bound on one example's part of that is known here.",
        )
    if isinstance(gradient, Backprop):
        output_loss(gradient.loss, name)
        return Noised(gradient.loss, dp, expected)
    return replace(gradient, inner=_noised_gradient(gradient.inner, dp, expected, name))
