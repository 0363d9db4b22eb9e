"""EQRM: the quantile of the losses' kernel density in scipy, and its derivative by differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from support.alone import played
from support.sites import federation

from unseen.methods.combine import QuantileOfRisks
from unseen.methods.combine.quantile import quantile_gradient


def quantile(losses, alpha) -> float:
    """q with (1/K) Σ Φ((q − L_j) / h) = α and h = 1.06 s K^(−1/5), as the paper's code has it."""
    h = 1.06 * np.std(losses, ddof=1) * len(losses) ** -0.2
    reach = 10 * h + np.ptp(losses)
    return brentq(
        lambda q: norm.cdf((q - losses) / h).mean() - alpha,
        losses.min() - reach, losses.max() + reach, xtol=1e-14, rtol=1e-14,
    )  # fmt: skip


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.75, 0.99])
@pytest.mark.parametrize("K", [2, 3, 8])
def test_weights_are_the_derivative_of_the_quantile(K, alpha) -> None:
    losses = np.random.default_rng(K).exponential(size=K)
    step, expected = 1e-5, []
    for i in range(K):
        up, down = losses.copy(), losses.copy()
        up[i], down[i] = up[i] + step, down[i] - step
        expected.append((quantile(up, alpha) - quantile(down, alpha)) / (2 * step))
    found = quantile_gradient(torch.tensor(losses), alpha)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-12)


def test_an_early_round_and_equal_losses_take_the_priors_mean() -> None:
    losses = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    progress = {"progress": torch.full((3,), 0.2)}
    rule = QuantileOfRisks(start=0.5)
    early, _ = rule.weights({"received_loss": losses} | progress, rule.init(3, 1))
    assert early.tolist() == [1 / 3] * 3
    late, _ = rule.weights({"received_loss": losses}, rule.init(3, 1))
    assert late.tolist() != early.tolist()
    alike, _ = rule.weights({"received_loss": torch.full((3,), 0.7)}, rule.init(3, 1))
    assert alike.tolist() == [1 / 3] * 3


def test_huge_and_far_losses_stay_finite() -> None:
    for losses in ([0.0, 1e-9, 50.0], [1e6, 1e6 + 1, 2e6], [3.0, 3.0, 3.0, 1e4]):
        found = quantile_gradient(torch.tensor(losses, dtype=torch.float64), 0.999)
        assert bool(found.isfinite().all())
        assert float(found.sum()) == pytest.approx(1)


def test_a_round_of_gradients_lowers_the_quantile() -> None:
    clients = federation(4)
    before, after = (played("fedsgd+eqrm(alpha=0.9)", clients, r) for r in (1, 2))
    table = {o.turn.round: o.table["received_loss"].numpy() for o in after.outcomes}
    assert quantile(table[1], 0.9) < quantile(table[0], 0.9)
    assert torch.equal(before.outcomes[0].weights["model"], after.outcomes[0].weights["model"])
