"""Paired tests and corrections against all signs one by one, scipy and R's figures."""

from __future__ import annotations

from itertools import product
from operator import mul

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen.studies.results.comparison import EXACT, holm, t_test, wilcoxon
from unseen_papers.compare.paired import permuted

shares = st.lists(st.floats(0, 1), min_size=1, max_size=9)
differences = st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=2, max_size=12)
hundredths = st.lists(st.integers(-4, 6), min_size=1, max_size=12)


def of_all_signs(found: list[int]) -> float:
    """Both tails of W⁺ over the 2ⁿ signs of what is not 0, one after the other."""
    left = [d for d in found if d]
    ranks = scipy.stats.rankdata([abs(d) for d in left])
    sums = [float(ranks @ np.array(s)) for s in product((0, 1), repeat=len(left))]
    observed = float(sum(r for r, d in zip(ranks, left, strict=True) if d > 0))
    below = sum(w <= observed for w in sums) / len(sums)
    above = sum(w >= observed for w in sums) / len(sums)
    return min(1.0, 2 * min(below, above))


@given(hundredths)
@settings(max_examples=60)
def test_wilcoxon_is_that_of_all_signs(found: list[int]) -> None:
    assert wilcoxon([d / 100 for d in found]) == pytest.approx(of_all_signs(found), rel=1e-12)


def test_fifteen_tied_pairs_are_not_significant() -> None:
    """Where the normal approximation says 0.042, of 2¹³ signs 210 are as far out on either side."""
    found = [0, 1, 2, 3, 0, -2, -1, 1, 1, 3, 2, 1, 1, -1, 4]
    normal = scipy.stats.wilcoxon(found, method="asymptotic").pvalue
    assert normal == pytest.approx(0.04237, abs=5e-6)
    assert wilcoxon([d / 100 for d in found]) == 2 * 210 / 2**13 == 0.05126953125
    assert of_all_signs(found) == 0.05126953125


@pytest.mark.parametrize("n", [5, 14, 30, 50, 200, EXACT])
def test_wilcoxon_without_ties_is_scipys_exact(n: int) -> None:
    found = np.random.default_rng(n).normal(0.2, 1, n)
    expected = scipy.stats.wilcoxon(found, method="exact").pvalue
    assert wilcoxon(found.tolist()) == pytest.approx(expected, rel=1e-9)


def test_wilcoxon_of_many_pairs_is_scipys_normal_one() -> None:
    found = np.random.default_rng(1).integers(-9, 11, 2 * EXACT)
    assert (found != 0).sum() > EXACT
    expected = scipy.stats.wilcoxon(
        found, zero_method="wilcox", correction=True, method="asymptotic"
    ).pvalue
    assert wilcoxon(found.tolist()) == pytest.approx(expected, rel=1e-9)
    assert wilcoxon([1.0, -1.0] * EXACT) == 1.0


def test_both_sides_of_the_limit_agree() -> None:
    rng = np.random.default_rng(2)
    below = (rng.integers(1, 40, EXACT) * np.where(rng.random(EXACT) < 0.55, 1, -1)).tolist()
    assert wilcoxon([*below, 20, -20]) == pytest.approx(wilcoxon(below), rel=0.05)


def test_six_differences_of_one_sign_have_the_exact_p() -> None:
    # Of the 2^6 assignments of signs, the two extreme ones are as far out as this.
    assert wilcoxon([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]) == 2 / 2**6
    assert wilcoxon([0.0, 0.0]) == wilcoxon([]) == 1.0


@pytest.mark.parametrize("n", [0, 1, 2, 5, 20, 60])
def test_no_p_is_smaller_than_that_of_differences_of_one_sign(n: int) -> None:
    assert wilcoxon([float(i) for i in range(1, n + 1)]) == min(1, 2 / 2**n)
    assert wilcoxon([0.5] * n) == min(1, 2 / 2**n)


@given(differences.filter(lambda found: len(set(found)) > 1), st.floats(-1, 1))
def test_the_t_test_is_scipys_on_pairs(found: list[float], base: float) -> None:
    expected = scipy.stats.ttest_rel([base + x for x in found], [base] * len(found))
    assert t_test(found) == pytest.approx(expected.pvalue, rel=1e-6)


def test_the_t_test_of_students_sleep() -> None:
    # Student 1908, the hours gained by ten patients, as in R: t.test(..., paired = TRUE)
    p = t_test([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])
    assert p == pytest.approx(0.002833, abs=5e-7)


def test_the_t_test_where_differences_do_not_differ() -> None:
    assert t_test([0.0, 0.0, 0.0]) == 1.0
    assert t_test([0.1, 0.1, 0.1]) == t_test([-0.1, -0.1]) == 0.0
    assert t_test([0.1]) is None


def test_holm_is_rs_p_adjust() -> None:
    # R 4.3: p.adjust(c(0.01, 0.02, 0.03, 0.04), "holm"), and the example of its help page's kind
    assert holm([0.01, 0.02, 0.03, 0.04]) == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert holm([0.04, 0.005, 0.5]) == pytest.approx([0.08, 0.015, 0.5])
    assert holm([]) == []


@given(shares)
def test_holm_is_between_the_raw_p_and_bonferronis(p: list[float]) -> None:
    for raw, corrected in zip(p, holm(p), strict=True):
        assert raw <= corrected <= min(1, len(p) * raw) + 1e-12


def test_permuted_signs_need_no_unit() -> None:
    """Six positive differences have p = 2 / 64, in points as in dollars."""
    d = [6824.72, 2321.08, 1074.45, 5660.74, 3165.36, 718.69]
    assert permuted(d) == 2 / 64
    draws = np.random.default_rng(0)
    for _ in range(50):
        large = draws.uniform(100, 9000, 6).round(2)
        expected = scipy.stats.permutation_test(
            (large,), np.mean, permutation_type="samples", n_resamples=np.inf
        ).pvalue
        assert permuted(large.tolist()) == pytest.approx(expected)


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=10))
@settings(max_examples=60)
def test_permuted_signs_of_rounded_shares_are_those_of_the_shares(counts: list[int]) -> None:
    """Differences of shares of 594 come rounded to twelve digits; equal sums stay equal."""
    total = abs(sum(counts))
    signs = product((1, -1), repeat=len(counts))
    far = [abs(sum(map(mul, s, counts))) >= total for s in signs]
    expected = sum(far) / len(far)
    assert permuted([round(count / 594, 12) for count in counts]) == expected
