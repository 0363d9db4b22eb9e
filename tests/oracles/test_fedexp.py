"""FedExP against Equation 7 written in numpy, worked cases, and a federation taken apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import literal
from support.alone import RECIPE, blueprint, completed, played
from support.playing import close, play
from support.sites import federation

from unseen import UnseenError, method, start
from unseen.methods.combine import FedExP, Mean


def step(rows, p, eps):
    """η of Equation 7, whose 1/M is p_i = 1/M."""
    mean = sum(p_i * u for p_i, u in zip(p, rows, strict=True))
    squares = sum(p_i * float(u @ u) for p_i, u in zip(p, rows, strict=True))
    return max(1.0, squares / (2 * (float(mean @ mean) + eps))), mean


@pytest.mark.parametrize("eps", [1e-3, 1e-9, 2.0])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 13])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_equation_7(count, scale, eps) -> None:
    for seed in range(3):
        rows = literal.gradients(seed, count, scale=scale)
        eta, mean = step(rows, [1 / count] * count, eps)
        vector, weights = play(FedExP(eps=eps), rows)
        close(vector, [eta * mean])
        np.testing.assert_allclose(weights, eta / count, rtol=1e-12)


def test_a_prior_by_examples_weighs_the_squares_and_the_mean() -> None:
    rows, examples = literal.gradients(3, 5), np.array([10.0, 400.0, 35.0, 5.0, 50.0])
    p = literal.shares(examples)
    eta, mean = step(rows, p, 1e-3)
    vector, weights = play(FedExP(prior=Mean("examples")), rows, examples=examples)
    close(vector, [eta * mean])
    np.testing.assert_allclose(weights, eta * np.asarray(p), rtol=1e-12)


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 10.0])
def test_the_step_is_never_shorter_than_the_mean(spread) -> None:
    """One vector and deviations from it: with none the ratio is 1/2, and the step is the mean."""
    for seed in range(20):
        own = literal.gradients(seed, 4)
        rows = literal.gradients(seed + 99, 1) + spread * own
        vector, weights = play(FedExP(), rows)
        mean = rows.mean(0)
        assert np.linalg.norm(vector) >= np.linalg.norm(mean) * (1 - 1e-12)
        assert weights.sum() >= 1 - 1e-12
        if spread <= 0.1:
            np.testing.assert_allclose(vector, mean, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("count", "eta"), [(1, 1), (2, 1), (3, 1.5), (6, 3), (20, 10)])
def test_orthogonal_updates_of_one_length(count, eta) -> None:
    """(L²) / (2 L²/M) = M/2, by hand."""
    rows = np.zeros((count, 30))
    rows[np.arange(count), np.arange(count)] = 7.0
    vector, weights = play(FedExP(eps=1e-12), rows)
    np.testing.assert_allclose(weights.sum(), eta, rtol=1e-9)
    np.testing.assert_allclose(vector, eta * rows.mean(0), rtol=1e-9)


def test_updates_that_cancel_are_held_by_epsilon() -> None:
    """The mean is 0, so that η is 1/(2 ε) and the step still 0."""
    vector, weights = play(FedExP(eps=1e-3), np.array([[1.0, 0.0], [-1.0, 0.0]]))
    assert not vector.any()
    np.testing.assert_allclose(weights.sum(), 500.0, rtol=1e-12)
    still, weights = play(FedExP(), np.zeros((3, 4)))
    assert not still.any()
    assert weights.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("expression", "base", "by"),
    [
        ("exp(eps=1e-6)", "fedavg(weights='uniform')", "uniform"),
        ("fedavg+exp(eps=1e-6)", "fedavg", "examples"),
        ("fedprox(mu=0.5)+exp(eps=1e-6)", "fedprox(mu=0.5)", "examples"),
    ],
)
def test_a_round_of_a_federation_taken_apart(expression, base, by) -> None:
    """Every site alone gives its own update; the server's step is η times that of the mean."""
    clients = federation(4)
    chosen, model = completed(method(base, RECIPE), blueprint(clients, "mlp(widths=[8])"))
    x = start(chosen, model, sorted(clients), 0).inbox["model"].double().numpy()
    rows = [
        played(base, {n: c}, rounds=1).state.inbox["model"].double().numpy() - x
        for n, c in clients.items()
    ]
    n = np.array([len(c.train) for c in clients.values()], dtype=float)
    p = n / n.sum() if by == "examples" else np.full(4, 0.25)
    eta, mean = step(rows, p, 1e-6)
    run = played(expression, clients, rounds=1)
    found = run.state.inbox["model"].double().numpy() - x
    np.testing.assert_allclose(found, eta * mean, rtol=1e-4, atol=1e-6)
    (outcome,) = run.outcomes
    np.testing.assert_allclose(outcome.weights["model"], eta * p, rtol=1e-4)


@pytest.mark.parametrize("eps", [0.0, -1.0, math.nan])
def test_epsilon_must_be_positive(eps) -> None:
    with pytest.raises(UnseenError, match=r"exp\(eps\)"):
        FedExP(eps=eps)


def test_it_replaces_no_other_rule() -> None:
    with pytest.raises(UnseenError, match="already decides how updates are combined"):
        method("ppdg+exp")


def test_float32_rows() -> None:
    rows = literal.gradients(5, 5, size=20_011).astype(np.float32)
    eta, mean = step(rows.astype(float), [0.2] * 5, 1e-3)
    close(play(FedExP(), rows, dtype=torch.float32)[0], [eta * mean], tolerance=1e-5)


@pytest.mark.parametrize("rule", ["exp", "qffl", "random-effects"])
@pytest.mark.parametrize("base", ["fedbn", "gperxan"])
def test_batchnorm_of_every_client_is_no_disagreement(base: str, rule: str) -> None:
    with pytest.raises(UnseenError, match="is not a disagreement between updates"):
        method(f"{base}+{rule}")
