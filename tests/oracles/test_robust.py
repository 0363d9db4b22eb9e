"""Trimmed mean, median and Krum: other libraries, a literal loop, and wrong clients."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from support import literal
from support.sites import federation, images

from unseen import Model, Training, UnseenError, method, play, start
from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.errors import Incompatible
from unseen.methods.base import trained
from unseen.methods.combine import DenseRows, Krum, Mean, Median, TrimmedMean
from unseen.methods.compose import METHODS

COUNTS = [1, 2, 3, 4, 5, 8, 13, 20]


def combined(rule, rows, dtype=torch.float64):
    """One call on plain rows: the vector as an array, and the weights."""
    vector, _, weights = rule(torch.tensor(rows, dtype=dtype), {}, rule.init(*rows.shape))
    return vector.double().numpy(), weights


@pytest.mark.parametrize("trim", [0.0, 0.1, 0.2, 0.34, 0.49])
@pytest.mark.parametrize("count", COUNTS)
def test_trimmed_mean_is_scipys(count, trim) -> None:
    rows = literal.gradients(0, count, size=500)
    expected = scipy.stats.trim_mean(rows, trim, axis=0)
    np.testing.assert_allclose(combined(TrimmedMean(trim), rows)[0], expected, atol=1e-14)


def test_nothing_trimmed_is_the_uniform_mean_bit_for_bit() -> None:
    u = torch.randn(4, 70_001, generator=keyed("trim"))
    assert torch.equal(TrimmedMean(0.2)(u, {}, {})[0], Mean("uniform")(u, {}, {})[0])


@pytest.mark.parametrize("count", COUNTS)
def test_median_is_numpys(count) -> None:
    rows = literal.gradients(1, count, size=70_001)
    expected = np.median(rows, axis=0)
    assert np.array_equal(combined(Median(), rows)[0], expected)
    if count % 2:
        ours = combined(Median(), rows, torch.float32)[0]
        assert np.array_equal(ours, torch.tensor(rows).float().median(0).values.double().numpy())


def test_the_median_of_two_of_the_largest_numbers_is_finite() -> None:
    largest = torch.finfo(torch.float32).max
    found, _ = combined(Median(), np.full((2, 3), largest), torch.float32)
    assert np.array_equal(found, np.full(3, largest))


def krum_literally(rows, f):
    """Scores of Blanchard et al., section 4: squared distances to the K - f - 2 nearest."""
    K = len(rows)
    scores = []
    for i in range(K):
        distances = sorted(np.sum((rows[i] - rows[j]) ** 2) for j in range(K) if j != i)
        scores.append(sum(distances[: K - f - 2]))
    return scores


@pytest.mark.parametrize(("count", "f"), [(3, 0), (4, 0), (5, 0), (5, 1), (8, 1), (8, 2), (13, 5)])
def test_krum_run_literally(count, f) -> None:
    for seed, m in itertools.product(range(5), (1, 3)):
        rows = literal.gradients(seed, count, scale=None if seed % 2 else 1.0)
        best = np.argsort(krum_literally(rows, f), kind="stable")[: min(m, count - f)]
        vector, weights = combined(Krum(f, m), rows)
        assert sorted(weights.nonzero().flatten().tolist()) == sorted(best.tolist())
        np.testing.assert_allclose(vector, rows[best].mean(0), rtol=1e-12, atol=1e-15)


def wrong_ones(kind, honest, rng):
    """Two rows of clients that would hide which honest rows are near each other."""
    P = honest.shape[1]
    return {
        "huge": np.array([np.full(P, 3e9), np.full(P, -5e9)]),
        "overflow": np.full((2, P), 3e38),
        "zero": np.zeros((2, P)),
        "alike": honest.mean(0) + rng.normal(size=P) + np.zeros((2, 1)),
    }[kind]


@pytest.mark.parametrize("wrong", ["huge", "overflow", "zero", "alike"])
@pytest.mark.parametrize("common", [30, 1e3, 1e4])
def test_krum_in_float32_sees_differences_below_a_large_common_part(common, wrong) -> None:
    """Against the loop over float64 distances of the very same float32 rows."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        honest = common * rng.normal(size=10_000) + rng.normal(size=(7, 10_000))
        rows = np.concatenate([wrong_ones(wrong, honest, rng), honest]).astype(np.float32)
        for order in (np.arange(9), rng.permutation(9)):
            scores = krum_literally(rows[order].astype(np.float64), 2)
            _, weights = combined(Krum(2), rows[order], torch.float32)
            assert int(weights.argmax()) == int(np.argmin(scores))


def test_rows_that_lie_apart_are_multiplied_once_and_as_they_are(monkeypatch) -> None:
    """A common part that is not large changes no bit of what was weighed before."""
    u = torch.randn(6, 300, generator=keyed("apart"))
    monkeypatch.setattr("unseen.core.rows.centre", None)  # not reached
    assert DenseRows(u).weigh(Krum(1), None, {}, {}, None)[0].sum() == 1


@pytest.mark.parametrize(
    ("count", "f"), [(1, None), (2, None), (3, 0), (4, 0), (5, 1), (6, 1), (7, 2), (13, 5)]
)
def test_by_default_f_is_the_largest_that_the_clients_admit(count, f) -> None:
    rows = literal.gradients(7, count)
    found, _ = combined(Krum(), rows)
    expected = rows.mean(0) if f is None else combined(Krum(f), rows)[0]
    np.testing.assert_allclose(found, expected, atol=1e-15)


