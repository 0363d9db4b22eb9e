"""PPDG against its Algorithm 1 run literally, and against the closed forms of its proof."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support import literal
from support.playing import close, play

from unseen.errors import UnseenError
from unseen.methods.combine import PPDG, Mean

READINGS = list(itertools.product(literal.BASES, literal.OTHERS, literal.WHENS))
SCALES = [1e-3, 1.0, 1e3, None]


@pytest.mark.parametrize("order", ["fixed", "random"])
@pytest.mark.parametrize(("base", "others", "when"), READINGS)
def test_algorithm_1_run_literally(base, others, when, order) -> None:
    for (count, scale), seed in itertools.product(
        itertools.product([2, 3, 5, 13, 26], SCALES), range(2)
    ):
        rows = literal.gradients(seed, count, scale=scale)
        lam = float(np.random.default_rng((seed, count)).uniform(0.001, 0.45))
        orders = literal.fixed(count)
        if order == "random":
            orders = literal.drawn(count, literal.seeded(seed))
        rule = PPDG(lam=lam, base=base, others=others, when=when, order=order)
        vector, weights = play(rule, rows, literal.seeded(seed))
        hats = literal.ppdg(rows, lam, orders, base, others, when)
        close(vector, hats)
        close(weights @ rows, hats)
        assert weights.dtype == np.float64


@pytest.mark.parametrize("lam", [0.001, 0.45])
@pytest.mark.parametrize(("base", "others", "when"), READINGS)
def test_the_inner_products_decide_everything(base, others, when, lam) -> None:
    """The rule on the Gram matrix alone gives the weights it gives on the rows."""
    rows = literal.gradients(11, 5)
    rule = PPDG(lam=lam, base=base, others=others, when=when)
    table = {"examples": torch.ones(5, dtype=torch.float64)}
    gram = torch.tensor(rows @ rows.T)
    weights, _ = rule.weights(gram, table, rule.init(5, 40), literal.seeded(4))
    hats = literal.ppdg(rows, lam, literal.drawn(5, literal.seeded(4)), base, others, when)
    close(weights.numpy() @ rows, hats)


@given(
    arrays(np.float64, st.tuples(st.integers(2, 4), st.just(3)), elements=st.integers(-3, 3)),
    st.sampled_from(READINGS),
)
@settings(derandomize=True, max_examples=200)
def test_orthogonal_gradients_do_not_conflict(rows, reading) -> None:
    """Small integers and lambda = 1/4 leave no rounding, so exact zeros of the test are met."""
    base, others, when = reading
    rule = PPDG(lam=0.25, base=base, others=others, when=when, order="fixed")
    hats = literal.ppdg(rows, 0.25, literal.fixed(len(rows)), base, others, when)
    vector, _ = play(rule, rows)
    np.testing.assert_allclose(vector, literal.average(hats), rtol=0, atol=1e-12)


# The proof's three cases for two clients, the first one modified first (section 3.3).
CASES = [
    # no conflict; touching the boundary from outside
    (0.1, [1.0, 0.0], [1.0, 3.0], 1),
    (0.1, [1.0, 0.0], [0.0, 1.0], 1),
    # <g1, g2> = -1 and <hat1, g2> = -(1 - 2 lam) + 2 lam |g2|^2
    (0.1, [1.0, 0.0], [-1.0, 2.0], 2),
    (0.2, [1.0, 0.0], [-1.0, 1.0], 2),
    (0.45, [1.0, 0.0], [-1.0, 1.0], 2),
    (0.25, [1.0, 2.0], [-1.0, 0.0], 2),  # <hat1, g2> = 0: not smaller than zero
    (0.1, [1.0, 0.0], [-1.0, 1.0], 3),
    (0.001, [1.0, 0.0], [-1.0, 2.0], 3),
    (0.3, [3.0, 0.0], [-1.0, 0.5], 3),
]


@pytest.mark.parametrize("base", literal.BASES)
@pytest.mark.parametrize(("lam", "g1", "g2", "case"), CASES)
def test_closed_forms_for_two_clients(lam, g1, g2, case, base) -> None:
    """Eqs. 6 and 7 (case 2), Eqs. 9 and 10 (case 3); every base reads them alike."""
    g1, g2 = np.array(g1), np.array(g2)
    hat1 = (1 - 2 * lam) * g1 + 2 * lam * g2
    assert case == (1 if g1 @ g2 >= 0 else 2 if hat1 @ g2 >= -1e-15 else 3)
    update, share = {
        1: ((g1 + g2) / 2, (0.5, 0.5)),
        2: (
            ((1 - 2 * lam) * g1 + (1 + 2 * lam) * g2) / 2,
            (0.5 - lam, 0.5 + lam),
        ),
        3: (
            (hat1 + 2 * lam * hat1 + (1 - 2 * lam) * g2) / 2,
            (0.5 - 2 * lam**2, 0.5 + 2 * lam**2),
        ),
    }[case]
    vector, weights = play(PPDG(lam=lam, base=base, order="fixed"), np.stack([g1, g2]))
    np.testing.assert_allclose(vector, update, rtol=0, atol=1e-14)
    np.testing.assert_allclose(weights, share, rtol=0, atol=1e-14)


def test_the_cases_in_numbers() -> None:
    """The same by hand: lambda = 0.1, g1 = (1, 0)."""
    rule = PPDG(lam=0.1, order="fixed")
    second, _ = play(rule, np.array([[1.0, 0.0], [-1.0, 2.0]]))
    np.testing.assert_allclose(second, [-0.2, 1.2], atol=1e-15)
    third, _ = play(rule, np.array([[1.0, 0.0], [-1.0, 1.0]]))
    np.testing.assert_allclose(third, [-0.04, 0.52], atol=1e-15)


def test_defaults_are_line_6_as_printed() -> None:
    rows = literal.gradients(5, 5)
    hats = literal.ppdg(rows, 0.1, literal.drawn(5, literal.seeded(8)))
    close(play(PPDG(), rows, literal.seeded(8))[0], hats)


def test_raw_others_cancel_for_two_clients() -> None:
    """hat1 + hat2 = g1 + g2 when each meets the other's raw gradient: Eq. 10 cannot mean that."""
    rows = np.array([[1.0, 0.0], [-1.0, 1.0]])
    for base, when in itertools.product(literal.BASES, literal.WHENS):
        rule = PPDG(lam=0.2, base=base, others="raw", when=when, order="fixed")
        np.testing.assert_allclose(play(rule, rows)[0], [0.0, 0.5], atol=1e-15)


