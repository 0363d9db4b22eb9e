"""The privacy of single examples: DP-SGD in place of a method's gradient.

Sums of clipped gradients are formed by algebra for linear layers, else in chunks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn.modules.batchnorm import _NormBase

from unseen.core import Client, Inbox, Local, Memory, Method, Model, Reply, Turn
from unseen.core.losses import CrossEntropy, Loss, SquaredError, cross_entropy, squared_error
from unseen.core.parts import Wrapper, able
from unseen.core.survival import Hazards, hazard_losses
from unseen.errors import Incompatible, UnseenError
from unseen.methods.base import TRAIN, trained, with_exchange
from unseen.methods.gradient import Backprop, Step
from unseen.methods.gradient.per_example import linear_layers, linear_signals, put
from unseen.methods.local.scaffold import Controls
from unseen.methods.local.train import Train
from unseen.methods.recipe import Training
from unseen.privacy.dp.noise import PUBLIC, Noise, Stream, check_scalars, keyed_memory, no_key
from unseen.ranges import Count

#: (outputs [N, C], y [N]) -> the mean over the examples.
OutputLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Examples(Noise, named="dp"):
    """DP-SGD: g ← (Σ_n min(1, C / ‖g_n‖) g_n + σ C ξ) / B, ξ ~ N(0, 1) in each coordinate.

    Attributes:
        clip: C, the largest norm of one example's gradient.
        noise: σ, in units of C.
        delta: The δ that ε is stated for; below one over a client's number of examples.
        chunk: How many examples' gradients are formed at a time where the network does not consist
            of linear layers alone.
        seed: For tests only; noise and batches then follow from it, and nothing is protected.

    B is the training's batch size; every example is in a step's batch with probability B / n, drawn
    independently (Poisson sampling), as the accountants assume.

    Source:
        Abadi et al. 2016, "Deep Learning with Differential Privacy", Algorithm 1, with sums divided
        by the expected batch size as there.
    """

    chunk: Count = 16
    seed: int | None = None


@dataclass(frozen=True)
class Noised:
    """The gradient of DP-SGD in `Backprop`'s place; see `Examples`.

    `expected` is B, the expected size of a batch; None where the whole training split is one.
    """

    loss: Loss
    dp: Examples
    expected: int | None = None

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        """Yield steps whose noise comes from the client's secret; opened once per exchange."""
        loss = output_loss(self.loss, "dp")
        size = self.expected or len(client.split("train"))
        draws, deviation = Stream.of(memory, "gradient"), self.dp.noise * self.dp.clip
        algebra = linear(model)

        def step(x: Tensor, y: Tensor) -> Tensor:
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

    There are as many steps as shuffled batches would be; a batch may be of any size, 0 included.
    Which example was drawn is secret, since that amplifies the privacy of a batch.
    """

    def __call__(
        self, count: int, recipe: Training, memory: Memory, turn: Turn
    ) -> Iterator[Tensor]:
        draws, rate = Stream.of(memory, "batches"), rate_of(count, recipe)
        for _ in range(steps_of(count, recipe)):
            yield torch.from_numpy((draws.uniform(count) < rate).nonzero()[0])


def rate_of(count: int, recipe: Training) -> float:
    """Return the probability B / n with which an example is in a step's batch."""
    return min(1.0, recipe.batch_size / count)


def steps_of(count: int, recipe: Training) -> int:
    """Return the steps of one exchange, those of as many passes over shuffled batches."""
    if recipe.steps is not None:
        return recipe.steps
    whole, rest = divmod(count, recipe.batch_size)
    return (recipe.epochs or 0) * max(1, whole + (1 if rest and not recipe.drop_last else 0))


@dataclass(frozen=True)
class Guarded(Wrapper):
    """Another local with the client's secret at hand, whose reply keeps only what is public.

    Left out is every scalar but the number of examples, of steps and what follows from them; so the
    mean training loss is.
    """

    inner: Local
    dp: Examples

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        ready = keyed_memory(memory, inbox, turn, self.dp.seed)
        reply, after = self.inner(model, inbox, client, ready, turn)
        public = {name: value for name, value in reply.scalars.items() if name in PUBLIC}
        return Reply(reply.rows, public), no_key(after, ready)


def with_example_noise(method: Method, dp: Examples) -> Method:
    """Return the method whose clients train by DP-SGD."""
    name = f"{method.name}+dp"
    for exchange in method.exchanges:
        if exchange.slots and exchange.name != TRAIN:
            what = (
                f"the exchange {exchange.name!r} sends {', '.join(method.shares) or exchange.name}"
            )
            raise Incompatible(name, f"{what}, outside the clipped and noised steps.")
    exchange = trained(method)
    check_scalars(name, exchange, PUBLIC)
    local = Guarded(_noised_local(exchange.local, dp, name), dp)
    return with_exchange(method, replace(exchange, local=local))