def test_ties_go_to_the_first_in_the_roster() -> None:
    rows = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    assert combined(Krum(f=0), rows)[1].tolist() == [1, 0, 0, 0]


RUBBISH = {
    "apart": lambda f, P: np.array([[(-1.0) ** k * (1 + k) * 1e30] * P for k in range(f)]),
    "together": lambda f, P: np.full((f, P), -1e30),
    "largest": lambda f, P: np.full((f, P), float(np.finfo(np.float32).max)),
    "noise": lambda f, P: 1e6 * literal.gradients(99, f, size=P),
}


@pytest.mark.parametrize("f", [1, 2, 5])
@pytest.mark.parametrize("rubbish", RUBBISH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_f_wrong_clients_of_2f_plus_3_are_outvoted(rubbish, f, dtype) -> None:
    """The result stays among the honest updates, whatever the wrong ones send."""
    honest = literal.gradients(3, f + 3, size=50)
    rows = np.concatenate([honest, RUBBISH[rubbish](f, 50)])
    order = np.random.default_rng(f).permutation(len(rows))
    low, high = honest.min(0) - 1e-6, honest.max(0) + 1e-6
    for rule in (Krum(f), Krum(f, m=3), Median(), TrimmedMean(f / (2 * f + 3) + 1e-9)):
        found, weights = combined(rule, rows[order], dtype)
        assert (low <= found).all() and (found <= high).all()
        if weights is not None:
            assert float(weights[order >= f + 3].sum()) == 0
    poisoned = Mean("uniform")(torch.tensor(rows[order], dtype=dtype), {}, {})[0]
    assert not bool((poisoned.abs() < 100).all())


def test_krum_refuses_too_few_clients_before_the_first_round_and_at_the_call() -> None:
    with pytest.raises(UnseenError, match=r"Krum\(f=2\) needs at least 2f \+ 3 = 7.*found 5"):
        Krum(2).init(5, 10)
    rule = Krum(1)
    with pytest.raises(UnseenError, match=r"2f \+ 3 = 5 clients; found 4"):
        rule(torch.randn(4, 10), {}, rule.init(5, 10))
    clients = federation(4)
    model = Model(build("mlp", (6,), 3, keyed("net")))
    with pytest.raises(UnseenError, match="found 4"):
        start(method("krum(f=1)"), model, sorted(clients), 0)


@pytest.mark.parametrize("expression", ["median", "krum", "trimmed-mean(trim=0.4)"])
def test_wrong_buffers_are_outvoted_too(expression) -> None:
    """A wrong client also sends BatchNorm statistics."""

    class Wrong(InProcess):
        def map(self, exchange, inbox, clients, turn):
            replies = super().map(exchange, inbox, clients, turn)
            for row in replies[0].rows.values():
                row.fill_(1e15)
            return replies

    clients = images(5)
    model = Model(build("bn-cnn", (1, 8, 8), 3, keyed("net")))
    for name in (expression, f"fedavg+{expression}"):
        chosen, names = method(name, Training()), sorted(clients)
        backend = Wrong(model, clients)
        state, _ = play(chosen, start(chosen, model, names, 0), backend, names, 2)
        assert all(float(value.abs().max()) < 100 for value in state.inbox.values())


def test_options_are_checked() -> None:
    for rule, options in ((TrimmedMean, {"trim": 0.5}), (TrimmedMean, {"trim": -0.1})):
        with pytest.raises(UnseenError, match="trim"):
            rule(**options)
    for options in ({"f": -1}, {"f": 1.5}, {"m": 0}):
        with pytest.raises(UnseenError, match=r"Krum\([fm]\)"):
            Krum(**options)


@pytest.mark.parametrize("weights", ["uniform", "examples"])
@pytest.mark.parametrize("name", ["trimmed-mean", "median", "krum", "fedavg+median"])
def test_a_studys_weights_do_not_let_wrong_clients_into_the_statistics(name: str, weights):
    """BatchNorm's statistics follow a rule without a prior, whatever the study's weights."""
    slots = trained(method(name, Training(weights=weights))).slots
    assert slots == trained(method(name)).slots
    assert slots["buffers"].like == "model" or slots["buffers"].combine == slots["model"].combine


@pytest.mark.parametrize(
    "expression",
    ["scaffold+median", "fedcurv+krum", "fedavg+median+shift", "scaffold+krum"],
)
def test_no_plain_mean_stands_beside_a_rule_that_outvotes(expression: str) -> None:
    """One wrong client of five would move scaffold+median by a thousand times its honest length."""
    with pytest.raises(Incompatible, match="would get in again by"):
        method(expression)


def test_a_client_that_is_refused_for_its_length_gives_no_statistics() -> None:
    slots = trained(method("fedavg+bounded(longer='refuse')")).slots
    assert slots["buffers"].like == "model"


def test_a_method_of_ones_own_whose_exchanges_have_other_names_is_composed(monkeypatch) -> None:
    def own(training: Training):
        whole = method("fedavg", training)
        return replace(whole, exchanges=tuple(replace(e, name="mine") for e in whole.exchanges))

    monkeypatch.setitem(METHODS, "own", own)
    assert [exchange.name for exchange in method("own").exchanges] == ["mine"]
