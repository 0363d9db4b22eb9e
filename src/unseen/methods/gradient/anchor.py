"""The anchor penalty: a site's mean residual is drawn to 0."""

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Turn
from unseen.methods.gradient.backprop import Around, Gradient, Step
from unseen.ranges import NotNegative, log


@dataclass(frozen=True)
class Anchored(Around, named="anchor"):
    """g ← g + ∇ λ ‖mean_i r_i‖², with residuals r_i = p(x_i) − y_i over the batch of one site.

    With the sites as anchors, the projection of the residuals on the anchors is their mean at each
    site: what a site gets wrong on the whole counts (1 + λ) times, and what it gets wrong about
    single rows once.

    Attributes:
        inner: the gradient of the loss.
        lam: λ ≥ 0; 0 is the loss alone.

    Source:
        Rothenhäusler et al. 2021, Eq. 4, with sites as anchors.
    """

    inner: Gradient
    lam: Annotated[NotNegative, log(0.001, 10)] = 1.0

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:

        def step(x: Tensor, y: Tensor) -> Tensor:
            value = inner(x, y)
            if self.lam:
                penalty = self.lam * residuals(model(x), y).mean(0).square().sum()
                penalty.backward()  # type: ignore[no-untyped-call]
                value = value + penalty.detach()
            return value

        return step


def residuals(outputs: Tensor, y: Tensor) -> Tensor:
    """Return p − y [N, C] of logits, p − y [N, 1] of one logit, or f − y [N, 1] of numbers."""
    if y.is_floating_point():
        return outputs - y[:, None]
    if outputs.shape[-1] == 1:
        return outputs.sigmoid() - y[:, None]
    return outputs.softmax(-1) - F.one_hot(y, outputs.shape[-1])
