"""RandConv: training on images under random convolutions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Method, Model, Turn
from unseen.errors import UnseenError
from unseen.methods.base import asking, with_gradient
from unseen.methods.gradient.backprop import Around, Gradient, Step
from unseen.methods.gradient.contrast import probabilities
from unseen.methods.options import options_from
from unseen.ranges import NotNegative, log

#: Views of a batch that must be predicted alike.
VIEWS = 3


@dataclass(frozen=True)
class RandomConvolutions(Around, named="randconv"):
    """The inner gradient at G₁(x), plus ∇ λ Σ_j mean_n KL(p(G_j(x_n)) ‖ p̄_n) of three views.

        G(x) = α x + (1 − α) x ∗ Θ,   Θ [C, C, k, k] ~ N(0, 1/(C k²)),   α ~ U(0, 1)

    p̄ = (1/3) Σ_j p(G_j(x)). k is drawn from the kernels, and Θ and α once for a batch and a view.

    Attributes:
        inner: the gradient of the loss.
        consistency: λ ≥ 0; 0 leaves the second term out, and with it two views. 1 goes with
            FedAvg's recipe: under momentum and another penalty SGD can diverge at 10, the paper's.
        mix: whether images are mixed with their convolution, as above; else α = 0, and only the
            kernel changes what is seen.
        kernels: odd widths; 1, 3, 5 and 7 in the paper.

    Note:
        The second term takes passes of its own, in which Dropout draws again.

    Source:
        Xu, Liu, Yang, Raffel, Niethammer 2021, "Robust and Generalizable Visual Representation
        Learning via Random Convolutions", Algorithm 1, RC_mix.
    """

    inner: Gradient
    consistency: Annotated[NotNegative, log(0.1, 20)] = 1.0
    mix: bool = True
    kernels: Sequence[int] = (1, 3, 5, 7)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kernels or any(k < 1 or k % 2 == 0 for k in self.kernels):
            raise UnseenError(f"randconv(kernels) must be odd widths; found {self.kernels}.")

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:
        draws = turn.generator("randconv")

        def step(x: Tensor, y: Tensor) -> Tensor:
            views = [self.view(x, draws) for _ in range(VIEWS if self.consistency else 1)]
            value = inner(views[0], y)
            if self.consistency:
                outputs = [model(view) for view in views]
                penalty = self.consistency * disagreement(outputs)
                penalty.backward()  # type: ignore[no-untyped-call]
                value = value + penalty.detach()
            return value

        return step

    def view(self, x: Tensor, draws: torch.Generator) -> Tensor:
        """Return images [N, C, H, W] under one random convolution."""
        k = self.kernels[int(torch.randint(len(self.kernels), (), generator=draws))]
        C = x.shape[1]
        kernel = torch.randn(C, C, k, k, generator=draws) / (C * k * k) ** 0.5
        share = float(torch.rand((), generator=draws)) if self.mix else 0.0
        return share * x + (1 - share) * F.conv2d(x, kernel.to(x), padding=k // 2)


def disagreement(outputs: Sequence[Tensor]) -> Tensor:
    """Return Σ_j mean_n KL(p_j ‖ p̄) of logits [N, C] of each view, or of class 1 [N, 1]."""
    p = torch.stack([probabilities(z) for z in outputs])
    mean = p.mean(0, keepdim=True)
    return (torch.xlogy(p, p) - torch.xlogy(p, mean)).sum((0, 2)).mean()


@options_from(RandomConvolutions)
def add_randconv(method: Method, **options: Any) -> Method:
    """Train on randomly convolved images, predicted alike in three views.

    ℓ(f(G₁(x)), y) + λ Σ_j KL(p(G_j(x)) ‖ p̄),   G(x) = α x + (1 − α) x ∗ Θ

    Departs from:
        the paper in λ, which is 10 there, and in that the second term takes passes of its own, in
        which Dropout draws again.
    """
    changed = with_gradient(method, lambda g: RandomConvolutions(g, **options), "xu2021randconv")
    return asking(changed, "images", "classes")
