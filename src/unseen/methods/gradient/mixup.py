"""mixup: steps on convex combinations of examples and of their labels."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Turn
from unseen.methods.gradient.backprop import Around, Gradient, Step
from unseen.ranges import NotNegative, log


@dataclass(frozen=True)
class Mixup(Around, named="mixup"):
    """g of x̃ = λ x + (1 − λ) x_π under λ ℓ(f(x̃), y) + (1 − λ) ℓ(f(x̃), y_π), λ ~ Beta(α, α).

    π permutes the batch; one λ is drawn for each batch. It takes two of the inner gradient's steps,
    so that layers which draw (Dropout) draw twice, and BatchNorm counts the batch twice.

    Attributes:
        inner: the gradient of ℓ.
        alpha: α; 0 leaves the examples as they are.

    Source:
        Zhang et al. 2018, §2.
    """

    inner: Gradient
    alpha: Annotated[NotNegative, log(0.05, 1)] = 0.2

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:
        draws = turn.generator("mixup")

        def step(x: Tensor, y: Tensor) -> Tensor:
            if not self.alpha or len(y) < 2:
                return inner(x, y)
            share = beta(self.alpha, draws)
            order = torch.randperm(len(y), generator=draws).to(y.device)
            mixed = share * x + (1 - share) * x[order]
            first = inner(mixed, y)
            gradient = model.gradient.clone()
            second = inner(mixed, y[order])
            model.gradient.mul_(1 - share).add_(gradient, alpha=share)
            return share * first + (1 - share) * second

        return step


def beta(alpha: float, generator: torch.Generator) -> float:
    """Return a draw of Beta(α, α): g / (g + h) of two draws of Gamma(α, 1), by their logarithms.

    Note:
        Gamma draws of a small α are too small for a float, their ratio is not.
    """
    shape = alpha + 1 if alpha < 1 else alpha
    logit = _log_gamma(shape, generator) - _log_gamma(shape, generator)
    if alpha < 1:  # Gamma(α) is Gamma(α + 1) U^(1/α)
        logit += (math.log(_uniform(generator)) - math.log(_uniform(generator))) / alpha
    return float(torch.tensor(logit, dtype=torch.float64).sigmoid())


def _log_gamma(alpha: float, generator: torch.Generator) -> float:
    """Return the logarithm of a draw of Gamma(α, 1) for α ≥ 1, by Marsaglia and Tsang's method."""
    d = alpha - 1 / 3
    c = (9 * d) ** -0.5
    while True:
        z = float(torch.randn((), generator=generator))
        v = (1 + c * z) ** 3
        u = _uniform(generator)
        if v > 0 and math.log(u) < 0.5 * z * z + d - d * v + d * math.log(v):
            return math.log(d * v)


def _uniform(generator: torch.Generator) -> float:
    return max(float(torch.rand((), dtype=torch.float64, generator=generator)), 1e-300)