def _noised_local(local: Any, dp: Examples, name: str) -> Any:
    """Return the local with the noised gradient inside; refuse one that reads the data itself."""
    second = isinstance(local, Controls) and local.option == 1
    if second or not able(local, "clips_per_example"):
        what = f"{type(local).__name__}{' with option 1' if second else ''}"
        outside = "outside the clipped and noised steps, which the guarantee does not cover"
        raise Incompatible(name, f"{what} looks at the client's examples {outside}.")
    if isinstance(local, Wrapper):
        return local.around(_noised_local(local.inner, dp, name))
    if isinstance(local, Train):
        training = replace(local.training, sampling=Poisson())
        gradient = _noised_gradient(local.gradient, dp, training.batch_size, name)
        return replace(local, gradient=gradient, training=training)
    return replace(local, gradient=_noised_gradient(local.gradient, dp, None, name))


def _noised_gradient(gradient: Any, dp: Examples, expected: int | None, name: str) -> Any:
    if not able(gradient, "clips_per_example"):
        why = "makes more of a batch than the sum of its examples' gradients: no bound holds."
        raise Incompatible(name, f"{type(gradient).__name__} {why}")
    if isinstance(gradient, Backprop):
        output_loss(gradient.loss, name)
        return Noised(gradient.loss, dp, expected)
    return replace(gradient, inner=_noised_gradient(gradient.inner, dp, expected, name))


def output_loss(loss: Loss, name: str) -> OutputLoss:
    """Return a loss as a mean over examples, each of which counts for itself."""
    if type(loss) is SquaredError:
        return squared_error
    if type(loss) is Hazards:
        return lambda outputs, y: hazard_losses(outputs, y).mean()
    if type(loss) is CrossEntropy and not loss.balanced:
        alpha = loss.smoothing
        return lambda outputs, y: cross_entropy(outputs, y, alpha)
    if type(loss) is CrossEntropy:
        why = "balanced class weights make one example's loss depend on the others of its class."
        raise Incompatible(name, why, remedy="Leave balanced out.")
    why = f"{type(loss).__name__} is not known to be a mean of single examples' losses."
    raise Incompatible(name, why)


def check_layers(module: torch.nn.Module, name: str) -> None:
    """Refuse networks whose layers normalise over the batch or keep running statistics."""
    for layer_name, layer in module.named_modules():
        if isinstance(layer, _NormBase) and (
            "BatchNorm" in type(layer).__name__ or layer.track_running_stats
        ):
            why = "normalises each example by others of its batch, so that no bound holds."
            remedy = "Take GroupNorm or LayerNorm, as in domainbed-cnn, or mlp(widths=[64])."
            layer_type = f"the layer {layer_name!r} ({type(layer).__name__})"
            raise Incompatible(name, f"{layer_type} {why}", remedy=remedy)


def linear(model: Model) -> bool:
    """Return whether all that is trained lies in linear layers, each used once."""
    with suppress(UnseenError):
        linear_layers(model)
        return True
    return False


def clipped_sum(
    model: Model, loss: OutputLoss, x: Tensor, y: Tensor, clip: float, chunk: int, algebra: bool
) -> Tensor:
    """Leave Σ_n min(1, C / ‖g_n‖) g_n in `model.gradient`, and return the mean loss.

    g_n is example n's gradient over all parameters together; `algebra` takes matrix products, for
    networks of linear layers, else `chunk` gradients are formed at a time.
    """
    model.gradient.zero_()
    if not len(y):
        return torch.zeros((), device=model.device)
    if algebra:
        return _by_algebra(model, loss, x, y, clip)

    def one(vector: Tensor, example: Tensor, label: Tensor) -> Tensor:
        return loss(model.at(vector, example[None]), label[None])

    # Layers that draw do so for each example, as they do in a batch.
    gradients = vmap(grad_and_value(one), in_dims=(None, 0, 0), randomness="different")
    total, vector = torch.zeros_like(model.gradient), model.vector.detach()
    value = torch.zeros((), device=model.device)
    for examples, labels in zip(x.split(chunk), y.split(chunk), strict=True):
        each, losses = gradients(vector, examples, labels)
        squares = each.square().sum(1)
        if not bool(torch.isfinite(squares).all()):
            each = each.where(torch.isfinite(squares)[:, None], 0)
        total += factors(squares, clip) @ each
        value += losses.detach().sum()
    model.gradient.copy_(total)
    return value / len(y)


def _by_algebra(model: Model, loss: OutputLoss, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """Sum the clipped gradients as (c ∘ δ)ᵀ a; no example's gradient δ_n a_nᵀ is ever formed."""
    value, pairs = linear_signals(model, lambda m, x, y: loss(m(x), y), x, y)
    squares = sum(d.square().sum(1) * a.square().sum(1) for d, a in pairs.values())
    assert isinstance(squares, Tensor)
    c, usable = factors(squares, clip), torch.isfinite(squares)[:, None]
    for name, (delta, a) in pairs.items():
        if not bool(usable.all()):
            delta, a = delta.where(usable, 0), a.where(usable, 0)
        put(model, name, (delta * c[:, None]).T @ a)
    return value


def factors(squares: Tensor, clip: float) -> Tensor:
    """Return min(1, C / ‖g‖) for squared norms [N]; 1 for a gradient of 0, 0 for one beyond floats.

    A gradient that is not finite counts as 0, since a reply that is not finite would say, past all
    noise, that there is such an example.

    Example:
        >>> factors(torch.tensor([4.0, 0.25, 0.0]), 1.0)
        tensor([0.5000, 1.0000, 1.0000])
    """
    return (clip / squares.sqrt()).clamp(max=1.0).nan_to_num(0.0)
