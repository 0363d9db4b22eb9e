"""FedADG: features aligned to a generated distribution that all clients share."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core import Client, Inbox, Local, Memory, Method, Model, Reply, Turn
from unseen.core.parts import Wrapper
from unseen.core.schedule import round_share
from unseen.core.turn import keyed
from unseen.data.networks.generator import Referred, with_generator
from unseen.errors import unadapted
from unseen.methods.base import (
    asking,
    changed_further,
    cited,
    incompatible,
    local_training,
    with_gradient,
    with_local,
)
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.backprop import Gradient, Step
from unseen.methods.gradient.feddyn import Dynamic
from unseen.methods.gradient.moon import features
from unseen.methods.gradient.proximal import Proximal
from unseen.methods.images.features import tapped
from unseen.methods.local.scaffold import Controlled
from unseen.methods.local.train import FullGradient, Train
from unseen.methods.options import options_from
from unseen.methods.recipe import Training
from unseen.ranges import Count, Positive, Share, log, uniform

#: The client's discriminator in its memory [Q].
OWN = "fedadg.discriminator"


@dataclass(frozen=True)
class Adversarial(Wrapper, named="fedadg"):
    """g ← ∇ [α ℓ + (1 − α) mean (1 − D(z, y))²] at features and head, ∇ mean D(G(e, y), y)² at G.

    z: the features of a batch; e: noise. Before each step the discriminator takes its own, by

        ∇ mean [(1 − D(G(e, y), y))² + D(z, y)²]
        D(z, y) = sigmoid(w₂ · LeakyReLU(W₁ (Rz, h) + b₁) + b₂)

    h: one-hot labels; R: a random projection, the same everywhere and for good, where z is longer
    than `projection`.

    Attributes:
        inner: the gradient of ℓ.
        training: the recipe, for the number of steps.
        alpha: α; 0.85 as released.
        alone: the share of a round's steps, its first, that take ℓ alone; 0.3 as released, three
            epochs of ten.
        rate: the discriminator's learning rate, by plain SGD; 0.007 as released, with momentum.
        hidden: the width of its hidden layer; 1,024 as released.
        projection: the length of Rz; 1,024 as released.

    Source:
        Zhang, Lei, Shi, Huang, Chen 2021, "Federated Learning with Domain Generalization"; its
        released code.
    """

    inner: Gradient
    training: Training
    alpha: Annotated[Share, uniform(0.5, 1)] = 0.85
    alone: Annotated[Share, uniform(0, 0.8)] = 0.3
    rate: Annotated[Positive, log(0.001, 0.1)] = 0.007
    hidden: Count = 64
    projection: Count = 1024

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        name, layer = referred(model)
        draws, own = turn.generator("fedadg"), memory[OWN]
        left = round_share(self.alone, steps_of(self.training, len(client.split("train"))))
        with (
            self.inner.open(model, inbox, client, memory, turn) as inner,
            tapped(model.module, name, "input") as tap,
        ):

            def step(x: Tensor, y: Tensor) -> Tensor:
                nonlocal left
                value = inner(x, y)
                left -= 1
                if left >= 0 or self.alpha == 1:
                    return value
                e = torch.rand(len(y), layer.generator.noise, generator=draws).to(value)
                z, aim = features(model, tap, x), layer.generator(e, y)
                self.learn(own, z.detach(), aim.detach(), y)
                model.gradient.mul_(self.alpha)
                apart = (1 - self.judged(own, z, y)).square().mean()
                reference = self.judged(own, aim, y).square().mean()
                ((1 - self.alpha) * apart + reference).backward()  # type: ignore[no-untyped-call]
                return self.alpha * value + (1 - self.alpha) * apart.detach()

            yield step

    def learn(self, own: Tensor, z: Tensor, aim: Tensor, y: Tensor) -> None:
        """Take the discriminator's step, in place."""
        at = own.clone().requires_grad_()
        real, fake = self.judged(at, aim, y), self.judged(at, z, y)
        loss = ((1 - real).square() + fake.square()).mean()
        own.sub_(self.rate * torch.autograd.grad(loss, at)[0])

    def judged(self, own: Tensor, z: Tensor, y: Tensor) -> Tensor:
        """Return D(z, y) [N] of a discriminator [Q]: near 1 for what it takes for generated."""
        z = projected(z, self.projection)
        inputs = (len(own) - 1) // self.hidden - 2
        first, bias, second, last = own.split([self.hidden * inputs, self.hidden, self.hidden, 1])
        h = F.one_hot(y, inputs - z.shape[1]).to(z)
        hidden = F.linear(torch.cat([z, h], 1), first.view(self.hidden, inputs), bias)
        judgement: Tensor = (F.leaky_relu(hidden) @ second + last).sigmoid()
        return judgement


def first_discriminator(d: int, classes: int, hidden: int, projection: int) -> Tensor:
    """Return the discriminator [Q] that all clients start with, uniform as torch's layers are."""
    inputs, draws = min(d, projection) + classes, keyed("fedadg/discriminator")
    first = torch.rand(hidden * (inputs + 1), generator=draws) * 2 - 1
    second = torch.rand(hidden + 1, generator=draws) * 2 - 1
    return torch.cat([first / inputs**0.5, second / hidden**0.5])


