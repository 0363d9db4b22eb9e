"""FedGMA and SAND-mask, coordinate by coordinate in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import literal
from support.playing import play_elementwise as play

from unseen.core.vector import Layout
from unseen.errors import UnseenError
from unseen.methods.combine import AndMask, GradientMasked, Mean, SandMask

EXAMPLES = [10.0, 40.0, 35.0, 5.0, 10.0]


def rows_of(count: int):
    rows = literal.gradients(1, count, size=200)
    rows[np.random.default_rng(1).random(rows.shape) < 0.1] = 0
    return rows


def agreement(column, p) -> float:
    return abs(math.fsum(w * np.sign(g) for w, g in zip(p, column, strict=True)))


def mean(column, p) -> float:
    return math.fsum(w * g for w, g in zip(p, column, strict=True))


def gma(column, p, tau) -> float:
    A = agreement(column, p)
    return (1.0 if tau - 1e-9 <= A else A) * mean(column, p)


def sand(column, p, tau, k) -> float:
    m = mean(column, p)
    variance = math.fsum(w * (g - m) ** 2 for w, g in zip(p, column, strict=True))
    above = agreement(column, p) - tau
    return (max(0.0, math.tanh(k / variance * above)) if above > 1e-6 else 0.0) * m


@pytest.mark.parametrize("tau", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("count", [2, 3, 5, 13])
def test_the_masks_run_literally(count, tau) -> None:
    rows, p = rows_of(count), [1 / count] * count
    found = play(GradientMasked(tau, Mean("uniform")), rows)
    np.testing.assert_allclose(found, [gma(c, p, tau) for c in rows.T], rtol=1e-10, atol=1e-14)
    for k in (0.01, 1.0, 100.0):
        found = play(SandMask(tau, k), rows)
        expected = [sand(c, p, tau, k) for c in rows.T]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_prior_by_examples() -> None:
    rows, p = rows_of(5), literal.shares(EXAMPLES)
    found = play(GradientMasked(0.4), rows, examples=EXAMPLES)
    np.testing.assert_allclose(found, [gma(c, p, 0.4) for c in rows.T], rtol=1e-10, atol=1e-14)
    rule = SandMask(0.3, 1.0, prior=Mean("examples"))
    expected = [sand(c, p, 0.3, 1.0) for c in rows.T]
    np.testing.assert_allclose(play(rule, rows, examples=EXAMPLES), expected, rtol=1e-9, atol=1e-12)


def test_a_steep_sand_mask_is_the_and_mask() -> None:
    rows = rows_of(5)
    found = play(SandMask(0.5, 1e12), rows)
    np.testing.assert_allclose(found, play(AndMask(0.5), rows), atol=1e-14)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_clients_that_agree_exactly_are_followed(count) -> None:
    rows = np.repeat(rows_of(1), count, axis=0)
    np.testing.assert_allclose(play(SandMask(0.5, 0.01), rows), rows[0], rtol=1e-12)


def test_each_block_is_divided_by_the_mean_of_its_mask() -> None:
    layout = Layout.of({"a": torch.empty(50), "b": torch.empty(150)})
    rows, p = rows_of(3), [1 / 3] * 3
    plain = np.array([sand(c, p, 0.2, 1.0) for c in rows.T])
    masks = np.array([v / mean(c, p) if mean(c, p) else 0.0
                      for v, c in zip(plain, rows.T, strict=True)])  # fmt: skip
    found = play(SandMask(0.2, 1.0, rescale=True, blocks="tensor"), rows, layout=layout)
    for block in (slice(0, 50), slice(50, 200)):
        np.testing.assert_allclose(found[block], plain[block] / masks[block].mean(), rtol=1e-8)


def test_what_is_no_share_is_refused() -> None:
    for wrong in (-0.1, 1.5):
        with pytest.raises(UnseenError, match=r"fedgma\(agreement\)"):
            GradientMasked(wrong)
    with pytest.raises(UnseenError, match=r"sand-mask\(steepness\)"):
        SandMask(steepness=0)