def test_always_aligns_without_a_conflict() -> None:
    """The paper's ablation: Eqs. 9 and 10 whatever the sign of the inner product."""
    rows = np.array([[1.0, 0.0], [1.0, 3.0]])
    vector, weights = play(PPDG(lam=0.1, when="always", order="fixed"), rows)
    np.testing.assert_allclose(weights, [0.48, 0.52], atol=1e-15)
    np.testing.assert_allclose(vector, [1.0, 1.56], atol=1e-15)


def test_the_readings_differ_for_five_clients() -> None:
    """Otherwise the literal comparison could not tell them apart."""
    rows, orders = literal.gradients(2, 5), literal.fixed(5)
    vectors = [literal.average(literal.ppdg(rows, 0.2, orders, *r)) for r in READINGS]
    for one, two in itertools.combinations(vectors, 2):
        assert np.linalg.norm(one - two) > 1e-2 * np.linalg.norm(one)


@pytest.mark.parametrize("others", literal.OTHERS)
@pytest.mark.parametrize("when", literal.WHENS)
def test_the_running_form_closes_in_by_one_minus_two_lambda(when, others) -> None:
    """One gradient step on Eq. 4: each modification shrinks |hat_i - o_j| by 1 - 2 lambda."""
    for count, seed in itertools.product([2, 3, 5, 13], range(3)):
        rows = literal.gradients(seed, count)
        lam = [0.01, 0.1, 0.4][seed]
        trace: list[literal.Meeting] = []
        orders = literal.drawn(count, literal.seeded(seed))
        hats = literal.ppdg(rows, lam, orders, "running", others, when, trace)
        changed = [m for m in trace if m.modified]
        assert changed
        for m in changed:
            before, after = np.linalg.norm(m.before - m.other), np.linalg.norm(m.after - m.other)
            assert after == pytest.approx((1 - 2 * lam) * before, rel=1e-12)
        rule = PPDG(lam=lam, base="running", others=others, when=when)
        close(play(rule, rows, literal.seeded(seed))[0], hats)


