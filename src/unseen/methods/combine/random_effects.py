"""Random-effects weights: between equal ones and those by examples, as sites differ."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from unseen.core import Draws, Gram, RuleState, Table, WithState


@dataclass(frozen=True)
class RandomEffects(Gram, named="random-effects"):
    """Σ_i w_i u_i with w_i ∝ 1 / (τ² + σ²/n_i), for u_i = μ + (site effect) + (sampling noise).

    With v_i = τ² + σ²/n_i, the mean of ‖u_i − u_j‖² is v_i + v_j. The v_i that fit all pairs best
    are split into τ² and σ² by a non-negative least-squares fit on 1/n_i. Where sites differ much
    the weights are equal, where they are draws from one population they are those by examples;
    what all updates have in common, μ, has no effect on them.

    Attributes:
        tau: τ² by the same regression (`"regression"`), or by the method of moments given σ²
            (`"moments"`): with a_i = n_i/σ² and Q = Σ a_i ‖u_i − ū_a‖²,
            τ² = max(0, (Q − (K − 1)) / (Σ a_i − Σ a_i² / Σ a_i)).

    Source:
        DerSimonian and Laird 1986, for a vector instead of a number.

    Departs from:
        the paper, where σ²/n_i is known from within each study. Of one or two sites, and where
        the fit leaves nothing, the weights are equal.
    """

    needs: ClassVar[tuple[str, ...]] = ("examples",)
    differences: ClassVar[bool] = True
    spread: ClassVar[bool] = True

    tau: Literal["regression", "moments"] = "regression"

    def mix(self, gram: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        from scipy.optimize import nnls  # a third of a second of every process that needs it not

        n = table["examples"].clamp(min=1).numpy()
        K = len(n)
        equal = torch.full((K,), 1 / K, dtype=torch.float64)
        scale = float(gram.abs().max())
        if K < 3 or scale == 0 or not np.isfinite(scale):  # one distance, two sites to blame
            return equal, state
        G, inverse = gram.numpy() / scale, n.min() / n
        tau, noise = nnls(np.stack([np.ones(K), inverse], 1), variances(G))[0]
        within = noise * inverse
        if self.tau == "moments" and noise > 0:
            tau = moments(G, within)
        variance = tau + within
        if not (variance > 0).all():
            return equal, state
        weights = variance.min() / variance
        return torch.from_numpy(weights / weights.sum()), state


def variances(gram: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Return v [K] with the least squares of ‖u_i − u_j‖² − v_i − v_j, for products [K, K]."""
    K, squares = len(gram), gram.diagonal()
    distances = np.maximum(squares[:, None] + squares - 2 * gram, 0.0).sum(1)
    result: np.ndarray = (distances - distances.sum() / (2 * (K - 1))) / (K - 2)  # type: ignore[type-arg]
    return result


def moments(gram: np.ndarray, within: np.ndarray) -> float:  # type: ignore[type-arg]
    """Return τ² by moments, for inner products [K, K] and variances within sites [K]."""
    a = 1 / within
    total = a.sum()
    Q = a @ gram.diagonal() - a @ gram @ a / total
    return float(max(0.0, (Q - (len(a) - 1)) / (total - (a**2).sum() / total)))
