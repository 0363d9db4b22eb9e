"""MOON: features are drawn to the received model's, and away from the client's own last ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core import Client, Inbox, Local, Memory, Model, Reply, Turn
from unseen.core.parts import Wrapper
from unseen.methods.gradient.backprop import Gradient, Step
from unseen.methods.gradient.heads import head_layer
from unseen.methods.images.features import Tap, tapped
from unseen.ranges import NotNegative, Positive, log

#: The client's last trained model and its statistics, in its memory.
OWN, BUFFERS = "moon.model", "moon.buffers"


@dataclass(frozen=True)
class ModelContrast(Wrapper, named="moon"):
    """g ← g + μ ∇ mean_n −log(e^{s(z, z_x)/τ} / (e^{s(z, z_x)/τ} + e^{s(z, z_k)/τ})).

    z: the features of example n that enter the head; z_x: those of the received model; z_k: those
    of the client's own model after its last training; s: the cosine.

    Attributes:
        inner: the gradient of the loss.
        mu: μ; the paper tunes 0.1, 1, 5 and 10, and takes 5 (CIFAR-10), 10 (CIFAR-100) and 1
            (Tiny-ImageNet).
        temperature: τ, 0.5 in the paper.

    Note:
        The term is 0 until a client has trained. Features of the two fixed models are taken in
        evaluation mode, and the term takes a pass of its own, in which Dropout draws again.

    Source:
        Li, He, Song 2021, "Model-Contrastive Federated Learning", Eq. 3 and Algorithm 1.

    Departs from:
        the paper in that there is no projection head between features and head.
    """

    inner: Gradient
    mu: Annotated[NotNegative, log(0.01, 10)] = 1.0
    temperature: Annotated[Positive, log(0.1, 1)] = 0.5

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        with self.inner.open(model, inbox, client, memory, turn) as inner:
            if not self.mu or OWN not in memory:
                yield inner
                return
            fixed = (inbox["model"], inbox["buffers"]), (memory[OWN], memory[BUFFERS])
            with tapped(model.module, head_layer(model)[0], "input") as tap:

                def step(x: Tensor, y: Tensor) -> Tensor:
                    value = inner(x, y)
                    near, far = (features(model, tap, x, of) for of in fixed)
                    penalty = self.mu * self.contrast(features(model, tap, x), near, far)
                    penalty.backward()  # type: ignore[no-untyped-call]
                    return value + penalty.detach()

                yield step

    def contrast(self, z: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """Return the mean of −log of the near one's share, for features [N, d] each."""
        apart = F.cosine_similarity(z, far) - F.cosine_similarity(z, near)
        return F.softplus(apart / self.temperature).mean()


def features(model: Model, tap: Tap, x: Tensor, of: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Return what enters the head [N, d], or did of another model's vector and buffers."""
    entering: list[Tensor] = []

    def see(z: Tensor) -> Tensor:
        entering.append(z.flatten(1))
        return z

    tap.change = see
    mode = model.module.training
    try:
        if of is None:
            model(x)
        else:
            model.module.eval()
            with torch.no_grad():
                model.at(of[0], x, of[1])
    finally:
        tap.change = None
        model.module.train(mode)
    return entering[-1]


@dataclass(frozen=True)
class Remember(Wrapper):
    """Another local that leaves the trained model in the client's memory.

    Attributes:
        inner: The local that trains.
    """

    inner: Local

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        reply, memory = self.inner(model, inbox, client, memory, turn)
        own = {OWN: model.vector.clone(), BUFFERS: model.buffers.clone()}
        return reply, {**memory, **own}