def test_the_printed_form_does_not_close_in() -> None:
    """Line 6 as printed starts again from g_i, so every step after the first falls short."""
    rows, lam = literal.gradients(0, 5), 0.2
    trace: list[literal.Meeting] = []
    hats = literal.ppdg(rows, lam, literal.fixed(5), "raw", "modified", "always", trace)
    for i in range(5):
        shrunk = [
            np.linalg.norm(m.after - m.other) / np.linalg.norm(m.before - m.other)
            for m in trace
            if m.i == i
        ]
        assert shrunk[0] == pytest.approx(1 - 2 * lam, rel=1e-12)
        assert min(shrunk[1:]) > 1 - 2 * lam + 0.02
    rule = PPDG(lam=lam, base="raw", when="always", order="fixed")
    close(play(rule, rows)[0], hats)


def test_eq_8_fails_on_two_quadratics() -> None:
    """The last step of Eq. 8 is false in every conflict.

    For quadratics of curvature 1/2 each, L = F1 + F2 has Lipschitz constant 1 and the expansion
    of Eq. 8 is exact at t = 1. Case 2 then changes the loss by
    t (2 lambda^2 |g1 - g2|^2 - |g1 + g2|^2 / 2), above the printed bound
    t (2 lambda^2 - 1/2) |g1 - g2|^2 by -2 t <g1, g2> > 0.
    """
    rng, found = np.random.default_rng(0), 0
    for _ in range(400):
        g, lam = rng.standard_normal((2, 3)), rng.uniform(0.01, 0.45)
        hat1 = (1 - 2 * lam) * g[0] + 2 * lam * g[1]
        if not (g[0] @ g[1] < 0 < hat1 @ g[1]):
            continue
        found += 1
        centres = -2 * g  # where F_k = |w - centre_k|^2 / 4 has gradient g_k at w = 0
        vector, _ = play(PPDG(lam=lam, order="fixed"), g)
        step = -2 * vector  # w* - w = -(eta / 2) [...] with t = eta / 2 = 1
        before = sum(centre @ centre / 4 for centre in centres)
        after = sum((step - centre) @ (step - centre) / 4 for centre in centres)
        apart, together = g[0] - g[1], g[0] + g[1]
        true = 2 * lam**2 * apart @ apart - together @ together / 2
        printed = (2 * lam**2 - 0.5) * apart @ apart
        assert after - before == pytest.approx(true, abs=1e-12)
        assert after - before == pytest.approx(printed - 2 * g[0] @ g[1], abs=1e-12)
        assert after - before > printed
    assert found > 50


def test_ppdg_walks_away_from_the_pooled_optimum() -> None:
    """F1 = (w - 1)^2 / 2, F2 = (w + 1)^2 / 2: the mean stays at 0, PPDG goes to -4 lambda^2.

    At w = 0 with lambda = 0.2: hat1 = -0.6 + 0.4 = -0.2, hat2 = 0.4 (-0.2) + 0.6 = 0.52, and
    their mean is 0.16. Eq. 11 promises a loss that falls by (1/2 - 8 lambda^4) t 4.
    """
    rule, w = PPDG(lam=0.2, order="fixed"), 0.0
    rows = np.array([[-1.0], [1.0]])
    assert play(Mean("uniform"), rows)[0].tolist() == [0.0]
    assert play(rule, rows)[0] == pytest.approx([0.16], abs=1e-15)
    for _ in range(60):
        w -= 0.5 * play(rule, np.array([[w - 1], [w + 1]]))[0].item()
    assert w == pytest.approx(-0.16, abs=1e-12)
    assert (w - 1) ** 2 / 2 + (w + 1) ** 2 / 2 > 1.0


def test_eq_1_weights_the_modified_gradients() -> None:
    rows, examples = literal.gradients(7, 5), np.array([10.0, 400.0, 35.0, 5.0, 50.0])
    hats = literal.ppdg(rows, 0.2, literal.drawn(5, literal.seeded(1)))
    rule = PPDG(lam=0.2, prior=Mean("examples"))
    vector, weights = play(rule, rows, literal.seeded(1), examples)
    close(vector, hats, literal.shares(examples))
    close(weights @ rows, hats, literal.shares(examples))


@pytest.mark.parametrize(("base", "others", "when"), READINGS)
def test_float32_rows_of_many_columns(base, others, when) -> None:
    rows = literal.gradients(9, 5, size=20_011)
    # Shared parts of both signs keep every inner product clear of zero.
    shared = literal.gradients(10, 1, size=20_011)[0]
    rows = (rows + np.array([[0.5], [-0.6], [0.7], [-0.4], [0.5]]) * shared).astype(np.float32)
    trace: list[literal.Meeting] = []
    exact = rows.astype(np.float64)
    orders = literal.drawn(5, literal.seeded(2))
    hats = literal.ppdg(exact, 0.1, orders, base, others, when, trace)
    assert min(abs(m.cosine) for m in trace) > 1e-4
    rule = PPDG(lam=0.1, base=base, others=others, when=when)
    vector, _ = play(rule, rows, literal.seeded(2), dtype=torch.float32)
    close(vector, hats, tolerance=2e-6)


