"""FedOMG: the direction near the mean update that serves the worst-served client best."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.core import Draws, Gram, RuleState, Table, Weighted, WithState
from unseen.methods.combine.mean import Mean
from unseen.ranges import NotNegative, Positive, log, uniform

Floats = NDArray[np.float64]

#: ‖Σ w_i g_i‖ below this share of the updates' size counts as this much: where 0 is a mixture of
#: the updates its direction is a limit, and inner products of float32 tell no more.
NEAR_ZERO = 1e-3
#: What the released code adds under every root, and to the norm that it divides by.
RELEASED_FLOOR = 1e-4


@dataclass(frozen=True)
class FedOMG(Gram):
    """The step near the mean update that serves best the client that it serves worst.

        x ← x + η Σ_i (p_i + λ w_i) g_i / (1 + c²),   λ = c ‖ḡ‖ / ‖Σ_i w_i g_i‖,   ḡ = Σ_i p_i g_i
        w = argmin over the simplex of <Σ_i w_i g_i, ḡ> + c ‖ḡ‖ ‖Σ_i w_i g_i‖

    By duality this is the d that maximises min_i <g_i, d> among ‖d − ḡ‖ ≤ c ‖ḡ‖, shortened by 1 +
    c²: CAGrad (Liu et al. 2021) on updates.

    Attributes:
        c: how far from ḡ, as a share of its length; 0.5 in the released commands. 0 is η ḡ.
        eta: η; 0.5 in the released commands, 0.05 to 0.5 in their searches; 1 here, so that the
            step is about as long as the other rules'.
        solver: `"exact"`, to rounding, in float64; `"released"`, the code's best of 21 points of
            SGD on the logits of w (20 steps, learning rate 25, or 50 for 50 clients, momentum 0.5),
            with 1e-4 under every root of inner products divided by the squared mean norm. Exact is
            the default: five random updates of norm 1 are combined within 3 % of it by the other,
            but of norm 1e-3, where 1e-4 is no longer small, a quarter off.
        prior: p, the weights of ḡ; the paper's are uniform.

    Note:
        K equal updates g give η (1 + c)/(1 + c²) g. Where 0 is a mixture of the updates the exact
        solver returns the limit of w at ‖Σ w_i g_i‖ = 1e-3 of their size.

    Source:
        Nguyen et al. 2025, "Federated Domain Generalization with Data-free On-server Matching
        Gradient", and its code.

    Departs from:
        the released code, which multiplies every update by its client's share of the examples and
        then averages uniformly, and so moves K times less; and whose BatchNorm statistics never
        leave the clients, where here they are averaged.

    Example:
        >>> g = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> rule = FedOMG(c=0.5)
        >>> rule(g, {}, rule.init(2, 2))[0]
        tensor([0.6000, 0.6000])
    """

    c: Annotated[NotNegative, uniform(0.1, 0.9)] = 0.5
    eta: Annotated[Positive, log(0.1, 2)] = 1.0
    solver: Literal["exact", "released"] = "exact"
    prior: Weighted = Mean("uniform")

    def mix(self, gram: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        solve = exact if self.solver == "exact" else released
        pull = solve(gram.numpy(), table["prior"].numpy(), self.c)
        return (table["prior"] + torch.from_numpy(pull)) * (self.eta / (1 + self.c**2)), state


def exact(G: Floats, p: Floats, c: float) -> Floats:
    """Return λ w [K], by one root in t = ‖Σ w_i g_i‖.

    Note:
        For a given t the objective, with ‖v‖ ≤ (‖v‖²/t + t)/2, is the nearest point to 0 in the
        hull of the g_i + (t/ρ) ḡ, ρ = c ‖ḡ‖: a least-squares problem in w ≥ 0. Its norm meets t
        once, since the whole is convex in w and t together.
    """
    from scipy.optimize import brentq, nnls  # half a second of every process that needs it not

    size = float(G.diagonal().mean())
    rho = c * math.sqrt(max(0.0, float(p @ G @ p)) / size) if size > 0 else 0.0
    if rho <= 1e-12:
        return np.zeros_like(p)
    values, vectors = np.linalg.eigh(G / size)
    g = np.sqrt(values.clip(min=0))[:, None] * vectors.T  # columns with these inner products
    mean = (g @ p)[:, None]

    def nearest(t: float) -> Floats:
        points = (rho * g + t * mean) / (rho + t)
        system = np.vstack([points, np.ones(len(p))])
        x, _ = nnls(system, np.eye(len(system))[-1], maxiter=100 * len(p))
        w: Floats = x / x.sum()
        return w

    def excess(t: float) -> float:
        return float(np.linalg.norm(g @ nearest(t))) - t

    t = NEAR_ZERO
    if excess(t) > 0:
        t = brentq(excess, t, 2 * float(np.linalg.norm(g, axis=0).max()), xtol=1e-13)
    return nearest(t) * (rho / t)


def released(G: Floats, p: Floats, c: float) -> Floats:
    """Return λ w [K] as in the released code, in float64."""
    G = G / float(np.sqrt(G.diagonal() + RELEASED_FLOOR).mean()) ** 2
    inner = G @ p
    rho = c * math.sqrt(max(0.0, float(inner @ p)) + RELEASED_FLOOR)

    def norm(w: Floats) -> float:
        return math.sqrt(max(0.0, float(w @ G @ w)) + RELEASED_FLOOR)

    logits, speed = np.zeros_like(p), np.zeros_like(p)
    best, lowest = p, math.inf
    for _ in range(21):
        w = np.exp(logits - logits.max())
        w = w / w.sum()
        value = float(w @ inner) + rho * norm(w)
        if value < lowest:
            best, lowest = w, value
        slope = inner + rho / norm(w) * (G @ w)
        speed = 0.5 * speed + w * (slope - w @ slope)
        logits = logits - (50 if len(p) == 50 else 25) * speed
    return best * (rho / (norm(best) + RELEASED_FLOOR))
