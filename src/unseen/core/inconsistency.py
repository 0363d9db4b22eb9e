"""The Inconsistency Score: how far one client's loss is off where another's hardly moves."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import permutations
from typing import NamedTuple

import torch
from torch import Tensor

from unseen.core.client import Client, Split
from unseen.core.losses import cross_entropy, squared_error
from unseen.core.metrics import EVALUATION_BATCH
from unseen.core.turn import keyed
from unseen.core.vector import Model
from unseen.errors import UnseenError, number

#: Points on a ray before its end is bisected, and steps of the bisection.
POINTS, HALVINGS = 40, 40
#: What is added to a client's curvature, as a share of its largest value found.
DAMPING = 1e-7
#: Most steps of conjugate gradients, and the relative residual at which they end.
SOLVES, RESIDUAL = 50, 1e-10


class Inconsistency(NamedTuple):
    """The score, and what it is the maximum of.

    Attributes:
        score: I(θ*).
        pairs: (A, B) -> the largest |L_B(θ) − L_A(θ*)| found where A's loss is within ε.
    """

    score: float
    pairs: Mapping[tuple[str, str], float]


class Landscape(NamedTuple):
    """A client's loss around the model, in evaluation mode."""

    model: Model
    split: Split

    def loss(self, vector: Tensor) -> float:
        """Return the mean loss at a parameter vector [P]."""
        with torch.no_grad():
            return float(sum(part for _, _, part in self.parts(vector)))

    def slope(self, vector: Tensor) -> Tensor:
        """Return the gradient of the mean loss [P]."""
        return self.summed(vector, lambda _, __, loss, at: torch.autograd.grad(loss, at)[0])

    def bend(self, vector: Tensor, v: Tensor) -> Tensor:
        """Return G v [P], G = Σ_n Jᵀ (∂²ℓ/∂z²) J / N: Gauss and Newton's curvature of the loss."""

        def of_part(z: Tensor, y: Tensor, _: Tensor, at: Tensor) -> Tensor:
            u = torch.zeros_like(z, requires_grad=True)
            (back,) = torch.autograd.grad(z, at, u, create_graph=True)
            (moved,) = torch.autograd.grad(back, u, v, retain_graph=True)
            free = z.detach().requires_grad_()
            share = len(y) / len(self.split)
            (pull,) = torch.autograd.grad(share * loss_of(free, y), free, create_graph=True)
            (bent,) = torch.autograd.grad(pull, free, moved.detach())
            return torch.autograd.grad(z, at, bent)[0]

        return self.summed(vector, of_part)

    def summed(
        self, vector: Tensor, of: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        at, total = vector.detach().requires_grad_(), torch.zeros_like(vector)
        for z, y, loss in self.parts(at):
            total += of(z, y, loss, at)
        return total

    def parts(self, vector: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield outputs and labels of some examples at a time, and their part of the mean loss."""
        for begin in range(0, len(self.split), EVALUATION_BATCH):
            x, y = self.split.batch(slice(begin, begin + EVALUATION_BATCH))
            z = self.model.at(vector, x)
            yield z, y, loss_of(z, y) * (len(y) / len(self.split))


def inconsistency(
    model: Model,
    clients: Mapping[str, Client],
    epsilon: float = 0.1,
    *,
    radius: float = 1.0,
    split: str = "train",
    iterations: int = 30,
) -> Inconsistency:
    """Return FedILC's Inconsistency Score of a model, the largest over pairs of clients.

        I(θ*) = max over A ≠ B of max {|L_B(θ) − L_A(θ*)| : |L_A(θ) − L_A(θ*)| ≤ ε}

    It is low where all clients' losses are bent alike. With L_k = ½ (θ − θ*)ᵀ H_k (θ − θ*) it is
    ε λ_max(H_A⁻¹ H_B), which is ε max_i max {λ_i^A/λ_i^B, λ_i^B/λ_i^A} where the H_k commute.

    Args:
        model: θ*, as it is bound.
        clients: Two or more. Their data are read, so this is for studies, not for real sites.
        epsilon: ε.
        radius: The largest ‖θ − θ*‖ looked at: there are directions in which a network's loss on
            one client's data never moves, and another's may without end.
        split: `train` or `validation`.
        iterations: Of the search for the direction of each pair.

    Note:
        The maximum over θ is searched on rays from θ*, up to where A's loss first leaves ε: along
        the direction that bends B's loss most for A's, by iterating d ← G_A⁻¹ G_B d with Gauss and
        Newton's curvatures, and along G_A⁻¹ ∇L_B, both ways. So it is a bound from below, which
        quadratic losses with one minimum reach. Far from A's minimum, where the θ within ε are a
        curved valley, it can be much too low: compare models that were trained to the end. It costs
        up to 100 passes per iteration and pair.

    Source:
        Parascandolo, Neitz, Orvieto, Gresele, Schölkopf 2021, "Learning Explanations That Are Hard
        to Vary", §2; Zhu, Ezzine, Liu, Bengio 2022, "FedILC", §4.
    """
    number("epsilon", epsilon, 0, open_low=True)
    number("radius", radius, 0, open_low=True)
    if len(clients) < 2:
        raise UnseenError(
            "an Inconsistency Score compares clients with one another.",
            expected="two or more clients",
            found=f"{len(clients)}",
        )
    lands = {name: Landscape(model, client.split(split)) for name, client in clients.items()}
    pairs: dict[tuple[str, str], float] = {}
    with evaluating(model):
        for a, b in permutations(sorted(lands), 2):
            start = torch.randn(len(model.vector), generator=keyed(f"inconsistency/{a}/{b}"))
            rays = directions(lands[a], lands[b], start.to(model.vector), iterations)
            worst = [farthest(lands[a], lands[b], ray, epsilon, radius) for ray in rays]
            pairs[a, b] = max(worst)
    return Inconsistency(max(pairs.values()), pairs)


def directions(a: Landscape, b: Landscape, start: Tensor, iterations: int) -> list[Tensor]:
    """Return unit vectors [P], both ways, along which B's loss moves far for little of A's."""
    centre = a.model.vector.detach().clone()
    d, largest = start / start.norm(), torch.zeros_like(start[0])
    for _ in range(iterations):
        largest = torch.maximum(largest, a.bend(centre, d).norm())
        onward = solved(a, centre, largest, b.bend(centre, d))
        if not bool(onward.norm() > 0):
            break
        d = onward / onward.norm()
    pulled = solved(a, centre, largest, b.slope(centre))
    rays = [d] if not bool(pulled.norm() > 0) else [d, pulled / pulled.norm()]
    return [sign * ray for ray in rays for sign in (1, -1)]


def solved(land: Landscape, centre: Tensor, largest: Tensor, target: Tensor) -> Tensor:
    """Return x with (G + damping) x = target [P] by conjugate gradients, G the curvature there."""
    x, r = torch.zeros_like(target), target.clone()
    p, size = r.clone(), r @ r
    first = size
    for _ in range(SOLVES):
        if not bool(size > RESIDUAL**2 * first):
            break
        q = land.bend(centre, p) + DAMPING * largest * p
        bent = p @ q
        if not bool(bent > 0):
            break
        x, r = x + size / bent * p, r - size / bent * q
        size, before = r @ r, size
        p = r + size / before * p
    return x


def farthest(a: Landscape, b: Landscape, ray: Tensor, epsilon: float, radius: float) -> float:
    """Return the largest |L_B(θ) − L_A(θ*)| on a ray from θ* up to where A's loss leaves ε."""
    centre = a.model.vector.detach().clone()
    base = a.loss(centre)

    def inside(t: float) -> bool:
        return abs(a.loss(centre + t * ray) - base) <= epsilon

    def off(t: float) -> float:
        return abs(b.loss(centre + t * ray) - base)

    worst, last = off(0.0), 0.0
    for k in range(POINTS):
        t = radius * 2.0 ** ((k + 1 - POINTS) / 2)
        if inside(t):
            worst, last = max(worst, off(t)), t
            continue
        low, high = last, t
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if inside(middle) else (low, middle)
        return max(worst, off(low))
    return worst


def loss_of(z: Tensor, y: Tensor) -> Tensor:
    """Return the mean loss of outputs: squared error of numbers, else cross-entropy."""
    return squared_error(z, y) if y.is_floating_point() else cross_entropy(z, y)


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Run the model in evaluation mode, then in the mode that it was in."""
    mode = model.module.training
    model.module.eval()
    try:
        yield
    finally:
        model.module.train(mode)
