"""How far a client's gradients carry it: what its optimiser's steps make of each of them."""

from dataclasses import dataclass

from unseen.core import Client, Inbox, Local, Memory, Model, Reply, Turn
from unseen.core.optimiser import SGD
from unseen.core.parts import Wrapper, innermost, layers
from unseen.errors import UnseenError
from unseen.methods.gradient import Gradient
from unseen.methods.gradient.backprop import Batched
from unseen.methods.recipe import Training


def accumulation(steps: int, momentum: float = 0.0, pull: float = 0.0) -> tuple[float, float]:
    """Return (A, B) of `steps` steps of SGD: y − x = −η (A ḡ + B b₀), b₀ the first momentum.

    Note:
        ḡ = Σ_k a_k g_k / A and A = Σ_k a_k, which is ‖a‖₁. Plain SGD has a_k = 1, so that A is the
        number of steps K; momentum m, which steps by b ← m b + g, has a_k = (1 − m^{K−k}) / (1 − m)
        for k = 0, ..., K − 1; a proximal term μ(w − x) has a_k = (1 − α)^{K−1−k}. With both, it is
        what they do together. Weight decay counts as part of g.

    Args:
        steps: K.
        momentum: m.
        pull: α = ημ of the proximal terms.

    Source:
        Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
        Optimization", §4 and appendix.

    Example:
        >>> accumulation(3), accumulation(3, momentum=0.5)
        ((3.0, 0.0), (4.25, 0.875))
    """
    A = B = of_gradients = 0.0
    of_first = 1.0
    for _ in range(steps):
        of_gradients = momentum * of_gradients + 1 - pull * A
        of_first = momentum * of_first - pull * B
        A, B = A + of_gradients, B + of_first
    return A, B


def accumulated(local: Local, steps: int, turn: Turn) -> tuple[float, float]:
    """Return (A, B) of a local training in this round, proximal terms included."""
    training, gradient = innermost(local).training, innermost(local).gradient
    optimiser: SGD = training.optimiser
    return accumulation(steps, optimiser.momentum, proximal(gradient) * rate(training, turn))


def proximal(gradient: Gradient) -> float:
    """Return μ of the terms μ (w − x) in a gradient; 0 without any."""
    return sum((part.pull for part in layers(gradient) if isinstance(part, Batched)), 0.0)


def rate(training: Training, turn: Turn) -> float:
    """Return η of this round."""
    return training.optimiser.lr * training.schedule(turn.round, turn.rounds)


def check_sgd(name: str, training: Training, instead: str) -> None:
    """Refuse optimisers whose steps are not sums of gradients."""
    if not isinstance(training.optimiser, SGD):
        raise UnseenError(
            f"{name} reads the clients' mean gradient off how far they moved, which needs sgd; "
            f"{type(training.optimiser).__name__.lower()} rescales each coordinate.",
            remedy=instead,
        )


@dataclass(frozen=True)
class Accumulated(Wrapper):
    """Another local that adds `accumulated`, ‖a_i‖₁, to its reply.

    Attributes:
        inner: The local whose gradients entered its update with the factors a_i, in units of the
            learning rate.
    """

    clips_per_example = True

    inner: Local

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        reply, memory = self.inner(model, inbox, client, memory, turn)
        A, _ = accumulated(self.inner, int(reply.scalars["steps"]), turn)
        return Reply(reply.rows, {**reply.scalars, "accumulated": A}), memory
