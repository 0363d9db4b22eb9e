"""The Nash bargain between updates, by Newton's method on a convex function."""

import math

import torch
from torch import Tensor

STEPS = 500
#: Newton's decrement below which full steps are taken, each of which squares it.
NEAR = 0.25
#: The decrement below which one more step squares it to less than rounding.
FLAT = 1e-8
#: Weights, of updates of length 1, from which on the length of their sum is unknown: it is √K, and
#: its square has the error of an inner product, up to 1e-9 under encryption, times such a square.
UNBOUNDED = 1e4


def bargain(gram: Tensor) -> Tensor | None:
    """Return the weights a [K] > 0 with Σ_j G_ij a_j = 1/a_i, for inner products G [K, K].

    Returns:
        The weights, or None where they do not exist: some mean of the updates vanishes, and nothing
        is left to bargain for.

    Note:
        They minimise ½ aᵀGa − Σ_i log a_i, which is convex and self-concordant, so that Newton's
        method with steps shortened by 1 + (its decrement) finds them from anywhere. An update of
        length 0 has the weight 0.

    Source:
        Navon et al. 2022, "Multi-Task Learning as a Bargaining Game", Eq. 3; the shortened step:
        Boyd and Vandenberghe 2004, "Convex Optimization", section 9.6.

    Example:
        >>> bargain(torch.tensor([[1.0, 0.0], [0.0, 4.0]]).double()).tolist()
        [1.0, 0.5]
    """
    length = gram.diagonal().clamp_min(0).sqrt()
    moves = length > 0
    cosine = (gram / (length * length[:, None]))[moves][:, moves]
    b, last = torch.ones_like(length[moves]), math.inf
    for _ in range(STEPS):
        slope = cosine @ b - 1 / b
        factor, failed = torch.linalg.cholesky_ex(cosine + (1 / b.square()).diag())
        if bool(failed) or float(b.max()) > UNBOUNDED:
            return None
        step = torch.cholesky_solve(slope[:, None], factor)[:, 0]
        decrement = float((slope @ step).clamp_min(0).sqrt())
        b = b - (step / (1 + decrement) if decrement > NEAR else step)
        if decrement < FLAT or last <= decrement < NEAR:  # rounding is reached
            weights = torch.zeros_like(length)
            weights[moves] = b / length[moves]
            return weights
        last = decrement
    return None