def projected(z: Tensor, size: int) -> Tensor:
    """Return Rz [N, size] for longer z [N, d]."""
    return z if z.shape[1] <= size else z @ random_rows(z.shape[1], size).to(z)


@cache
def random_rows(d: int, size: int) -> Tensor:
    """Return Rᵀ [d, size], its entries normal, of norm 1 as a whole, as released."""
    matrix = torch.randn(d, size, generator=keyed("fedadg/projection"))
    norm: Tensor = matrix.norm()
    return matrix / norm


def steps_of(training: Training, examples: int) -> int:
    """Return how many steps a round of local training has."""
    if training.epochs is None:
        return training.steps or 0
    whole = examples // training.batch_size
    per_pass = whole if training.drop_last else -(-examples // training.batch_size)
    return min(training.epochs * per_pass, training.steps or training.epochs * per_pass)


def referred(model: Model) -> tuple[str, Referred]:
    """Return the layer that has head and generator, and its name."""
    for name, layer in model.module.named_modules():
        if isinstance(layer, Referred):
            return name, layer
    raise unadapted("fedadg")


@dataclass(frozen=True)
class WithDiscriminator(Wrapper):
    """Another local at a client that keeps a discriminator, which never leaves it.

    Attributes:
        inner: The local that trains.
        gradient: What says how large it is.
    """

    inner: Local
    gradient: Adversarial

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        of, layer = self.gradient, referred(model)[1]
        before = memory.get(OWN)
        if before is None:
            d, classes = layer.generator.second.out_features, layer.generator.classes
            first = first_discriminator(d, classes, of.hidden, of.projection)
            before = first.to(model.vector)
        own = before.clone()  # the gradient writes into it
        reply, after = self.inner(model, inbox, client, {**memory, OWN: own}, turn)
        return reply, {**after, OWN: own if bool(own.isfinite().all()) else before}


SOURCE = "zhang2021fedadg"


@options_from(Adversarial, without=("training",))
def add_fedadg(method: Method, *, noise: Count = 16, width: Count = 64, **options: Any) -> Method:
    """Align all clients' features, class by class, to a distribution that a generator makes.

        D_k:   min  mean [(1 − D_k(G(e, y), y))² + D_k(f(x), y)²]
        f, h:  min  α ℓ(h(f(x)), y) + (1 − α) mean (1 − D_k(f(x), y))²
        G:     min  mean D_k(G(e, y), y)²

    f: the features that enter the head h; e: uniform noise. The discriminator D_k never leaves its
    client; the generator G is averaged with the model, so that all clients align to one reference,
    which moves towards their features as these move towards it.

    Args:
        method: The method that is changed.
        noise: numbers of noise that enter G; 2,048 as released.
        width: of G's hidden layer; 4,096 as released. Generator and discriminator are small here,
            as the networks of small images are: the generator travels with the model.
        **options: The other options of the page.

    Note:
        Each step moves D_k first, then all others against it, as released. alpha=1 is FedAvg. The
        generator begins with the same weights whatever the seed, and so does every D_k.

    Departs from:
        the released code in that one pass gives the features of all three losses, where it takes
        those of D_k in evaluation mode; that D_k steps without momentum, that R stays as it is,
        where it trains with D_k, and labels are 1, where they are 0.7 in h. Labels are smoothed as
        the recipe says, by 0.1 there; no client keeps its best epoch by validation.
    """
    if cited(SOURCE) in method.references:
        raise incompatible(method, "fedadg", "aligns its features already.", "Set its own alpha.")
    local = local_training(method)
    if isinstance(local, FullGradient):
        why = "takes one gradient a round, and a discriminator learns between a client's steps."
        raise incompatible(method, "fedadg", why)
    if not isinstance(local, Train):
        why = "does not descend a gradient that could be changed."
        raise incompatible(method, "fedadg", why, "Put it on a method that trains a network.")
    return aligned(method, local.training, noise, width, options)


def aligned(
    method: Method, training: Training, noise: int, width: int, options: dict[str, Any]
) -> Method:
    """Return the method with discriminators at its clients, and a generator in its network.

    Terms of the parameters alone, such as a proximal one, stay around: α weighs the loss.
    """
    gradient = Adversarial(Backprop(training.loss), training, **options)

    def inside(loss: Any) -> Gradient:
        term = isinstance(loss, Proximal | Dynamic | Controlled)
        around: Gradient = loss.around(inside(loss.inner)) if term else gradient.around(loss)
        return around

    changed = with_gradient(method, inside, SOURCE)
    changed = with_local(changed, lambda local: WithDiscriminator(local, gradient))
    changed = changed_further(changed, partial(with_generator, noise=noise, width=width))
    shares = (*changed.shares, "a generator of features, averaged with the model")
    return asking(replace(changed, shares=shares), "classes")
