"""FedOMG: its minimum by brute force, CAGrad's dual by scipy, and the released steps in torch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.optimize
import torch
from support import literal

from unseen.errors import UnseenError
from unseen.methods.combine import FedOMG, Mean


def combined(rule, rows, examples=None, dtype=torch.float64):
    """One call on plain rows: the vector and the weights as arrays."""
    counts = np.ones(len(rows)) if examples is None else examples
    table = {"examples": torch.tensor(counts, dtype=torch.float64)}
    state = rule.init(*rows.shape)
    vector, _, weights = rule(torch.tensor(rows, dtype=dtype), table, state)
    return vector.double().numpy(), weights.numpy()


def objective(w, rows, p, c):
    """<g_w, gbar> + c |gbar| |g_w|."""
    mixed, mean = w @ rows, p @ rows
    return mixed @ mean + c * np.linalg.norm(mean) * np.linalg.norm(mixed)


def simplex(rule, rows, examples=None):
    """What the rule took for w, from eta (p + lambda w) / (1 + c^2)."""
    p = literal.shares(examples if examples is not None else np.ones(len(rows)))
    extra = combined(rule, rows, examples)[1] * (1 + rule.c**2) / rule.eta - p
    return extra / extra.sum(), extra.sum()


def grid(count: int, steps: int):
    """All w on the simplex whose entries are multiples of 1 / steps."""
    if count == 2:
        return np.array([[k / steps, 1 - k / steps] for k in range(steps + 1)])
    pairs = [(i, j) for i in range(steps + 1) for j in range(steps + 1 - i)]
    return np.array([[i, j, steps - i - j] for i, j in pairs]) / steps


@pytest.mark.parametrize("c", [0.1, 0.5, 0.9, 2.0])
@pytest.mark.parametrize(("count", "steps"), [(2, 20_000), (3, 300)])
def test_no_point_of_a_fine_grid_is_lower(count, steps, c) -> None:
    points = grid(count, steps)
    for seed in range(6):
        rows = literal.gradients(seed, count, size=6, scale=None if seed % 2 else 1.0)
        p = np.full(count, 1 / count)
        mixed, mean = points @ rows, p @ rows
        values = mixed @ mean + c * np.linalg.norm(mean) * np.linalg.norm(mixed, axis=1)
        w, _ = simplex(FedOMG(c), rows)
        size = (rows**2).sum(1).mean()
        lowest = objective(w, rows, p, c)
        assert lowest <= values.min() + 1e-10 * size
        assert lowest >= values.min() - 1e-2 * size  # the grid comes near


@pytest.mark.parametrize("c", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("count", [2, 3, 5, 13])
def test_scipy_finds_nothing_lower(count, c) -> None:
    for seed in range(4):
        rows = literal.gradients(seed, count)
        examples = np.random.default_rng(seed).integers(1, 50, count).astype(float)
        p = literal.shares(examples)
        found = scipy.optimize.minimize(
            objective,
            p,
            (rows, p, c),
            method="SLSQP",
            bounds=[(0, 1)] * count,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        w, scale = simplex(FedOMG(c, prior=Mean("examples")), rows, examples)
        assert (w > -1e-12).all()
        assert objective(w, rows, p, c) <= found.fun + 1e-9
        np.testing.assert_allclose(w @ rows, found.x @ rows, rtol=0, atol=1e-4)
        # lambda = c |gbar| / |g_w|: the step away from the mean is exactly c |gbar| long
        away = scale * np.linalg.norm(w @ rows)
        assert away == pytest.approx(c * np.linalg.norm(p @ rows), rel=1e-9)


@pytest.mark.parametrize("c", [0.3, 0.5, 0.9])
def test_duality_the_step_serves_the_worst_client_best(c) -> None:
    """min_i <g_i, d> = min_w (<g_w, gbar> + c |gbar| |g_w|), CAGrad's Lagrangian; no d in the
    ball does better."""
    rng = np.random.default_rng(0)
    for seed, count in itertools.product(range(4), (2, 3, 5)):
        rows = literal.gradients(seed, count, size=8)
        mean = rows.mean(0)
        d = combined(FedOMG(c), rows)[0] * (1 + c**2)
        worst = (rows @ d).min()
        w, _ = simplex(FedOMG(c), rows)
        value = objective(w, rows, np.full(count, 1 / count), c)
        assert worst == pytest.approx(value, rel=1e-7, abs=1e-9)
        radius = c * np.linalg.norm(mean)
        assert np.linalg.norm(d - mean) <= radius * (1 + 1e-9)
        away = rng.standard_normal((500, 8))
        away *= radius / np.linalg.norm(away, axis=1, keepdims=True)
        assert ((mean + away) @ rows.T).min(1).max() <= worst + 1e-9


def test_two_orthogonal_clients_by_hand() -> None:
    """g = (a, 0), (0, 1): at a = 1, w = 1/2, d = (1 + c) gbar; for a large a all weight is on the
    short one: w = (0, 1), lambda = c |gbar|."""
    vector, _ = combined(FedOMG(0.5), np.eye(2))
    np.testing.assert_allclose(vector, [0.6, 0.6], atol=1e-12)
    rows = np.diag([10.0, 1.0])
    c, length = 0.2, np.sqrt(25.25)
    vector, weights = combined(FedOMG(c, 0.5), rows)
    np.testing.assert_allclose(weights, np.array([0.5, 0.5 + c * length]) * 0.5 / 1.04)
    np.testing.assert_allclose(vector, weights * [10, 1])


def test_c_of_0_is_the_mean_bit_for_bit() -> None:
    rows = literal.gradients(0, 5, size=70_001)
    for prior in (Mean("uniform"), Mean("examples")):
        examples = [3.0, 1.0, 9.0, 2.0, 2.0]
        vector, weights = combined(FedOMG(0, prior=prior), rows, examples, torch.float32)
        expected, same = combined(prior, rows, examples, torch.float32)
        assert np.array_equal(vector, expected) and np.array_equal(weights, same)


def test_opposed_and_equal_updates() -> None:
    """Equal ones: eta (1 + c)/(1 + c^2) g. Exactly opposed ones: gbar = 0, and the step is 0."""
    row = literal.gradients(0, 1)
    for count in (1, 2, 5):
        vector, _ = combined(FedOMG(0.5, 0.1), np.repeat(row, count, axis=0))
        np.testing.assert_allclose(vector, 0.12 * row[0], rtol=1e-12)
    vector, weights = combined(FedOMG(0.5), np.concatenate([row, -row]))
    np.testing.assert_allclose(vector, 0, atol=1e-15)
    assert weights.tolist() == [0.4, 0.4]


def test_where_0_is_a_mixture_the_step_is_the_limit() -> None:
    """(1, 0), (-1, 0), (0, 1): half of the first two is 0, and gbar = (0, 1/3) hurts nobody."""
    rows = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    vector, weights = combined(FedOMG(0.5), rows)
    assert np.isfinite(weights).all()
    assert vector[0] == pytest.approx(0, abs=1e-9)
    assert 1 / 3 / 1.25 - 1e-9 <= vector[1] <= 1.5 / 3 / 1.25 + 1e-9


def released(rows, c):
    """The released code's lines with autograd, in float64, on updates not multiplied by p."""
    g = torch.tensor(rows)
    K = len(g)
    GG = g @ g.T
    GG = GG / (GG.diagonal() + 1e-4).sqrt().mean() ** 2
    Gg = GG.mean(1)
    radius = c * (Gg.mean() + 1e-4).sqrt()
    logits = torch.zeros(K, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([logits], lr=50 if K == 50 else 25, momentum=0.5)
    best, lowest = None, float("inf")
    for i in range(21):
        sgd.zero_grad()
        w = logits.softmax(0)
        value = w @ Gg + radius * (w @ GG @ w + 1e-4).sqrt()
        if value.item() < lowest:
            best, lowest = logits.detach().clone(), value.item()
        if i < 20:
            value.backward()
            sgd.step()
    w = best.softmax(0)
    lam = radius.detach() / ((w @ GG @ w + 1e-4).sqrt() + 1e-4)
    return ((1 / K + lam * w) @ g / (1 + c**2)).numpy()


@pytest.mark.parametrize("c", [0.2, 0.5])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 13, 50])
def test_the_released_solver_run_literally(count, c) -> None:
    for seed, scale in itertools.product(range(3), (1.0, 1e-3)):
        rows = literal.gradients(seed, count, scale=scale)
        found, _ = combined(FedOMG(c, solver="released"), rows)
        np.testing.assert_allclose(found, released(rows, c), rtol=1e-7, atol=1e-9 * scale)


