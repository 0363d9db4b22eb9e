"""FedSR: simple representations, drawn from a distribution and held to one of their label."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch.nn.functional as F
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Method, Model, Turn
from unseen.data.networks.encoded import Encoded, split, with_encoder
from unseen.errors import unadapted
from unseen.methods.base import changed, federated
from unseen.methods.combine import Mean, Weights
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.backprop import Around, Gradient, Step
from unseen.methods.images.features import tapped
from unseen.methods.local.train import Train
from unseen.methods.options import options_from
from unseen.methods.recipe import Training
from unseen.ranges import NotNegative, log


@dataclass(frozen=True)
class SimpleRepresentation(Around, named="fedsr"):
    """g ← g + ∇ [α mean_n ‖z_n‖² + β mean_n KL(N(μ_n, σ_n²) ‖ N(m_y, s_y²))], y the label of n.

    Attributes:
        inner: the gradient of the loss.
        length: α; 0.01 as released.
        information: β; 0.0005 is the released default, 0.001 its command for PACS.

    Source:
        Nguyen, Torr, Lim 2022, "FedSR: A Simple and Effective Domain Generalization Method for
        Federated Learning".
    """

    inner: Gradient
    length: Annotated[NotNegative, log(0.0001, 0.1)] = 0.01
    information: Annotated[NotNegative, log(0.00001, 0.01)] = 0.0005

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:
        name, layer = encoded_layer(model)

        def step(x: Tensor, y: Tensor) -> Tensor:
            value = inner(x, y)
            if not self.length and not self.information:
                return value
            passed: list[Tensor] = []

            def keep(z: Tensor) -> Tensor:
                passed.append(z)
                return z

            with (
                tapped(model.module, f"{name}encoder", "output") as encoder,
                tapped(model.module, f"{name}head", "input") as head,
            ):
                encoder.change = head.change = keep
                model(x)
            mean, deviation = split(passed[0])
            apart = divergence(mean, deviation, layer.mean[y], F.softplus(layer.spread)[y])
            short = passed[1].square().sum(1).mean()
            penalty = self.length * short + self.information * apart.mean()
            penalty.backward()  # type: ignore[no-untyped-call]
            return value + penalty.detach()

        return step


def encoded_layer(model: Model) -> tuple[str, Encoded]:
    """Return the net's encoder, and what names of its layers begin with."""
    for name, layer in model.module.named_modules():
        if isinstance(layer, Encoded):
            return f"{name}." if name else "", layer
    raise unadapted("fedsr")


def divergence(mean: Tensor, deviation: Tensor, other: Tensor, spread: Tensor) -> Tensor:
    """Return KL(N(μ, σ²) ‖ N(m, s²)) summed over dimensions [N], for [N, d] each."""
    ratio = (deviation.square() + (mean - other).square()) / (2 * spread.square())
    return (spread.log() - deviation.log() + ratio - 0.5).sum(1)


@options_from(SimpleRepresentation)
def fedsr(training: Training, *, weights: Weights = "uniform", **options: Any) -> Method:
    """Run FedAvg whose features are short, random, and hold little beyond the label.

        min  E ℓ(h(z), y) + α E ‖z‖² + β E KL(p(z | x) ‖ r(z | y)),   z ~ p(z | x) = N(μ(f), σ(f)²)

    f: what entered the head h before; μ, σ: a linear layer of it; r(z | y) = N(m_y, s_y²): one
    normal distribution for each class, learnt with the network and averaged with it. The second
    term bounds what z says of x, the third what it says of x beyond y.

    Args:
        training: The recipe.
        weights: p; uniform as released.
        **options: The other options of the page.

    Note:
        Predictions are by z = μ. The terms take a pass of their own, in which z is drawn again.

    Departs from:
        the released code, which takes ‖z‖ without the square, keeps r and a scale of μ and σ at
        each client, draws 20 z to predict, and begins with a random layer of 512 features, where
        here μ = f and σ = 0.1 at first.
    """
    local = Train(SimpleRepresentation(Backprop(training.loss), **options), training)
    method = federated("fedsr", training, Mean(weights), "nguyen2022fedsr", local)
    return replace(method, adapt=changed(with_encoder), asks=("classes",))
