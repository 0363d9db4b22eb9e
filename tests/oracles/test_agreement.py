"""AgrSum and AgrRand by hand, and the scale of AgrRand's noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import literal
from support.playing import play_elementwise as play

from unseen.errors import UnseenError
from unseen.methods.combine import AgrRand, AgrSum, Mean

# Columns: agree (+), conflict, one exact zero, agree (-), agree (+), all zero.
ROWS = np.array(
    [
        [1.0, 2.0, 0.0, -1.0, 3.0, 0.0],
        [3.0, -2.0, 1.0, -2.0, 1.0, 0.0],
        [2.0, 5.0, 1.0, -3.0, 2.0, 0.0],
    ]
)
AGREE = np.array([True, False, False, True, True, False])
EXAMPLES = [10.0, 20.0, 10.0]


def disputed(count: int, size: int) -> np.ndarray:
    """Rows whose even coordinates agree and whose odd ones do not."""
    rows = np.abs(literal.gradients(0, count, size=size)) + 0.1
    rows[0, 1::2] *= -1
    return rows


@pytest.mark.parametrize(
    ("reduction", "prior", "expected"),
    [
        ("mean", Mean("uniform"), [2.0, 0.0, 0.0, -2.0, 2.0, 0.0]),
        ("sum", Mean("uniform"), [6.0, 0.0, 0.0, -6.0, 6.0, 0.0]),
        ("mean", Mean("examples"), [2.25, 0.0, 0.0, -2.0, 1.75, 0.0]),
        ("sum", Mean("examples"), [6.75, 0.0, 0.0, -6.0, 5.25, 0.0]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_agr_sum_by_hand(reduction, prior, expected, dtype) -> None:
    found = play(AgrSum(reduction, prior=prior), ROWS, examples=EXAMPLES, dtype=dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-6 if dtype == torch.float32 else 1e-14)
    assert not found[~AGREE].any()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 13, 26])
def test_agr_sum_is_the_loop(count) -> None:
    """A shift of one leaves a part of the coordinates in agreement at every K."""
    rows = literal.gradients(0, count, size=500) + 1.5 * np.sign(literal.gradients(1, 1, size=500))
    agreed = sum(literal.agreed(rows))
    assert (0 < agreed < 500) if count > 1 else agreed == 500
    for reduction, times in (("mean", 1), ("sum", count)):
        expected = literal.agr_sum(rows, times=times)
        np.testing.assert_allclose(play(AgrSum(reduction), rows), expected, rtol=0, atol=1e-12)


def test_the_default_reduction_is_the_mean() -> None:
    assert play(AgrSum(), ROWS).tolist() == [2.0, 0.0, 0.0, -2.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("reduction", "examples", "expected"),
    [
        ("mean", None, [2.0, -2.0, 2.0]),
        ("sum", None, [6.0, -6.0, 6.0]),
        ("mean", EXAMPLES, [2.25, -2.0, 1.75]),
    ],
)
def test_agr_rand_keeps_what_agrees(reduction, examples, expected) -> None:
    prior = Mean("uniform") if examples is None else Mean("examples")
    found = play(AgrRand(reduction, prior=prior), ROWS, literal.seeded(1), examples)
    np.testing.assert_allclose(found[AGREE], expected, rtol=1e-14)
    assert np.isfinite(found).all() and found[~AGREE].all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_noise_is_normal_with_the_agreed_mean_magnitude(reduction, dtype) -> None:
    """s = mean |aggregate| over the agreeing coordinates of the whole vector.

    30,000 draws: the standard error of their deviation is s / 245, of their mean s / 173.
    """
    size = 60_000
    rows = disputed(3, size)
    rows[:, : size // 2] *= 20  # a global scale, not a local one
    noise = play(AgrRand(reduction), rows, literal.seeded(5), dtype=dtype)[1::2]
    s = np.abs(literal.agr_sum(rows, times={"mean": 1, "sum": 3}[reduction])[::2]).mean()
    for part in (noise, noise[: size // 4], noise[size // 4 :]):
        assert part.std() == pytest.approx(s, rel=0.03)
        assert abs(part.mean()) < 0.03 * s
        assert np.mean(np.abs(part) < s) == pytest.approx(0.6827, abs=0.015)
        assert np.mean(np.abs(part) < 2 * s) == pytest.approx(0.9545, abs=0.01)


def test_the_noise_comes_from_the_generator() -> None:
    rows = disputed(3, 400)
    one = play(AgrRand(), rows, literal.seeded(1))
    assert np.array_equal(one, play(AgrRand(), rows, literal.seeded(1)))
    other = play(AgrRand(), rows, literal.seeded(2))
    assert np.array_equal(one[::2], other[::2]) and (one[1::2] != other[1::2]).all()
    unseeded = play(AgrRand(), rows)
    assert np.array_equal(unseeded, play(AgrRand(), rows, literal.seeded(0)))
    tripled = play(AgrRand("sum"), rows, literal.seeded(1))
    np.testing.assert_allclose(tripled, 3 * one, rtol=1e-12)


@pytest.mark.parametrize("rule", [AgrSum(), AgrSum("sum"), AgrRand(), AgrRand("sum")])
def test_no_agreement_at_all_gives_zeros(rule) -> None:
    """The released AgrRand takes the mean of nothing there: NaN in every coordinate."""
    rows = np.array([[1.0, -2.0, 0.0], [-1.0, 2.0, 3.0]])
    assert play(rule, rows, literal.seeded(0)).tolist() == [0.0, 0.0, 0.0]
    assert play(rule, np.zeros((3, 4)), literal.seeded(0)).tolist() == [0.0] * 4


@pytest.mark.parametrize("kind", [AgrSum, AgrRand])
def test_full_agreement_is_the_mean(kind) -> None:
    rows = np.abs(literal.gradients(3, 5))
    found = play(kind(), rows, literal.seeded(0))
    np.testing.assert_allclose(found, rows.mean(0), rtol=1e-14)


@pytest.mark.parametrize("kind", [AgrSum, AgrRand])
def test_an_unknown_reduction_is_refused(kind) -> None:
    with pytest.raises(UnseenError, match="sum"):
        kind("som")
