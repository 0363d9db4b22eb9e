"""FedSR on the client: features of small length that say no more than the label does."""

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Turn
from unseen.data.networks.encoded import Encoded, split
from unseen.errors import unadapted
from unseen.methods.gradient.backprop import Around, Gradient, Step
from unseen.methods.images.features import tapped
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
