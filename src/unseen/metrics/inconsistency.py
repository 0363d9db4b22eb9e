"""The Inconsistency Score: how far one client's loss is off where another's hardly moves."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import permutations
from typing import NamedTuple

import torch
from torch import Tensor

from unseen.core.client import Client, Split
from unseen.core.losses import cross_entropy, squared_error
from unseen.core.turn import keyed
from unseen.core.vector import Model
from unseen.errors import UnseenError, number
from unseen.metrics.evaluation import EVALUATION_BATCH

#: Points on a ray before its end is bisected, and steps of the bisection.
POINTS, HALVINGS = 30, 30
#: The most steps uphill, and the shortest, as a share of the radius.
CLIMBS, SHORTEST = 40, 1e-3
#: What a step must gain, as a share of ε.
GAIN = 1e-3
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
        Newton's curvatures, and along G_A⁻¹ ∇L_B, both ways. From θ* and from the ends of the rays
        it goes on uphill for B, and from θ* downhill, along the border where it meets that. So it
        is a bound from below, which quadratic losses with one minimum reach. It costs up to 100
        passes per iteration and pair.

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
            near = Neighbourhood(lands[a], lands[b], epsilon, radius)
            ends = [near.farthest(ray) for ray in rays]
            climbs = [near.ascent(v) for v in (near.centre, *ends)]
            pairs[a, b] = max(map(near.off, (*ends, *climbs, near.ascent(near.centre, down=True))))
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


class Neighbourhood:
    """The θ that a path from θ* within `radius` leads to, on which A's loss is within ε of L_A(θ*).

    Attributes:
        base: L_A(θ*).
    """

    def __init__(self, a: Landscape, b: Landscape, epsilon: float, radius: float) -> None:
        self.a, self.b, self.epsilon, self.radius = a, b, epsilon, radius
        self.centre = a.model.vector.detach().clone()
        self.base = a.loss(self.centre)

    def has(self, vector: Tensor) -> bool:
        """Return whether a point is near enough, in distance and in A's loss."""
        near = float((vector - self.centre).norm()) <= self.radius * (1 + 1e-6)
        return near and abs(self.a.loss(vector) - self.base) <= self.epsilon

    def off(self, vector: Tensor) -> float:
        """Return |L_B(θ) − L_A(θ*)|."""
        return abs(self.b.loss(vector) - self.base)

    def farthest(self, ray: Tensor) -> Tensor:
        """Return the point on a ray from θ* up to its end here where B's loss is most off."""
        best, most, last = self.centre, self.off(self.centre), 0.0
        for k in range(POINTS):
            t = self.radius * 2.0 ** ((k + 1 - POINTS) / 2)
            if self.has(at := self.centre + t * ray):
                value, last = self.off(at), t
                best, most = (at, value) if value > most else (best, most)
                continue
            low, high = last, t
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                inside = self.has(self.centre + middle * ray)
                low, high = (middle, high) if inside else (low, middle)
            at = self.centre + low * ray
            return at if self.off(at) > most else best
        return best

    def ascent(self, start: Tensor, down: bool = False) -> Tensor:
        """Return where steps that raise B's loss lead, or lower it, along the border where it is.

        A step that would leave goes along the border instead, and back to it by one of Newton's
        steps; it is taken if the point half way and the new one are here, else half as long.
        """
        sign = -1 if down else 1
        at, value, length = start, sign * self.b.loss(start), self.radius / 4
        for _ in range(CLIMBS):
            up, wall = sign * self.b.slope(at), self.a.slope(at)
            along = up - (up @ wall) / (wall @ wall).clamp(min=1e-30) * wall
            while length > SHORTEST * self.radius:
                tries = [at + length * d / d.norm().clamp(min=1e-30) for d in (up, along)]
                tries[1] = self.returned(tries[1], wall)
                inside = [v for v in tries if self.has(v) and self.has((at + v) / 2)]
                values = [sign * self.b.loss(v) for v in inside]
                most = max(values, default=value)
                if most > value + GAIN * self.epsilon:
                    onward = inside[values.index(most)]
                    break
                length /= 2
            else:
                return at
            at, value, length = onward, most, 2 * length
        return at

    def returned(self, vector: Tensor, wall: Tensor) -> Tensor:
        """Return a point moved along A's slope to the border, where it lies beyond it."""
        for _ in range(2):
            rise = self.a.loss(vector) - self.base
            over = abs(rise) - self.epsilon * (1 - 1e-3)
            if over <= 0:
                break
            vector = vector - (1 if rise > 0 else -1) * over * wall / (wall @ wall).clamp(min=1e-30)
        return vector


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