@pytest.mark.parametrize(("cosine", "share"), [(1e-6, [0.5, 0.5]), (-1e-6, [0.4, 0.6])])
def test_the_sign_survives_cancelling_means(cosine, share) -> None:
    """Two float32 rows with means that cancel over 400,000 columns, all but orthogonal."""
    size = 400_000
    u, v = literal.gradients(0, 2, size=size)
    u += 1
    v += np.where(np.arange(size) < size // 2, 1.0, -1.0)
    v -= (u @ v) / (u @ u) * u
    v += cosine * np.linalg.norm(v) / np.linalg.norm(u) * u
    rows = np.stack([u, v]).astype(np.float32)
    exact = rows.astype(np.float64)
    found = exact[0] @ exact[1] / np.linalg.norm(exact[0]) / np.linalg.norm(exact[1])
    assert found == pytest.approx(cosine, rel=0.01)
    _, weights = play(PPDG(lam=0.1, order="fixed"), rows, dtype=torch.float32)
    np.testing.assert_allclose(weights, share, rtol=0, atol=1e-6)


def test_random_order_draws_one_permutation_and_one_per_client() -> None:
    rows = literal.gradients(1, 5)
    ours, theirs = literal.seeded(3), literal.seeded(3)
    play(PPDG(), rows, theirs)
    literal.drawn(5, ours)
    assert torch.equal(ours.get_state(), theirs.get_state())


def test_a_fixed_order_draws_nothing() -> None:
    generator = literal.seeded(3)
    play(PPDG(order="fixed"), literal.gradients(1, 5), generator)
    assert torch.equal(generator.get_state(), literal.seeded(3).get_state())


def test_no_generator_is_seed_zero() -> None:
    rows = literal.gradients(1, 13)
    torch.rand(3)  # the global stream must not matter
    vector, weights = play(PPDG(lam=0.3), rows)
    again, same = play(PPDG(lam=0.3), rows, literal.seeded(0))
    assert np.array_equal(vector, again) and np.array_equal(weights, same)
    close(vector, literal.ppdg(rows, 0.3, literal.drawn(13, literal.seeded(0))))


def test_the_order_matters() -> None:
    rows = literal.gradients(1, 5)
    found = {tuple(play(PPDG(lam=0.2), rows, literal.seeded(s))[0].round(9)) for s in range(8)}
    assert len(found) > 4


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.7, 1.0, -0.1, float("nan"), float("inf")])
def test_lambda_outside_the_condition_is_refused(lam) -> None:
    with pytest.raises(UnseenError, match=r"0\.5|1/2|½"):
        PPDG(lam=lam)


@pytest.mark.parametrize("lam", [-0.1, 1.5, float("nan"), float("inf")])
def test_unbounded_still_needs_a_number_from_0_to_1(lam) -> None:
    with pytest.raises(UnseenError):
        PPDG(lam=lam, unbounded=True)


@pytest.mark.parametrize("lam", [0.0, 0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(("base", "others", "when"), READINGS)
def test_unbounded_runs_the_same_algorithm(base, others, when, lam) -> None:
    """The paper's Figure 1 uses lambda = 0.5."""
    rows = literal.gradients(6, 3)
    hats = literal.ppdg(rows, lam, literal.fixed(3), base, others, when)
    rule = PPDG(lam=lam, base=base, others=others, when=when, order="fixed", unbounded=True)
    close(play(rule, rows)[0], hats)


def test_zero_and_single_rows_are_finite() -> None:
    rows = np.vstack([np.zeros(40), literal.gradients(1, 3)])
    hats = literal.ppdg(rows, 0.2, literal.fixed(4))
    close(play(PPDG(lam=0.2, order="fixed"), rows)[0], hats)
    assert not play(PPDG(), np.zeros((3, 4)))[0].any()
    assert np.array_equal(play(PPDG(), rows[1:2])[0], rows[1])


@pytest.mark.parametrize(
    "option", [{"base": "runing"}, {"others": "hat"}, {"when": "never"}, {"order": "sorted"}]
)
def test_an_unknown_reading_is_refused(option) -> None:
    with pytest.raises(UnseenError, match=next(iter(option.values()))):
        PPDG(**option)
