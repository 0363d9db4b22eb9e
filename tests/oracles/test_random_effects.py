"""Random-effects weights against DerSimonian and Laird's formulae and a fit by enumeration."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.alone import played
from support.playing import play
from support.sites import federation

from unseen import UnseenError
from unseen.methods.combine import Mean, RandomEffects

SIZES = np.array([20.0, 50.0, 100.0, 400.0, 1000.0])


def sites(seed, tau, sigma, sizes=SIZES, size=400, mu=1.0):
    """u_i = μ + N(0, τ²/P) + N(0, σ²/(n_i P)): τ² and σ²/n_i are those of the whole vector."""
    rng = np.random.default_rng(seed)
    P, K = size, len(sizes)
    common = rng.standard_normal(P)
    common *= mu / np.linalg.norm(common)
    effects = rng.standard_normal((K, P)) * tau / np.sqrt(P)
    noise = rng.standard_normal((K, P)) * sigma / np.sqrt(P * sizes[:, None])
    return common + effects + noise


def variances(rows):
    """v_i of E‖u_i − u_j‖² = v_i + v_j: the least-squares solution over all pairs."""
    K = len(rows)
    pairs = [(i, j) for i in range(K) for j in range(i)]
    design = np.zeros((len(pairs), K))
    for row, (i, j) in zip(design, pairs, strict=True):
        row[i] = row[j] = 1
    distances = [float(np.sum((rows[i] - rows[j]) ** 2)) for i, j in pairs]
    return np.linalg.lstsq(design, np.array(distances), rcond=None)[0]


def fitted(v, n):
    """(τ², σ²) ≥ 0 with the least squares of v_i − τ² − σ²/n_i: the best of the four faces."""
    ones, inverse = np.ones(len(n)), 1 / n
    candidates = [(0.0, 0.0), (max(0.0, v.mean()), 0.0)]
    candidates.append((0.0, max(0.0, float(inverse @ v / (inverse @ inverse)))))
    inside = np.linalg.lstsq(np.stack([ones, inverse], 1), v, rcond=None)[0]
    if (inside >= 0).all():
        candidates.append((float(inside[0]), float(inside[1])))
    return min(candidates, key=lambda c: float(np.sum((v - c[0] - c[1] * inverse) ** 2)))


def dersimonian_laird(rows, within):
    """τ² = max(0, (Q − (K − 1)) / (Σ a − Σ a² / Σ a)), a_i = 1/v_i, of vectors."""
    a = 1 / within
    mean = (a[:, None] * rows).sum(0) / a.sum()
    Q = sum(a_i * float(np.sum((u - mean) ** 2)) for a_i, u in zip(a, rows, strict=True))
    return max(0.0, (Q - (len(rows) - 1)) / (a.sum() - (a**2).sum() / a.sum()))


def normalised(variance):
    return (1 / variance) / (1 / variance).sum()


@pytest.mark.parametrize("tau", [0.0, 0.05, 0.3, 2.0])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_the_regression_written_out(tau, scale) -> None:
    for seed in range(6):
        rows = sites(seed, tau, sigma=3.0) * scale
        between, noise = fitted(variances(rows), SIZES)
        vector, weights = play(RandomEffects(), rows, examples=SIZES)
        expected = normalised(between + noise / SIZES)
        np.testing.assert_allclose(weights, expected, rtol=1e-6)
        np.testing.assert_allclose(vector, expected @ rows, rtol=1e-5, atol=1e-9 * scale)


@pytest.mark.parametrize("tau", [0.0, 0.05, 0.3, 2.0])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_the_moments_written_out(tau, scale) -> None:
    met = 0
    for seed in range(6):
        rows = sites(seed, tau, sigma=3.0) * scale
        _, noise = fitted(variances(rows), SIZES)
        if noise == 0:
            continue
        met += 1
        within = noise / SIZES
        expected = normalised(dersimonian_laird(rows, within) + within)
        _, weights = play(RandomEffects(tau="moments"), rows, examples=SIZES)
        np.testing.assert_allclose(weights, expected, rtol=1e-6)
    assert met > 2


@pytest.mark.parametrize("tau", ["regression", "moments"])
@pytest.mark.parametrize("mu", [0.0, 1.0, 100.0])
def test_draws_from_one_population_are_weighed_by_examples(tau, mu) -> None:
    for seed in range(5):
        rows = sites(seed, 0.0, sigma=3.0, size=20_000, mu=mu)
        _, weights = play(RandomEffects(tau=tau), rows, examples=SIZES)
        np.testing.assert_allclose(weights, SIZES / SIZES.sum(), atol=0.06)


@pytest.mark.parametrize("tau", ["regression", "moments"])
@pytest.mark.parametrize("mu", [0.0, 1.0, 100.0])
def test_sites_that_differ_much_are_weighed_alike(tau, mu) -> None:
    for seed in range(5):
        rows = sites(seed, 5.0, sigma=1.0, size=20_000, mu=mu)
        _, weights = play(RandomEffects(tau=tau), rows, examples=SIZES)
        np.testing.assert_allclose(weights, 0.2, atol=0.01)


@pytest.mark.parametrize("tau", ["regression", "moments"])
def test_what_all_sites_share_does_not_matter(tau) -> None:
    """DerSimonian and Laird's τ² is of differences, whatever the effect itself is."""
    rows = sites(1, 0.05, sigma=3.0)
    _, weights = play(RandomEffects(tau=tau), rows, examples=SIZES)
    away = 50 * np.random.default_rng(7).standard_normal(rows.shape[1])
    _, moved = play(RandomEffects(tau=tau), rows + away, examples=SIZES)
    np.testing.assert_allclose(moved, weights, rtol=1e-6)


