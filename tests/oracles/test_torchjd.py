"""The adapter to TorchJD against its own aggregators, on matrices."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, nnls
from support import literal
from support.bounds import SOLVED_TO, gamma
from support.sites import federation

from unseen import Model, Training, UnseenError, method, start
from unseen.core.rows import GRAM_WIDTH, DenseRows
from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.methods.combine import FedOMG, GradDrop, JacobianDescent, Mean
from unseen.methods.combine.torchjd import bargain

jd = pytest.importorskip("torchjd.aggregation", reason="the extra `torchjd` is not installed")

C = 0.4
OWN = {
    "upgrad": lambda K: jd.UPGrad(),
    "mgda": lambda K: jd.MGDA(),
    "cagrad": lambda K: jd.CAGrad(c=C),
    "nash-mtl": lambda K: jd.NashMTL(n_tasks=K, max_norm=0.0),  # where its solver converges
}


def combined(rule, rows, examples=None, state=None):
    counts = np.ones(len(rows)) if examples is None else examples
    table = {"examples": torch.tensor(counts, dtype=torch.float64)}
    u = torch.tensor(rows)
    return rule(u, table, state if state is not None else rule.init(*u.shape))


def own(name, rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return OWN[name](len(rows))(torch.tensor(rows)).numpy()


@pytest.mark.parametrize("count", [2, 3, 5, 13])
@pytest.mark.parametrize("name", OWN)
def test_torchjds_own_aggregators(name, count) -> None:
    for seed in range(2 if name == "nash-mtl" else 5):
        rows = literal.gradients(seed, count, size=60)
        rows /= np.linalg.norm(rows @ rows.T) ** 0.5  # nash-mtl feels the scale
        expected = own(name, rows)
        raw, _, _ = combined(JacobianDescent(name, C, "torchjd"), rows)
        tolerance = 1e-5 * np.linalg.norm(expected)
        np.testing.assert_allclose(raw.numpy(), expected, rtol=0, atol=tolerance)
        mean, _, _ = combined(JacobianDescent(name, C), rows)
        divisor = {"cagrad": 1 + C, "nash-mtl": count}.get(name, 1)
        np.testing.assert_allclose(mean.numpy() * divisor, expected, rtol=0, atol=tolerance)


def test_a_bargain_that_no_weights_solve_is_counted_for_float32_updates() -> None:
    """Of 31 random updates of nine numbers some mean is 0, where their mean is not."""
    rows = torch.randn(31, 9, generator=torch.Generator().manual_seed(0))
    hull = np.vstack([rows.T.double().numpy(), np.ones(31)])
    assert nnls(hull, np.eye(10)[-1])[1] < 1e-9
    rule = JacobianDescent("nash-mtl")
    found, state, _ = rule(rows, {}, rule.init(31, 9))
    assert state["fallbacks"] == 1
    torch.testing.assert_close(found, rows.mean(0))


def test_a_rule_that_solves_gets_inner_products_summed_in_float64() -> None:
    rows = torch.randn(3, 20_000, generator=torch.Generator().manual_seed(0))
    exact = rows.double() @ rows.double().T
    lengths = exact.diagonal().sqrt()
    for rule, worst in ((JacobianDescent("upgrad"), torch.float64), (FedOMG(), torch.float32)):
        seen = Seen(rule.solves)
        DenseRows(rows).weigh(seen, None, {}, {}, None)
        error = (seen.gram - exact).abs() / (lengths * lengths[:, None])
        assert float(error.max()) <= 2 * gamma(GRAM_WIDTH, worst)
        assert (float(error.max()) > 1e-12) == (worst is torch.float32)


@dataclass
class Seen:
    """A rule that keeps the inner products that it was given."""

    solves: bool
    differences: bool = False
    gram: torch.Tensor | None = None

    def weights(self, gram, table, state, generator):
        self.gram = gram
        return gram[0], state


@pytest.mark.parametrize("name", OWN)
def test_tiny_updates_are_not_taken_for_zero(name) -> None:
    """TorchJD counts a matrix of norm below 0.01 as 0; updates often are that short."""
    rows = literal.gradients(0, 3)
    vector, _, _ = combined(JacobianDescent(name), rows)
    tiny, _, _ = combined(JacobianDescent(name), rows * 2.0**-20)
    torch.testing.assert_close(tiny * 2**20, vector, rtol=1e-9, atol=1e-12)


def test_the_prior_is_torchjds_preference_vector() -> None:
    """Scaling row i by K p_i is the preference vector p, where the cone is all that matters."""
    rows, p = literal.gradients(2, 3), [0.5, 0.3, 0.2]
    expected = jd.UPGrad(pref_vector=torch.tensor(p).double())(torch.tensor(rows)).numpy()
    vector, _, _ = combined(JacobianDescent("upgrad", prior=Mean("examples")), rows, p)
    error = np.linalg.norm(vector.numpy() - expected)
    # Its regularisation by 1e-4 meets rows of another scale.
    assert error <= 2e-3 * np.linalg.norm(expected)


def test_cagrad_and_fedomg_are_one_direction() -> None:
    """(1 + c^2) of FedOMG's step with eta = 1 is TorchJD's CAGrad, by another solver."""
    for seed, count in ((0, 2), (1, 3), (2, 5), (3, 13)):
        rows = literal.gradients(seed, count, size=60)
        table = {"examples": torch.ones(count, dtype=torch.float64)}
        rule = FedOMG(C)
        vector, _, _ = rule(torch.tensor(rows), table, rule.init(*rows.shape))
        expected = own("cagrad", rows)
        error = np.linalg.norm((1 + C**2) * vector.numpy() - expected)
        assert error <= 1e-4 * np.linalg.norm(expected)


def test_mgda_by_hand() -> None:
    """The point of the segment from (1, 0) to (-1, 1) nearest to 0 is (1/5, 2/5)."""
    vector, _, weights = combined(JacobianDescent("mgda"), np.array([[1.0, 0.0], [-1.0, 1.0]]))
    torch.testing.assert_close(vector, torch.tensor([0.2, 0.4], dtype=torch.float64))
    torch.testing.assert_close(weights, torch.tensor([0.6, 0.4], dtype=torch.float64))


@pytest.mark.parametrize("seed", range(40))
def test_nash_solves_its_equation_where_the_sum_conflicts_too(seed) -> None:
    """G a = 1/a, to the rounding of G a: at the solution Σ_j |G_ij| a_j is as large as it gets."""
    rows = literal.gradients(seed, 2 + seed % 6, size=[3, 8, 60][seed % 3])
    rows *= np.exp(np.random.default_rng(seed).normal(size=(len(rows), 1)))  # unequal lengths
    G = rows @ rows.T
    found = bargain(torch.tensor(G))
    if found is None:  # then 0 lies in the updates' hull
        hull = np.vstack([rows.T / np.linalg.norm(rows), np.ones(len(rows))])
        assert nnls(hull, np.eye(len(hull))[-1])[1] < 1e-9
        return
    a = found.numpy()
    bound = 100 * np.finfo(float).eps * np.linalg.cond(G / np.sqrt(np.outer(*2 * [G.diagonal()])))
    np.testing.assert_allclose(G @ a * a, np.ones(len(a)), rtol=0, atol=max(bound, 1e-13))
    assert (a > 0).all()


def test_nash_where_torchjd_returns_the_plain_mean() -> None:
    """Three updates whose sum conflicts with two of them: the weights of a general minimiser."""
    rows = np.array([[-1.0, -2.0, 0.0], [3.0, 1.0, -2.0], [1.0, 0.0, -1.0]])
    G = rows @ rows.T
    assert (G.sum(1) < 0).any()
    found = minimize(
        lambda z: 0.5 * np.exp(z) @ G @ np.exp(z) - z.sum(),
        np.zeros(3),
        jac=lambda z: np.exp(z) * (G @ np.exp(z)) - 1,
        method="BFGS",
        options={"gtol": 1e-10},
    )
    np.testing.assert_allclose(bargain(torch.tensor(G)).numpy(), np.exp(found.x), rtol=1e-7)
    _, _, weights = combined(JacobianDescent("nash-mtl"), rows)
    shares = weights.numpy() / weights.numpy().sum()
    np.testing.assert_allclose(shares, np.exp(found.x) / np.exp(found.x).sum(), rtol=1e-7)
    assert np.abs(shares - 1 / 3).max() > 0.1


def test_updates_that_cancel_leave_no_bargain_and_the_prior_stands_in() -> None:
    rows = np.array([[1.0, 0.0], [-0.5, 1.0], [-0.5, -1.0]])
    assert bargain(torch.tensor(rows @ rows.T)) is None
    rule = JacobianDescent("nash-mtl")
    state = rule.init(*rows.shape)
    for calls in (1, 2):
        vector, state, weights = combined(rule, rows, state=state)
        torch.testing.assert_close(weights, torch.full((3,), 1 / 3).double())
        torch.testing.assert_close(vector, torch.zeros(2).double(), rtol=0, atol=1e-15)
        assert state["fallbacks"] == calls


def test_an_update_of_zero_takes_no_part_in_the_bargain() -> None:
    rows = literal.gradients(3, 4)
    rows[2] = 0
    found = bargain(torch.tensor(rows @ rows.T))
    rest = np.delete(rows, 2, axis=0)
    expected = bargain(torch.tensor(rest @ rest.T))
    assert float(found[2]) == 0
    torch.testing.assert_close(found[[0, 1, 3]], expected, rtol=1e-12, atol=0)


def test_nash_on_raw_rows_is_the_same_direction() -> None:
    rows = literal.gradients(6, 3)
    vector, _, _ = combined(JacobianDescent("nash-mtl"), rows)
    expected = own("nash-mtl", rows)
    cosine = vector.numpy() @ expected / np.linalg.norm(vector) / np.linalg.norm(expected)
    assert cosine == pytest.approx(1, abs=1e-6)


def test_nash_keeps_no_state_between_calls() -> None:
    rule = JacobianDescent("nash-mtl")
    first, second = literal.gradients(0, 3), literal.gradients(1, 3)
    _, state, _ = combined(rule, first)
    after, _, _ = combined(rule, second, state=state)
    fresh, _, _ = combined(rule, second)
    assert torch.equal(after, fresh)
    assert dict(state) == {"prior": {}, "fallbacks": 0}


@pytest.mark.parametrize("name", OWN)
def test_clients_of_weight_zero_and_zero_updates(name) -> None:
    rows = literal.gradients(5, 4)
    rule = JacobianDescent(name, prior=Mean("examples"))
    vector, _, weights = combined(rule, rows, [1.0, 0.0, 1.0, 1.0])
    assert float(weights[1]) == 0
    expected, _, _ = combined(JacobianDescent(name), np.delete(rows, 1, axis=0))
    solved = SOLVED_TO.get(name, 0.0) * float(np.abs(rows).sum(0).max())
    torch.testing.assert_close(vector, expected, rtol=1e-9, atol=1e-12 + solved)
    _, _, alone = combined(rule, rows, [0.0, 0.0, 5.0, 0.0])
    torch.testing.assert_close(alone, torch.tensor([0.0, 0.0, 1.0, 0.0]).double())
    _, _, flat = combined(rule, 0 * rows, [1.0, 1.0, 1.0, 1.0])
    assert flat.tolist() == [0.25] * 4


def test_a_missing_library_is_named_before_the_first_round(monkeypatch) -> None:
    for module in ("torchjd.aggregation", "cvxpy"):
        monkeypatch.setitem(sys.modules, module, None)
        model = Model(build("mlp", (6,), 3, keyed("net")))
        package = module.partition(".")[0]
        with pytest.raises(UnseenError, match=rf"needs {package}, .*unseen\[torchjd\]"):
            start(method("mgda", Training()), model, sorted(federation()), 0)


@pytest.mark.parametrize("seed", range(5))
def test_graddrop_is_torchjds_with_the_same_draws(seed, monkeypatch) -> None:
    rows = torch.tensor(literal.gradients(seed, 4, size=60))
    rule = GradDrop("sum")
    vector, _, _ = rule(rows, {}, rule.init(4, 60), keyed(f"drop/{seed}"))
    draws = torch.rand(60, generator=keyed(f"drop/{seed}")).double()
    monkeypatch.setattr(torch, "rand", lambda *_, **__: draws)
    torch.testing.assert_close(vector, jd.GradDrop()(rows))


def test_an_unknown_weighting_is_refused() -> None:
    with pytest.raises(UnseenError, match="did you mean 'upgrad'"):
        JacobianDescent("upgrd")
