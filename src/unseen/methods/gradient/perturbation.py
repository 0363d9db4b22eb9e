"""Sharpness-aware steps: the gradient where a small step uphill would lead."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Turn
from unseen.methods.gradient.backprop import Around, Gradient, Step
from unseen.ranges import NotNegative, log


@dataclass(frozen=True)
class Perturbed(Around):
    """g ← ∇L(w + ε), ε = ρ ∇L(w) / ‖∇L(w)‖, both gradients on the same batch.

    Attributes:
        inner: ∇L.
        rho: ρ ≥ 0, the norm being that of the whole gradient; 0 is the inner gradient itself, in
            one pass. 0.05 is what Foret et al. 2021 recommend for SAM: GA's paper does not give its
            own.
        statistics: whether those of BatchNorm are updated on the `"first"` pass only, at w, which
            is the model that is kept, or on `"both"`, as codes do that take no care of it.

    Note:
        The norm is over all parameters together. Layers that draw, such as Dropout, draw again in
        the second pass. A gradient of 0 perturbs nothing.

    Source:
        Qu et al. 2022, "Generalized Federated Learning via Sharpness Aware Minimization", Algorithm
        1; Foret et al. 2021, "Sharpness-Aware Minimization", Eq. 2 with p = 2.
    """

    inner: Gradient
    rho: Annotated[NotNegative, log(0.005, 0.5)] = 0.05
    statistics: Literal["first", "both"] = "first"

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:
        """Return the inner step twice; its value is the loss at w."""

        def step(x: Tensor, y: Tensor) -> Tensor:
            value = inner(x, y)
            # Copied and put back: w + ε − ε is not w.
            weights, buffers = model.vector.clone(), model.buffers.clone()
            model.vector.add_(ascent(model.gradient, self.rho))
            inner(x, y)
            model.vector.copy_(weights)
            if self.statistics == "first":
                model.buffers.copy_(buffers)
            return value

        return step if self.rho else inner


def ascent(gradient: Tensor, rho: float) -> Tensor:
    """Return ρ g / ‖g‖ along the last axis, and 0 for g = 0.

    Example:
        >>> ascent(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), 0.5)
        tensor([[0.3000, 0.4000],
                [0.0000, 0.0000]])
    """
    norm: Tensor = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    return gradient * rho / norm.clamp_min(torch.finfo(gradient.dtype).tiny)
