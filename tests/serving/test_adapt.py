"""Adaptation by rows without labels: EM, a site's own means, BatchNorm, against other code."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from unseen.datasets.tables.encoding import Schema
from unseen.errors import UnseenError
from unseen.serving.adapt import normalised, posterior, reestimated, renormalise
from unseen.serving.reading.inputs import TableInputs

NAN = float("nan")


def literal(p: list[list[float]], prior: list[float], steps: int) -> list[float]:
    """Equation 2.12 of Saerens et al. 2002, in loops."""
    new = list(prior)
    for _ in range(steps):
        total = [0.0] * len(prior)
        for row in p:
            parts = [new[c] / prior[c] * row[c] for c in range(len(prior))]
            for c, part in enumerate(parts):
                total[c] += part / sum(parts)
        new = [t / len(p) for t in total]
    return new


@given(st.integers(2, 4), st.integers(1, 12), st.integers(0, 999))
def test_em_is_the_papers_and_its_likelihood_never_falls(
    classes: int, steps: int, seed: int
) -> None:
    draws = np.random.default_rng(seed)
    p = draws.dirichlet(np.ones(classes), 30)
    prior = draws.dirichlet(5 * np.ones(classes))
    found = reestimated(torch.tensor(p), torch.tensor(prior), tolerance=0, most=steps)
    np.testing.assert_allclose(found.after, literal(p.tolist(), prior.tolist(), steps), atol=1e-12)
    assert len(found.likelihood) == steps + 1 and found.likelihood[0] == pytest.approx(0, abs=1e-9)
    # A sum of 30 logarithms rounds by far less than this.
    assert all(b >= a - 1e-10 for a, b in zip(found.likelihood, found.likelihood[1:], strict=False))


@pytest.mark.parametrize(("planted", "prior"), [(0.2, 0.5), (0.9, 0.4), (0.05, 0.3), (0.5, 0.5)])
def test_two_classes_and_two_inputs_have_a_closed_form(planted: float, prior: float) -> None:
    """P(a) = π P(a|1) + (1 − π) P(a|0) is linear in π; the model says exactly P(1|x)."""
    given_one, given_zero = 0.8, 0.3
    rows = 10_000
    share = planted * given_one + (1 - planted) * given_zero
    at_a = round(rows * share)
    of = []
    for one, zero in ((given_one, given_zero), (1 - given_one, 1 - given_zero)):
        p = prior * one / (prior * one + (1 - prior) * zero)
        of.append([1 - p, p])
    table = torch.tensor([of[0]] * at_a + [of[1]] * (rows - at_a), dtype=torch.float64)
    found = reestimated(table, torch.tensor([1 - prior, prior]).double())
    expected = (at_a / rows - given_zero) / (given_one - given_zero)
    assert found.converged and float(found.after[1]) == pytest.approx(expected, abs=1e-6)
    new = posterior(table, found.before, found.after)
    exact = planted * given_one / (planted * given_one + (1 - planted) * given_zero)
    assert float(new[0, 1]) == pytest.approx(exact, abs=1e-3)


def test_a_planted_shift_is_recovered_from_a_calibrated_model() -> None:
    """Two normal classes at −1 and 1: P(1|x) = 1 / (1 + e^{−2x} (1 − π)/π)."""
    draws = np.random.default_rng(0)
    prior, planted, n = 0.5, 0.15, 20_000
    y = draws.random(n) < planted
    x = draws.normal(np.where(y, 1, -1), 1)
    p = 1 / (1 + np.exp(-2 * x) * (1 - prior) / prior)
    found = reestimated(torch.tensor(np.stack([1 - p, p], 1)), torch.tensor([1 - prior, prior]))
    # The information of one row is below that of its label, above a fifth of it at this distance.
    error = math.sqrt(5 * planted * (1 - planted) / n)
    assert abs(float(found.after[1]) - planted) < 4 * error
    new = posterior(torch.tensor(np.stack([1 - p, p], 1)), found.before, found.after)
    right = [(np.asarray(q) > 0.5) == y for q in (p, new[:, 1])]
    assert right[1].mean() > right[0].mean() + 0.03


def test_a_class_that_training_had_not_gets_nothing() -> None:
    p = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1]] * 50)
    found = reestimated(p, torch.tensor([0.5, 0.5, 0.0]))
    assert float(found.after[2]) == 0 and float(found.after.sum()) == pytest.approx(1)
    assert float(posterior(p, found.before, found.after)[:, 2].max()) < 1e-12
    certain = reestimated(torch.tensor([[1.0, 0.0]] * 7 + [[0.0, 1.0]] * 3), torch.ones(2) / 2)
    assert certain.after.tolist() == pytest.approx([0.7, 0.3])


def test_columns_are_standardised_by_the_sites_own_rows_as_numpy_does() -> None:
    schema = Schema(("age", "drug", "dose", "flat", "never"), {"drug": ("a", "b")})
    draws = np.random.default_rng(0)

    def table(n: int, shift: float) -> np.ndarray:
        age, drug = draws.normal(60 + shift, 9, n), draws.integers(0, 2, n).astype(float)
        dose, flat = draws.normal(shift, 2, n), draws.normal(size=n)
        x = np.stack([age, drug, dose, flat, np.full(n, NAN)], 1)
        x[::7, 2] = NAN
        return x

    training, new = table(50, 0), table(40, 5)
    new[:, 3], new[:, 4] = 8.25, 1.0  # constant at the site; known to the site alone
    inputs = TableInputs(schema, schema.sums(torch.tensor(training)))
    own = normalised(inputs, torch.tensor(new))
    found = own.encode(new.tolist()).numpy()
    assert own.features == inputs.features
    for name, j in (("age", 0), ("dose", 2)):
        z = (new[:, j] - np.nanmean(new[:, j])) / np.nanstd(new[:, j])
        np.testing.assert_allclose(
            found[:, inputs.features.index(name)], np.nan_to_num(z), atol=1e-6
        )
    before = inputs.encode(new.tolist()).numpy()
    assert not found[:, inputs.features.index("flat")].any()
    assert not found[:, inputs.features.index("never")].any()
    rest = [k for k, n in enumerate(inputs.features) if n not in ("age", "dose", "flat")]
    np.testing.assert_array_equal(found[:, rest], before[:, rest])


def test_a_column_of_which_the_site_knows_nothing_is_as_in_training() -> None:
    schema = Schema(("age", "dose"))
    inputs = TableInputs(schema, schema.sums(torch.tensor([[1.0, 2.0], [3.0, NAN], [8.0, 6.0]])))
    own = normalised(inputs, torch.tensor([[5.0, NAN], [7.0, NAN]]))
    assert own.scaling["dose"] == inputs.scaling["dose"] and own.scaling["age"] == (6.0, 1.0)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 4, 3), nn.BatchNorm2d(4),
        nn.ReLU(), nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 2),
    ).double()  # fmt: skip
    for layer in layers:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(layer.weight)
            layer.running_mean.normal_()  # type: ignore[union-attr]
    return layers.eval()


@pytest.mark.parametrize("size", [1, 7, 120])
def test_batchnorm_is_torchs_in_training_mode_over_all_rows(size: int) -> None:
    net = network()
    x = 3 + 2 * torch.randn(120, 2, 8, 8, dtype=torch.float64)
    other = copy.deepcopy(net).train()
    for layer in other:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():
        expected = other(x)
        before = net(x)
        assert renormalise(net, net, x.split(size)) == 3
        found = net(x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(before, expected)
    for ours, theirs, n in zip(net, other, (0, 120 * 36, 0, 0, 120 * 16, 0, 0, 0, 120, 0),
                               strict=True):  # fmt: skip
        if isinstance(ours, nn.BatchNorm1d | nn.BatchNorm2d):
            assert isinstance(theirs, nn.BatchNorm1d | nn.BatchNorm2d)
            torch.testing.assert_close(ours.running_mean, theirs.running_mean)
            unbiased = ours.running_var * n / (n - 1)  # type: ignore[operator]
            torch.testing.assert_close(unbiased, theirs.running_var)


def test_layers_that_are_not_passed_once_are_refused() -> None:
    net = network()
    x = torch.randn(4, 2, 8, 8, dtype=torch.float64)

    def twice(x: Tensor) -> Tensor:
        return net(x) + net(x)

    for predict in (twice, lambda x: x):
        with pytest.raises(UnseenError, match="Leave out batchnorm"):
            renormalise(net, predict, [x])
    assert not any(layer._forward_pre_hooks for layer in net)
