"""AND-mask and the geometric mean of absolute values: the authors' formulas, coordinate by
coordinate, and the cases by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import literal
from support.playing import play_elementwise as play

from unseen.core.vector import Layout
from unseen.errors import UnseenError
from unseen.methods.combine import AbsoluteGeometricMean, AgrSum, AndMask, Mean

EXAMPLES = [10.0, 40.0, 35.0, 5.0, 10.0]


def one(rule, values, examples=None):
    return play(rule, np.array(values)[:, None], examples=examples).item()


def sparse(count: int, seed: int = 0, size: int = 300):
    """Rows with exact zeros, as dead ReLUs make them."""
    rows = literal.gradients(seed, count, size=size)
    rows[np.random.default_rng(seed).random(rows.shape) < 0.1] = 0
    return rows


def masked(column, p, agreement) -> bool:
    """Whether the mask is 1 on one coordinate: |mean sign| >= tau."""
    return abs(sum(w * np.sign(g) for w, g in zip(p, column, strict=True))) >= agreement - 1e-9


@pytest.mark.parametrize(
    ("values", "agreement", "expected"),
    [
        ([1.0, 2.0, 3.0], 1.0, 2.0),
        ([1.0, 2.0, -3.0], 1.0, 0.0),
        ([1.0, 2.0, 0.0], 1.0, 0.0),  # sign 0 = 0: two thirds
        ([1.0, 2.0, 0.0], 0.6, 1.0),
        ([-1.0, -2.0, -3.0, 2.0], 0.5, -1.0),  # |3/4 - 1/4| = 1/2 is not below 1/2
        ([-1.0, -2.0, -3.0, 2.0], 0.51, 0.0),
        ([5.0, -1.0], 0.5, 0.0),
        ([5.0, -1.0], 0.0, 2.0),
        ([7.0], 1.0, 7.0),
        ([0.0, 0.0], 1.0, 0.0),
    ],
)
def test_the_mask_by_hand(values, agreement, expected) -> None:
    assert one(AndMask(agreement), values) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("agreement", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 13])
def test_the_mask_run_literally(count, agreement) -> None:
    rows, p = sparse(count), [1 / count] * count
    expected = [c.mean() if masked(c, p, agreement) else 0.0 for c in rows.T]
    np.testing.assert_allclose(play(AndMask(agreement), rows), expected, rtol=0, atol=1e-14)


def test_the_prior_weighs_the_mean_and_the_votes() -> None:
    rows, p = sparse(5), np.array(EXAMPLES) / 100
    expected = [p @ c if masked(c, p, 0.5) else 0.0 for c in rows.T]
    found = play(AndMask(prior=Mean("examples")), rows, examples=EXAMPLES)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)
    assert one(AndMask(prior=Mean("examples")), [1.0, -9.0], [10.0, 0.0]) == 1.0


def test_complete_agreement_is_agrsum() -> None:
    for count in (1, 2, 3, 5, 13):
        rows = sparse(count, seed=count, size=70_001)
        assert np.array_equal(play(AndMask(1.0), rows), play(AgrSum(), rows))


def test_no_agreement_is_the_mean_bit_for_bit() -> None:
    u = torch.tensor(sparse(5, size=70_001), dtype=torch.float32)
    rule = AndMask(0.0)
    assert torch.equal(rule(u, {}, rule.init(*u.shape))[0], Mean("uniform")(u, {}, {})[0])


def test_rescaling_divides_each_tensor_by_the_share_that_it_kept() -> None:
    """Of a.weight 3 of 4 coordinates agree, of b.weight 1 of 2, of c.weight none."""
    rows = np.array([[1.0, 2.0, 3.0, 1.0, 4.0, 1.0, 1.0], [1.0, 2.0, 3.0, -1.0, 4.0, -1.0, -1.0]])
    sizes = {"a.weight": 4, "b.weight": 2, "c.weight": 1}
    layout = Layout.of({name: torch.empty(size) for name, size in sizes.items()})
    rule = AndMask(1.0, rescale=True, blocks="tensor")
    expected = [4 / 3, 8 / 3, 4.0, 0.0, 8.0, 0.0, 0.0]
    np.testing.assert_allclose(play(rule, rows, layout=layout), expected, rtol=1e-15)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([4.0, 9.0], 6.0),
        ([-4.0, -9.0], -6.0),
        ([-4.0, 9.0], 6.0),  # the weighted geometric mean would be 4.5 - 2
        ([4.0, -9.0], -6.0),
        ([2.0, -2.0], 0.0),  # sign of a mean of 0
        ([1.0, 2.0, 4.0], 2.0),
        ([1.0, 2.0, 0.0], 0.0),
        ([-7.0], -7.0),
    ],
)
def test_absolute_values_by_hand(values, expected) -> None:
    assert one(AbsoluteGeometricMean(), values) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_a_zero_in_the_released_code() -> None:
    """(1e-10 * 1e-3 * 1e-3)^(1/3), next to nothing for `paper`."""
    expected = (1e-10 * (1e-3 + 1e-10) ** 2) ** (1 / 3)
    rule = AbsoluteGeometricMean(zeros="released")
    assert one(rule, [0.0, 1e-3, 1e-3]) == pytest.approx(expected, rel=1e-12)
    assert one(rule, [0.0, 0.0, 0.0]) == 0.0


@pytest.mark.parametrize("zeros", ["paper", "released"])
@pytest.mark.parametrize("agreement", [0.0, 0.5])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 13])
def test_the_absolute_mean_run_literally(count, agreement, zeros) -> None:
    rows = sparse(count)
    examples = np.random.default_rng(count).integers(1, 50, count).astype(float)
    p, floor = examples / examples.sum(), 1e-10 if zeros == "released" else 0.0
    expected = []
    for column in rows.T:
        size = math.prod((abs(g) + floor) ** w for g, w in zip(column, p, strict=True))
        kept = agreement == 0 or masked(column, p, agreement)
        expected.append(np.sign(p @ column) * size if kept else 0.0)
    rule = AbsoluteGeometricMean(agreement, zeros, Mean("examples"))
    np.testing.assert_allclose(
        play(rule, rows, examples=examples), expected, rtol=1e-11, atol=1e-14
    )


def test_a_client_of_weight_zero_vetoes_nothing() -> None:
    rule = AbsoluteGeometricMean(prior=Mean("examples"))
    assert one(rule, [0.0, 4.0, 9.0], [0.0, 1.0, 1.0]) == pytest.approx(6.0)


def test_options_are_checked() -> None:
    with pytest.raises(UnseenError, match="agreement"):
        AndMask(1.5)
    with pytest.raises(UnseenError, match="agreement"):
        AbsoluteGeometricMean(-0.1)
    with pytest.raises(UnseenError, match="'released'"):
        AbsoluteGeometricMean(zeros="skip")