def test_the_weighted_mean_is_nearer_to_the_truth_than_either_mean() -> None:
    """Over many draws at a τ² between both cases."""
    errors = {"random-effects": 0.0, "uniform": 0.0, "examples": 0.0}
    rules = {"random-effects": RandomEffects(), "uniform": Mean("uniform"), "examples": Mean()}
    n = np.array([10.0, 10.0, 10.0, 40.0, 40.0, 640.0])
    for seed in range(60):
        rows = sites(seed, 0.5, sigma=3.0, sizes=n, size=300, mu=0.0)
        for name, rule in rules.items():
            errors[name] += float(np.sum(play(rule, rows, examples=n)[0] ** 2))
    assert errors["random-effects"] < 0.9 * min(errors["uniform"], errors["examples"])


@pytest.mark.parametrize("tau", ["regression", "moments"])
def test_two_sites_and_one_are_weighed_alike(tau) -> None:
    for count in (1, 2):
        rows = sites(0, 0.0, 3.0)[:count]
        _, weights = play(RandomEffects(tau=tau), rows, examples=SIZES[:count])
        assert weights.tolist() == [1 / count] * count


@pytest.mark.parametrize("tau", ["regression", "moments"])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_sites_of_one_size_are_weighed_alike(tau, spread) -> None:
    n = np.full(5, 40.0)
    rows = sites(2, spread, 3.0, sizes=n)
    np.testing.assert_allclose(play(RandomEffects(tau=tau), rows, examples=n)[1], 0.2, rtol=1e-9)


@pytest.mark.parametrize("tau", ["regression", "moments"])
@pytest.mark.parametrize("value", [0.0, 1.0, 1e-20, 1e15])
def test_equal_rows_give_that_row(tau, value) -> None:
    rows = np.full((4, 9), value)
    vector, weights = play(RandomEffects(tau=tau), rows, examples=SIZES[:4])
    np.testing.assert_allclose(vector, rows[0], rtol=1e-12)
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()


@pytest.mark.parametrize("tau", ["regression", "moments"])
def test_what_would_divide_by_nothing_is_defined(tau) -> None:
    """No examples, one far row, one row that all others equal, products that overflow."""
    rows = np.ones((4, 3))
    rows[2] = -5
    for examples in (np.zeros(4), np.array([0.0, 0.0, 9.0, 9.0]), np.array([1.0, 1e9, 1.0, 1.0])):
        for scale in (1.0, 1e-160, 1e160):
            _, weights = play(RandomEffects(tau=tau), rows * scale, examples=examples)
            assert np.isfinite(weights).all()
            assert weights.sum() == pytest.approx(1)
            assert (weights >= 0).all()


def test_the_order_of_the_rows_does_not_matter() -> None:
    rows, order = sites(3, 0.1, 3.0), np.array([3, 0, 4, 1, 2])
    _, weights = play(RandomEffects(), rows, examples=SIZES)
    _, moved = play(RandomEffects(), rows[order], examples=SIZES[order])
    np.testing.assert_allclose(moved, weights[order], rtol=1e-6)


def test_under_a_federation() -> None:
    run = played("random-effects", federation(4), rounds=2)
    for outcome in run.outcomes:
        weights = outcome.weights["model"]
        assert float(weights.sum()) == pytest.approx(1)
        assert bool((weights > 0).all())
    assert bool(torch.isfinite(run.state.inbox["model"]).all())


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(UnseenError, match="regression"):
        RandomEffects(tau="reml")  # type: ignore[arg-type]
