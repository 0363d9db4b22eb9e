"""The adapter to TorchJD against its own aggregators, on matrices."""

from __future__ import annotations

import sys
import warnings

import literal
import numpy as np
import pytest
import torch
from bounds import SOLVED_TO
from sites import federation

from unseen import Model, Training, UnseenError, method, start
from unseen.combine import FedOMG, JacobianDescent, Mean
from unseen.exchange import keyed
from unseen.models import build

jd = pytest.importorskip("torchjd.aggregation", reason="the extra `torchjd` is not installed")

C = 0.4
OWN = {
    "upgrad": lambda K: jd.UPGrad(),
    "mgda": lambda K: jd.MGDA(),
    "cagrad": lambda K: jd.CAGrad(c=C),
    "nash-mtl": lambda K: jd.NashMTL(n_tasks=K, max_norm=0.0),
    "dualproj": lambda K: jd.DualProj(),
    "imtl-g": lambda K: jd.IMTLG(),
    "aligned-mtl": lambda K: jd.AlignedMTL(),
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
        rows /= np.linalg.norm(rows @ rows.T) ** 0.5  # nash-mtl alone feels the scale
        expected = own(name, rows)
        raw, _, _ = combined(JacobianDescent(name, C, "torchjd"), rows)
        tolerance = 1e-5 * np.linalg.norm(expected)
        np.testing.assert_allclose(raw.numpy(), expected, rtol=0, atol=tolerance)
        mean, _, _ = combined(JacobianDescent(name, C), rows)
        divisor = {"cagrad": 1 + C, "nash-mtl": count}.get(name, 1)
        np.testing.assert_allclose(mean.numpy() * divisor, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", OWN)
def test_tiny_updates_are_not_taken_for_zero(name) -> None:
    """TorchJD counts a matrix of norm below 0.01 as 0; updates often are that short."""
    rows = literal.gradients(0, 3)
    vector, _, _ = combined(JacobianDescent(name), rows)
    tiny, _, _ = combined(JacobianDescent(name), rows * 2.0**-20)
    torch.testing.assert_close(tiny * 2**20, vector, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["upgrad", "dualproj", "aligned-mtl"])
def test_the_prior_is_torchjds_preference_vector(name) -> None:
    """Scaling row i by K p_i is the preference vector p, where TorchJD has one and the cone or
    the mean is all that matters."""
    rows, p = literal.gradients(2, 3), [0.5, 0.3, 0.2]
    if name == "aligned-mtl":  # balances the scaled rows, so their own preferences are uniform
        expected = own(name, rows * (3 * np.array(p))[:, None])
        tolerance = 1e-9
    else:
        kind = {"upgrad": jd.UPGrad, "dualproj": jd.DualProj}[name]
        expected = kind(pref_vector=torch.tensor(p).double())(torch.tensor(rows)).numpy()
        tolerance = 2e-3  # its regularisation by 1e-4 meets rows of another scale
    vector, _, _ = combined(JacobianDescent(name, prior=Mean("examples")), rows, p)
    error = np.linalg.norm(vector.numpy() - expected)
    assert error <= tolerance * np.linalg.norm(expected)


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


def test_nash_solves_its_equation() -> None:
    """G a = 1/a for G of Frobenius norm 1."""
    rows = literal.gradients(4, 4)
    _, _, weights = combined(JacobianDescent("nash-mtl", scale="torchjd"), rows)
    G = rows @ rows.T
    a = weights.numpy()
    np.testing.assert_allclose(G / np.linalg.norm(G) @ a * a, np.ones(4), rtol=0, atol=1e-3)


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
    assert dict(state) == {"prior": {}}


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
    for module in ("torchjd", "cvxpy"):
        monkeypatch.setitem(sys.modules, module, None)
        model = Model(build("mlp", (6,), 3, keyed("net")))
        with pytest.raises(UnseenError, match=rf"'{module}'.*unseen\[torchjd\]"):
            start(method("mgda", Training()), model, sorted(federation()), 0)


def test_an_unknown_weighting_is_refused() -> None:
    with pytest.raises(UnseenError, match="did you mean 'upgrad'"):
        JacobianDescent("upgrd")
