"""GA against Eq. 3 by hand and run literally: variants, decay, absent clients, odd gaps."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import literal

from unseen import method
from unseen.errors import UnseenError
from unseen.methods.combine import (
    PPDG,
    AgrSum,
    GeneralizationAdjustment,
    Mean,
    WeightedGeometricMean,
)

VARIANTS = ("centred", "paper", "reference")


def table(gap, known=None, present=None, at=None, rounds=None, examples=None):
    """One round's scalars for those present; `at` is r / R."""
    count = len(gap)

    def column(values):
        return torch.tensor([float(v) for v in values], dtype=torch.float64)

    columns = {
        "examples": column([1.0] * count if examples is None else examples),
        "gap": column(gap),
        "gap_known": column([1.0] * count if known is None else known),
    }
    if present is not None:
        columns["client"] = column(present)
    if at is not None:
        columns["progress"] = column([at] * count)
    if rounds is not None:
        columns["rounds"] = column([rounds] * count)
    return columns


class Server:
    """A rule and its state: one call per round, the weights of those present as an array."""

    def __init__(self, rule, roster: int) -> None:
        self.rule, self.state = rule, rule.init(roster, 2)

    def round(self, *args, **kwargs) -> np.ndarray:
        columns = table(*args, **kwargs)
        rows = torch.ones(len(columns["gap"]), 2, dtype=torch.float64)
        _, self.state, weights = self.rule(rows, columns, self.state)
        assert weights.dtype == torch.float64
        return weights.numpy()

    def peek(self, roster: int) -> np.ndarray:
        """All clients present, no gap known: the weights as they stand."""
        return self.round([0.0] * roster, known=[0.0] * roster)


def same(found, expected, tolerance=1e-14) -> None:
    """Two weight vectors; exact fractions are welcome."""
    np.testing.assert_allclose(found, [float(e) for e in expected], rtol=0, atol=tolerance)


def test_three_rounds_by_hand() -> None:
    """Centred, d = 0.2, R = 4.

    r = 0: no gap is known, 1/3 each.
    r = 1: d^r = 0.15; G - mu = (0.1, -0.1, 0), over 0.1: (1, -1, 0).
    r = 2: d^r = 0.10; G - mu = (-0.2, 0.4, -0.2), over 0.4: (-1/2, 1, -1/2).
    r = 3: d^r = 0.05; G - mu = (-0.3, 0.1, 0.2), over 0.3: (-1, 1/3, 2/3).
    """
    server = Server(GeneralizationAdjustment(step=0.2), 3)
    same(server.round([0, 0, 0], known=[0, 0, 0], at=0.0), [Fraction(1, 3)] * 3)
    same(
        server.round([0.3, 0.1, 0.2], at=0.25),
        [Fraction(29, 60), Fraction(11, 60), Fraction(20, 60)],
    )
    same(
        server.round([0.0, 0.6, 0.0], at=0.5),
        [Fraction(26, 60), Fraction(17, 60), Fraction(17, 60)],
    )
    same(
        server.round([0.1, 0.5, 0.6], at=0.75),
        [Fraction(23, 60), Fraction(18, 60), Fraction(19, 60)],
    )


def test_a_clipped_weight_recovers() -> None:
    """Centred, d = 0.8, R = 4: client 1 is clipped to 0 in round 1 and grows again in round 2.

    r = 1: 1/3 + 0.6 (1, -1, 0) = (14/15, -4/15, 5/15), clipped and over 19/15.
    r = 2: + 0.4 (-1/2, 1, -1/2), whose sum is 1.
    r = 3: + 0.2 (1, -1/3, -2/3): (42/57, 19/57, -4/57), clipped and over 61/57.
    """
    server = Server(GeneralizationAdjustment(step=0.8), 3)
    same(server.round([0, 0, 0], known=[0, 0, 0], at=0.0), [Fraction(1, 3)] * 3)
    first = server.round([0.3, 0.1, 0.2], at=0.25)
    same(first, [Fraction(14, 19), 0, Fraction(5, 19)])
    assert first[1] == 0.0
    same(
        server.round([0.0, 0.6, 0.0], at=0.5),
        [Fraction(14, 19) - Fraction(1, 5), Fraction(2, 5), Fraction(5, 19) - Fraction(1, 5)],
    )
    same(server.round([0.5, 0.1, 0.0], at=0.75), [Fraction(42, 61), Fraction(19, 61), 0])


