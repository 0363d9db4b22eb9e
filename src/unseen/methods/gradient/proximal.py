"""FedProx's proximal term."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Turn
from unseen.methods.gradient.backprop import Batched, Gradient, Step
from unseen.ranges import NotNegative, log


@dataclass(frozen=True)
class Proximal(Batched, named="fedprox"):
    """g ← g + μ (w − x), the gradient of F(w) + (μ/2) ‖w − x‖², x being what was received.

    Attributes:
        inner: the gradient of F.
        mu: μ ≥ 0; 0 is FedAvg. PPDG's experiments use 0.1 (FMoW 0.01), GA's 0.1.

    Source:
        Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Eq. 2.
    """

    clips_per_example = True
    stackable = True

    inner: Gradient
    mu: Annotated[NotNegative, log(0.0001, 1)] = 0.1

    @property
    def pull(self) -> float:
        return self.mu

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:
        received = inbox["model"]

        def step(x: Tensor, y: Tensor) -> Tensor:
            value = inner(x, y)
            model.gradient.add_(model.vector - received, alpha=self.mu)
            return value

        return step
