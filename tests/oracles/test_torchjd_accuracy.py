"""How near TorchJD's solvers come to exact ones, as the methods' pages say it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from unseen.methods.combine import JacobianDescent

quadprog = pytest.importorskip("quadprog", reason="the extra `torchjd` is not installed")

#: weighting -> the largest error, of the exact result's length, where the logarithms of the
#: updates' lengths have a standard deviation of 0, 0.5, 1.
WORST = {"mgda": (0.20, 0.25, 1.0), "upgrad": (0.002, 0.01, 0.22)}


def projected(U: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The d nearest to x with U d >= 0: x + Uᵀ v, where v >= 0 minimises ‖x + Uᵀ v‖."""
    d = x + U.T @ nnls(U.T, -x, maxiter=10_000)[0]
    assert (U @ d).min() > -1e-12
    return d


def nearest_to_0(U: np.ndarray) -> np.ndarray:
    K = len(U)
    limits = np.concatenate([np.ones((K, 1)), np.eye(K)], 1)
    w = quadprog.solve_qp(U @ U.T, np.zeros(K), limits, np.eye(K + 1)[0], 1)[0]
    d = w @ U
    assert (U @ d).min() > (1 - 1e-9) * (d @ d)
    return d


EXACT = {
    "mgda": nearest_to_0,
    "upgrad": lambda U: np.mean([projected(U, u) for u in U], 0),
}


@pytest.mark.parametrize("name", EXACT)
def test_errors_are_within_what_the_pages_say(name: str) -> None:
    rule = JacobianDescent(name)
    for spread, worst in zip((0.0, 0.5, 1.0), WORST[name], strict=True):
        for seed in range(8):
            rng, K = np.random.default_rng(seed), (3, 5, 8, 10)[seed % 4]
            U = rng.normal(size=(K, 30)) * np.exp(spread * rng.normal(size=(K, 1)))
            expected = EXACT[name](U)
            found, _, _ = rule(torch.tensor(U), {}, rule.init(*U.shape))
            error = np.linalg.norm(found.numpy() - expected) / np.linalg.norm(expected)
            assert error < worst, (spread, seed)