def test_the_released_solver_comes_near_but_for_short_updates() -> None:
    """Why `exact` is the default: never above in the objective, and of one scale."""
    apart = {}
    for length in (1.0, 1e-3):
        off = []
        for seed in range(20):
            rows = literal.gradients(seed, 5) / 40**0.5 * length
            p, size = np.full(5, 0.2), (rows**2).sum(1).mean()
            ours, theirs = FedOMG(0.5), FedOMG(0.5, solver="released")
            low, high = (objective(simplex(r, rows)[0], rows, p, 0.5) for r in (ours, theirs))
            assert low <= high + 1e-12 * size
            one, other = combined(ours, rows)[0], combined(theirs, rows)[0]
            off.append(np.linalg.norm(one - other) / np.linalg.norm(one))
        apart[length] = off
    assert max(apart[1.0]) < 0.03
    assert np.median(apart[1e-3]) > 0.2


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-10, 1e10])
@pytest.mark.parametrize("solver", ["exact", "released"])
def test_no_scale_breaks_a_solver(solver, scale) -> None:
    for count in (1, 2, 5, 50):
        rows = literal.gradients(0, count) * scale
        rows[0] = 0
        vector, weights = combined(FedOMG(0.5, solver=solver), rows)
        assert np.isfinite(vector).all() and np.isfinite(weights).all()


def test_options_are_checked() -> None:
    for options in ({"c": -1}, {"eta": 0}, {"solver": "adam"}):
        with pytest.raises(UnseenError, match=next(iter(options))):
            FedOMG(**options)