def test_decay_can_be_turned_off_and_needs_progress() -> None:
    """Without decay, or without r / R in the table, every round moves by d itself."""
    gap, expected = (
        [0.3, 0.1, 0.2],
        [Fraction(1, 3) + Fraction(1, 10), Fraction(1, 3) - Fraction(1, 10), Fraction(1, 3)],
    )
    still = Server(GeneralizationAdjustment(step=0.1, decay=False), 3)
    same(still.round(gap, at=0.5, rounds=4), expected)
    same(Server(GeneralizationAdjustment(step=0.1), 3).round(gap), expected)
    decayed = Server(GeneralizationAdjustment(step=0.1), 3).round(gap, at=0.5)
    same(
        decayed,
        [Fraction(1, 3) + Fraction(1, 20), Fraction(1, 3) - Fraction(1, 20), Fraction(1, 3)],
    )


def test_the_default_step_is_the_papers() -> None:
    found = Server(GeneralizationAdjustment(), 3).round([0.3, 0.1, 0.2])
    same(
        found, [Fraction(1, 3) + Fraction(1, 20), Fraction(1, 3) - Fraction(1, 20), Fraction(1, 3)]
    )


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        # G - mu = (0.3, 0.3, -0.6): over its largest magnitude, and over its largest value
        ("centred", [Fraction(23, 60), Fraction(23, 60), Fraction(14, 60)]),
        ("paper", [Fraction(13, 30), Fraction(13, 30), Fraction(4, 30)]),
        # G / max|G| = (0, 0, -1), a third of the step, and a sum of 1 - 1/30
        ("reference", [Fraction(10, 29), Fraction(10, 29), Fraction(9, 29)]),
    ],
)
def test_variants_by_hand(variant, expected) -> None:
    """G = (0, 0, -0.9), d = 0.1: without |.| the paper moves the last weight by 2 d."""
    rule = GeneralizationAdjustment(step=0.1, variant=variant, decay=False)
    same(Server(rule, 3).round([0.0, 0.0, -0.9]), expected)


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("centred", [Fraction(3, 4), Fraction(1, 4), 0]),
        ("paper", [Fraction(37, 47), Fraction(10, 47), 0]),
    ],
)
def test_only_the_paper_lets_a_weight_pass_one(variant, expected) -> None:
    """d = 0.9, (G - mu) / max = (1, 0, -1): 37/30, 10/30, clipped 0; at 1 as well or not."""
    rule = GeneralizationAdjustment(step=0.9, variant=variant, decay=False)
    same(Server(rule, 3).round([3.0, 2.0, 1.0]), expected)


@pytest.mark.parametrize(
    ("r", "decay"), [(1, Fraction(5, 4)), (2, Fraction(1)), (3, Fraction(3, 4))]
)
def test_the_released_decay_lags_by_two(r, decay) -> None:
    """The released loop's counter i starts at 0 and its gaps serve the next round, r = i + 1.

    Its step there is d (1 - (i - 1) / R) = d (1 - (r - 2) / R), so 5/4 d at r = 1 for R = 4.
    G / max|G| = (1, 1/2, -1/2) and a third of d = 0.3.
    """
    server = Server(GeneralizationAdjustment(step=0.3, variant="reference"), 3)
    found = server.round([0.4, 0.2, -0.2], at=r / 4, rounds=4)
    moved = [
        Fraction(1, 3) + Fraction(1, 10) * decay * m
        for m in (Fraction(1), Fraction(1, 2), Fraction(-1, 2))
    ]
    same(found, [m / sum(moved) for m in moved])


