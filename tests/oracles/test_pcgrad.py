"""PCGrad against its loop run literally and against an example worked by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from support import literal
from support.playing import close, play

from unseen.errors import UnseenError
from unseen.methods.combine import Mean, PCGrad


@pytest.mark.parametrize("order", ["fixed", "random"])
@pytest.mark.parametrize("count", [2, 3, 5, 13, 26])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_loop_run_literally(count, order, scale) -> None:
    for seed in range(4):
        rows = literal.gradients(seed, count, scale=scale)
        orders = literal.fixed(count)
        if order == "random":
            orders = literal.drawn(count, literal.seeded(seed))
        vector, weights = play(PCGrad(order=order), rows, literal.seeded(seed))
        hats = literal.pcgrad(rows, orders)
        close(vector, hats)
        close(weights @ rows, hats)


@pytest.mark.parametrize("count", [2, 3, 5, 13])
def test_rows_of_very_different_lengths(count) -> None:
    """Lengths from 1e-3 to 1e3: a projection never lengthens a gradient, nor may rounding."""
    for seed in range(4):
        rows = literal.gradients(seed, count, scale=None)
        trace: list[literal.Meeting] = []
        hats = literal.pcgrad(rows, literal.drawn(count, literal.seeded(seed)), trace)
        for m in trace:
            assert np.linalg.norm(m.after) <= np.linalg.norm(m.before) * (1 + 1e-12)
        close(play(PCGrad(), rows, literal.seeded(seed))[0], hats)


def test_two_clients_by_hand() -> None:
    """hat1 = (1, 0) + (-1, 1) / 2 = (1/2, 1/2); hat2 = (-1, 1) + (1, 0) = (0, 1)."""
    vector, weights = play(PCGrad(order="fixed"), np.array([[1.0, 0.0], [-1.0, 1.0]]))
    assert vector.tolist() == [0.25, 0.75]
    assert weights.tolist() == [1.0, 0.75]


THREE = np.array([[1.0, 0.0], [-1.0, 1.0], [0.0, -1.0]])


def test_three_clients_by_hand() -> None:
    """Fixed order.

    hat1: (1, 0) meets (-1, 1): (1/2, 1/2); meets (0, -1): (1/2, 0).
    hat2: (-1, 1) meets (1, 0): (0, 1); meets (0, -1): (0, 0).
    hat3: (0, -1) meets (1, 0): no conflict; meets (-1, 1): (-1/2, -1/2).
    """
    vector, weights = play(PCGrad(order="fixed"), THREE)
    np.testing.assert_allclose(vector, [0.0, -1 / 6], atol=1e-15)
    np.testing.assert_allclose(weights, [2 / 3, 2 / 3, 5 / 6], atol=1e-15)


def test_every_order_of_three_clients_by_hand() -> None:
    """hat1 is (1/2, 0) or (1/2, 1/2), hat3 (-1/2, -1/2) or (0, -1/2), hat2 always zero."""
    outcomes = {
        (round((0.5 + x) / 3, 12), round((y - 0.5) / 3, 12)) for x in (-0.5, 0) for y in (0, 0.5)
    }
    found = {
        tuple((play(PCGrad(), THREE, literal.seeded(s))[0] + 0.0).round(12)) for s in range(40)
    }
    assert found == outcomes


def test_the_inner_products_decide_everything() -> None:
    rows = literal.gradients(11, 5)
    rule, table = PCGrad(), {"examples": torch.ones(5, dtype=torch.float64)}
    gram = torch.tensor(rows @ rows.T)
    weights, _ = rule.weights(gram, table, rule.init(5, 40), literal.seeded(4))
    close(weights.numpy() @ rows, literal.pcgrad(rows, literal.drawn(5, literal.seeded(4))))


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_a_vanished_gradient_divides_by_nothing(zero) -> None:
    """PPDG's objection to PCGrad, 0 / 0, does not arise: 0 < 0 is false."""
    rows = THREE.copy()
    rows[zero] = 0
    for order in (literal.fixed(3), literal.drawn(3, literal.seeded(0))):
        assert np.isfinite(literal.pcgrad(rows, order)).all()
    vector, weights = play(PCGrad(order="fixed"), rows)
    assert np.isfinite(weights).all()
    np.testing.assert_allclose(
        vector, literal.average(literal.pcgrad(rows, literal.fixed(3))), atol=1e-15
    )
    assert not play(PCGrad(), np.zeros((3, 4)))[0].any()


def test_tiny_gradients_are_projected_too() -> None:
    """No epsilon in the denominator: scaling the rows scales the result."""
    for factor in (1e-60, 1e60):
        vector, _ = play(PCGrad(order="fixed"), THREE[:2] * factor)
        np.testing.assert_allclose(vector / factor, [0.25, 0.75], rtol=1e-12)


def test_without_conflict_it_is_the_mean() -> None:
    rows = np.abs(literal.gradients(1, 5))
    np.testing.assert_allclose(play(PCGrad(), rows)[0], rows.mean(0), rtol=0, atol=1e-14)


def test_eq_1_weights_the_projected_gradients() -> None:
    rows, examples = literal.gradients(7, 5), np.array([10.0, 400.0, 35.0, 5.0, 50.0])
    hats = literal.pcgrad(rows, literal.drawn(5, literal.seeded(1)))
    rule = PCGrad(prior=Mean("examples"))
    close(play(rule, rows, literal.seeded(1), examples)[0], hats, literal.shares(examples))


def test_float32_rows_of_many_columns() -> None:
    shared = literal.gradients(10, 1, size=20_011)[0]
    signs = np.array([[0.5], [-0.6], [0.7], [-0.4], [0.5]])
    rows = (literal.gradients(9, 5, size=20_011) + signs * shared).astype(np.float32)
    trace: list[literal.Meeting] = []
    orders = literal.drawn(5, literal.seeded(2))
    hats = literal.pcgrad(rows.astype(np.float64), orders, trace)
    assert min(abs(m.cosine) for m in trace) > 1e-4
    vector, _ = play(PCGrad(), rows, literal.seeded(2), dtype=torch.float32)
    close(vector, hats, tolerance=2e-6)


def test_draws() -> None:
    """Random: a permutation and one per client; fixed: nothing; no generator: seed 0."""
    rows = literal.gradients(1, 5)
    ours, theirs = literal.seeded(3), literal.seeded(3)
    play(PCGrad(), rows, theirs)
    literal.drawn(5, ours)
    assert torch.equal(ours.get_state(), theirs.get_state())
    still = literal.seeded(3)
    play(PCGrad(order="fixed"), rows, still)
    assert torch.equal(still.get_state(), literal.seeded(3).get_state())
    unseeded, zero = play(PCGrad(), rows)[0], play(PCGrad(), rows, literal.seeded(0))[0]
    assert np.array_equal(unseeded, zero)


def test_the_hats_of_two_orders_differ() -> None:
    """Otherwise a literal run could not tell one order from another."""
    rows = literal.gradients(1, 5)
    runs = [literal.pcgrad(rows, literal.drawn(5, literal.seeded(s))) for s in range(4)]
    for one, two in itertools.combinations(runs, 2):
        assert np.linalg.norm(literal.average(one) - literal.average(two)) > 1e-6


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(UnseenError, match="fixed"):
        PCGrad(order="fxed")