def test_the_released_step_in_numbers() -> None:
    """d = 0.3 at r = 2 of 4: (13, 11.5, 8.5) / 33."""
    server = Server(GeneralizationAdjustment(step=0.3, variant="reference"), 3)
    found = server.round([0.4, 0.2, -0.2], at=0.5, rounds=4)
    same(found, [Fraction(13, 33), Fraction(23, 66), Fraction(17, 66)])


def test_gaps_of_one_sign_cancel_without_centring() -> None:
    """Equal gaps move all weights alike in `reference`, and the renormalisation undoes it."""
    server = Server(GeneralizationAdjustment(step=0.3, variant="reference", decay=False), 3)
    same(server.round([0.7, 0.7, 0.7]), [Fraction(1, 3)] * 3)
    same(server.round([-0.7, -0.7, -0.7]), [Fraction(1, 3)] * 3)


@pytest.mark.parametrize("variant", ["centred", "paper"])
@pytest.mark.parametrize("gap", [0.0, 0.1, 0.7, 1 / 3, -0.3, 1e-9, 1e-300, 1e300])
@pytest.mark.parametrize("count", [2, 3, 5, 6, 7])
def test_equal_gaps_leave_the_weights(variant, gap, count) -> None:
    """Also where the mean of K equal floats is not that float, as for three times 0.1."""
    rule = GeneralizationAdjustment(step=0.1, variant=variant, decay=False)
    server = Server(rule, count)
    before = server.round(list(range(count)))
    assert before.max() > before.min()
    same(server.round([gap] * count), before, 1e-15)


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_gaps_zero_leave_the_weights(variant) -> None:
    """The released code divides 0 by 0 here and never recovers."""
    server = Server(GeneralizationAdjustment(step=0.1, variant=variant, decay=False), 4)
    before = server.round([1, 2, 3, -4])
    same(server.round([0.0] * 4), before, 1e-15)
    assert np.isfinite(server.round([1, 2, 3, -4])).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_gaps_move_the_weights_of_their_own_round(variant) -> None:
    """a^r enters theta^(r+1) in the same call, as in Algorithm 1, line 4."""
    rule = GeneralizationAdjustment(step=0.3, variant=variant, decay=False)
    rows = torch.tensor(literal.gradients(0, 3))
    gaps = [0.3, -0.1, 0.2]
    vector, _, weights = rule(rows, table(gaps), rule.init(3, 40))
    a = literal.adjust([1 / 3] * 3, gaps, 0.3, variant)
    assert max(a) - min(a) > 0.05
    same(weights, a)
    np.testing.assert_allclose(vector.numpy(), literal.average(list(rows.numpy()), a), atol=1e-13)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("decay", [True, False])
def test_eq_3_run_literally(variant, decay) -> None:
    """Everybody present, R = 8 rounds, a step large enough to clip."""
    for count in (2, 3, 5, 13, 26):
        rng = np.random.default_rng(count)
        step, rounds, a, clipped = 0.4, 8, [1 / count] * count, 0
        server = Server(GeneralizationAdjustment(step=step, variant=variant, decay=decay), count)
        for r in range(rounds):
            gap = rng.standard_normal(count)
            lag = 2 if variant == "reference" else 0
            factor = 1 - (r - lag) / rounds if decay else 1
            known = [0.0 if r == 0 else 1.0] * count
            if r:
                a = literal.adjust(a, list(gap), step, variant, factor)
            same(server.round(gap, known, at=r / rounds, rounds=rounds), a, 1e-12)
            clipped += a.count(0)
        assert clipped or count < 13


def test_absent_clients_keep_their_weights_by_hand() -> None:
    """Four clients, 0 and 2 present: they share 1/2, of which 0.35 and 0.15 after the move."""
    server = Server(GeneralizationAdjustment(step=0.1, decay=False), 4)
    same(server.round([0.3, 0.1], present=[0, 2]), [0.7, 0.3])
    same(server.peek(4), [0.35, 0.25, 0.15, 0.25])
    # clients 1, 2, 3: mu = 1, (0, -1, 1) 0.1 on (0.25, 0.15, 0.25), of a mass of 0.65
    same(
        server.round([1.0, 0.0, 2.0], present=[1, 2, 3]),
        [Fraction(25, 65), Fraction(5, 65), Fraction(35, 65)],
    )
    same(server.peek(4), [0.35, 0.25, 0.05, 0.35])


def test_clipping_keeps_the_mass_of_those_present() -> None:
    """0.25 + 0.4 = 0.65 and a clipped 0: scaled to the 1/2 that clients 0 and 2 hold together."""
    server = Server(GeneralizationAdjustment(step=0.4, decay=False), 4)
    same(server.round([0.3, 0.1], present=[0, 2]), [1.0, 0.0])
    same(server.peek(4), [0.5, 0.25, 0.0, 0.25])


def test_a_newcomer_has_no_gap_yet() -> None:
    """Present without a known gap: its zero is no gap, but it shares in the renormalisation."""
    server = Server(GeneralizationAdjustment(step=0.1, decay=False), 4)
    same(
        server.round([0.3, 0.0, 0.1], known=[1, 0, 1], present=[0, 1, 2]),
        [Fraction(35, 75), Fraction(25, 75), Fraction(15, 75)],
    )
    same(server.peek(4), [0.35, 0.25, 0.15, 0.25])
    clip = Server(GeneralizationAdjustment(step=0.4, decay=False), 4)
    same(
        clip.round([0.3, 0.0, 0.1], known=[1, 0, 1], present=[0, 1, 2]),
        [Fraction(65, 90), Fraction(25, 90), 0],
    )
    same(clip.peek(4), [Fraction(65, 120), Fraction(25, 120), 0, Fraction(1, 4)])


@pytest.mark.parametrize("variant", VARIANTS)
def test_partial_participation_run_literally(variant) -> None:
    """Half of the clients a round, some of them without a gap."""
    roster, rounds = 8, 12
    rng, a = np.random.default_rng(3), [1 / 8] * 8
    server = Server(GeneralizationAdjustment(step=0.06, variant=variant, decay=False), roster)
    for _ in range(rounds):
        present = sorted(rng.choice(roster, 4, replace=False).tolist())
        gap = rng.standard_normal(roster) + 0.5
        known = {i: bool(rng.random() < 0.8) for i in range(roster)}
        a = literal.adjust(a, list(gap), 0.06, variant, 1, present, known.__getitem__)
        mass = sum(a[i] for i in present)
        found = server.round(
            [gap[i] if known[i] else 0.0 for i in present],
            [float(known[i]) for i in present],
            present,
        )
        same(found, [a[i] / mass for i in present], 1e-12)
        same(server.peek(roster), a, 1e-12)
    assert max(a) - min(a) > 0.05


def test_only_clients_of_weight_zero_present() -> None:
    """Nothing to share out, and still no NaN."""
    server = Server(GeneralizationAdjustment(step=0.8, decay=False), 3)
    assert server.round([2.0, 0.0, 1.0])[1] == 0
    for gaps, known in [([0.0], [0.0]), ([3.0], [1.0])]:
        same(server.round(gaps, known, present=[1]), [1.0])
    assert np.isfinite(server.peek(3)).all()


def test_the_state_that_came_in_stays() -> None:
    """State in, state out: the same call from the same state gives the same bytes."""
    rule = GeneralizationAdjustment(step=0.3, decay=False)
    start, rows = rule.init(3, 2), torch.ones(3, 2, dtype=torch.float64)
    _, after, first = rule(rows, table([1, 2, 4]), start)
    _, _, again = rule(rows, table([1, 2, 4]), start)
    assert torch.equal(first, again)
    _, _, moved = rule(rows, table([1, 2, 4]), after)
    assert not torch.equal(first, moved)


gaps = st.one_of(
    st.lists(st.floats(-10, 10), min_size=1, max_size=6),
    st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=6),
    st.lists(st.floats(-1e-300, 1e-300), min_size=1, max_size=6),
    st.lists(st.sampled_from([0.0, 0.1, -0.1, 1e-320, 1e300]), min_size=1, max_size=6),
    # a base and its neighbours, where rounding decides which of them exceed the mean
    st.builds(
        lambda base, ulps: [base * (1 + k * 2.0**-52) for k in ulps],
        st.floats(-10, 10),
        st.lists(st.integers(-2, 2), min_size=1, max_size=6),
    ),
)


@given(gaps, st.sampled_from(VARIANTS), st.sampled_from([0.0, 0.05, 0.5, 0.99]), st.data())
@settings(derandomize=True, max_examples=400)
def test_never_nan(gap, variant, step, data) -> None:
    """Whatever the gaps, the weights are a distribution, and the next round can go on."""
    count = len(gap)
    server = Server(GeneralizationAdjustment(step=step, variant=variant, decay=False), count)
    known = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=count, max_size=count))
    for columns in ((gap, None), (gap[::-1], known), ([1.0] * count, None)):
        weights = server.round(*columns)
        assert np.isfinite(weights).all() and (weights >= 0).all()
        assert weights.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 13, 26, 49])
def test_step_zero_is_the_uniform_mean_bit_for_bit(variant, count, dtype) -> None:
    """GA's Table 3: step 0 is the uniform row, not the row of fixed p_i."""
    rng = np.random.default_rng(count)
    rows = torch.tensor(literal.gradients(0, count, 333), dtype=dtype)
    rule, uniform = GeneralizationAdjustment(step=0.0, variant=variant), Mean("uniform")
    state = rule.init(count, 333)
    for r in range(4):
        columns = table(rng.standard_normal(count), at=r / 4, rounds=4)
        vector, state, weights = rule(rows, columns, state)
        mean, _, equal = uniform(rows, columns, uniform.init(count, 333))
        assert torch.equal(vector, mean)
        same(weights, equal, 1e-16)


def test_step_zero_is_not_the_mean_by_examples() -> None:
    rows = torch.tensor([[4.0], [8.0]])
    columns = table([0.3, 0.1], examples=[30.0, 10.0])
    rule, mean = GeneralizationAdjustment(step=0.0), Mean("examples")
    assert rule(rows, columns, rule.init(2, 1))[0].tolist() == [6.0]
    assert mean(rows, columns, mean.init(2, 1))[0].tolist() == [5.0]


@pytest.mark.parametrize("kind", ["ppdg", "agrsum", "geometric"])
def test_ga_as_the_prior_of_another_rule(kind) -> None:
    """The other rule runs as published, with a_i where it had 1/K, and GA's memory goes on."""
    prior = GeneralizationAdjustment(step=0.2)
    rule = {
        "ppdg": PPDG(lam=0.2, order="fixed", prior=prior),
        "agrsum": AgrSum(prior=prior),
        "geometric": WeightedGeometricMean(prior=prior),
    }[kind]
    state, a = rule.init(3, 40), [1 / 3] * 3
    for r in range(1, 4):
        rows = literal.gradients(r, 3)
        gap = list(np.random.default_rng(r).standard_normal(3))
        a = literal.adjust(a, gap, 0.2, "centred", 1 - r / 4)
        if kind == "ppdg":
            expected = literal.average(literal.ppdg(rows, 0.2, literal.fixed(3)), a)
        elif kind == "agrsum":
            expected = literal.agr_sum(rows, a)
        else:
            expected = np.array([literal.geometric(column, a) for column in rows.T])
        vector, state, _ = rule(torch.tensor(rows), table(gap, at=r / 4), state)
        np.testing.assert_allclose(vector.numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "option", [{"variant": "centered"}, {"step": -0.1}, {"step": float("nan")}]
)
def test_bad_options_are_refused(option) -> None:
    with pytest.raises(UnseenError, match=next(iter(option))):
        GeneralizationAdjustment(**option)


def test_a_gap_of_accuracies_needs_classes() -> None:
    assert "classes" in method("fedavg+ga(gap='accuracy')").asks
    assert "classes" not in method("fedavg+ga").asks
