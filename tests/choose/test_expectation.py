"""Intervals for a new site: closed forms, and how often they hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from unseen import UnseenError
from unseen.choice.expectation import (
    chance,
    chance_share,
    expect,
    mean_interval,
    pairs_needed,
    sites_needed,
)
from unseen.metrics.evaluation import METRICS, RANGES


def test_the_interval_is_that_of_one_more_draw():
    figures = [0.71, 0.78, 0.83, 0.69, 0.75]
    found = expect(figures, level=0.9)
    low, high = stats.t.interval(
        0.9, 4, loc=np.mean(figures), scale=np.std(figures, ddof=1) * math.sqrt(1 + 1 / 5)
    )
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.mean == pytest.approx(np.mean(figures))
    assert found.spread == pytest.approx(np.std(figures, ddof=1))
    assert found.low < found.mean_low < found.mean < found.mean_high < found.high


def test_the_interval_of_the_mean_is_a_bootstrap_over_sites():
    rng = np.random.default_rng(0)
    figures = rng.normal(0.8, 0.05, 40)
    means = np.random.default_rng(1).choice(figures, (10_000, len(figures))).mean(1)
    low, high = np.quantile(means, [0.05, 0.95])
    found = expect(list(figures), level=0.9)
    # Ends of 10,000 samples have an error of some 1.5 % of the interval's length.
    assert (found.mean_low, found.mean_high) == pytest.approx((low, high), abs=0.06 * (high - low))


@pytest.mark.parametrize("sites", [5, 10, 30])
@pytest.mark.parametrize("shape", ["normal", "skewed", "accuracy of few rows"])
def test_nine_of_ten_new_sites_lie_inside(sites, shape):
    rng = np.random.default_rng(sites)
    draws = {
        "normal": lambda n: rng.normal(0.8, 0.06, n),
        "skewed": lambda n: 1 - rng.gamma(4, 0.05, n),
        "accuracy of few rows": lambda n: rng.binomial(60, rng.beta(24, 6, n)) / 60,
    }
    inside = 0
    trials = 4000
    for _ in range(trials):
        *seen, new = draws[shape](sites + 1)
        mean, spread = np.mean(seen), np.std(seen, ddof=1)
        reach = stats.t.ppf(0.95, sites - 1) * spread * math.sqrt(1 + 1 / sites)
        inside += mean - reach <= new <= mean + reach
    # The same formula as `expect`, which test_the_interval_is_that_of_one_more_draw holds to it.
    assert 0.85 <= inside / trials <= 0.95
    if shape == "normal":
        assert inside / trials == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / trials))


def test_a_chance_of_seven_in_ten_comes_true_in_seven_of_ten():
    rng = np.random.default_rng(0)
    said, true = [], []
    for _ in range(20_000):
        *seen, new = rng.normal(rng.normal(0, 1), 1, 7)
        said.append(chance(seen))
        true.append(new > 0)
    said, true = np.array(said), np.array(true)
    for low in (0.1, 0.3, 0.5, 0.7):
        own = (said >= low) & (said < low + 0.2)
        assert true[own].mean() == pytest.approx(said[own].mean(), abs=0.04)


def test_equal_figures_do_not_say_how_far_apart_sites_are():
    # Five of six rows right at each of three sites, whose true rates may be anything between.
    found = expect([5 / 6] * 3, bounds=(0.0, 1.0))
    assert (found.low, found.high) == (0.0, 1.0)


def test_ends():
    assert expect([1.0, 1.0, 1.0]).low == 1.0
    assert expect([0.99, 1.0, 0.9], bounds=(0, 1)).high == 1.0
    assert chance([0.0, 0.0]) == 0.5
    assert sites_needed([0.0, 0.0]) is None
    with pytest.raises(UnseenError, match="two sites"):
        expect([0.5])


@pytest.mark.parametrize("comparisons", [1, 7])
@pytest.mark.parametrize("effect", [0.5, 1.0])
def test_so_many_sites_show_a_difference_in_four_cases_of_five(effect: float, comparisons: int):
    """Drawn: how often Wilcoxon's exact test is below the level of Holm's first step."""
    rng = np.random.default_rng(0)
    pair = [effect + 0.5**0.5, effect - 0.5**0.5]  # of deviation 1
    n = sites_needed(pair, comparisons)
    assert n is not None
    p = [stats.wilcoxon(rng.normal(effect, 1, n)).pvalue for _ in range(1500)]
    assert np.mean(np.array(p) < 0.05 / comparisons) == pytest.approx(0.8, abs=0.06)
    assert sites_needed([1.0] * 40) == 40  # never fewer than there are


def test_no_fewer_sites_than_the_smallest_p_needs():
    """Differences without a spread: 2^(1 - n) is at most 0.05 / m from n = 6 and n = 9 on."""
    assert sites_needed([1.0, 1.0], 1) == 6 and sites_needed([1.0, 1.0], 7) == 9


def test_pairs_of_a_t_test_are_those_of_the_tables():
    """Cohen's tables: d = 0.2, 0.5, 0.8 and 1 by a paired t-test at 0.05 with a power of 0.8."""
    assert [pairs_needed(d, 0.05) for d in (0.2, 0.5, 0.8, 1.0)] == [199, 34, 15, 10]


def test_differences_that_cancel_need_no_number_of_sites():
    """0.1 + 0.2 − 0.3 is 5.6e-17 in floating point, whose effect no number of pairs would show."""
    assert sites_needed([0.1, 0.2, -0.3]) is None
    assert sites_needed([0.1, 0.2, -0.3 + 1e-12]) is None


def test_a_tiny_effect_needs_as_many_pairs_as_the_normal_law_says():
    z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert pairs_needed(1e-6, 0.05) == pytest.approx((z / 1e-6) ** 2, rel=1e-9)
    n = sites_needed([1.0, -1.0 + 1e-7])
    assert n is not None and n > 1e15


def test_an_interval_of_the_mean_is_scipys():
    figures = [0.2, 0.5, 0.9, 0.4]
    expected = stats.t.interval(0.9, 3, np.mean(figures), stats.sem(figures))
    assert mean_interval(figures) == pytest.approx(expected)
    assert mean_interval([0.1, 0.2, 0.3, 0.4], 1 - 0.1 / 7)[0] < 0  # four positive sites are few


def test_what_few_rows_leave_to_chance():
    rng = np.random.default_rng(0)
    shares = rng.binomial(50, 0.8, 2000) / 50  # sites that differ by chance alone
    assert chance_share(list(shares), [50] * 2000) > 0.9
    assert chance_share([0.2, 0.5, 0.8], [10_000] * 3) < 0.001


def test_the_share_of_chance_is_the_mean_binomial_variance_over_that_of_sites():
    within = (0.2 * 0.8 / 10 + 0.5 * 0.5 / 20 + 0.8 * 0.2 / 40) / 3
    found = chance_share([0.2, 0.5, 0.8], [10, 20, 40])
    assert found == pytest.approx(within / np.var([0.2, 0.5, 0.8], ddof=1))


@pytest.mark.parametrize(
    ("metric", "figures", "low", "high"),
    [
        ("sensitivity", [1.0, 1.0, 1.0, 1.0], 0.0, 1.0),
        ("concordance", [0.6, 0.9, 0.75], 0.0, 1.0),
        ("brier", [0.0, 0.19], 0.0, 2.0),
        ("rmse", [10.0, 110.0], 0.0, math.inf),
        ("r2", [0.9, 0.99], -math.inf, 1.0),
    ],
)
def test_no_figure_is_expected_beyond_what_the_metric_can_be(
    metric: str, figures: list[float], low: float, high: float
) -> None:
    found = expect(figures, bounds=RANGES[metric])
    assert low <= found.low <= found.high <= high


def test_every_metric_has_a_range_or_none() -> None:
    assert METRICS.keys() - RANGES.keys() == {"calibration-slope", "calibration-intercept"}


def test_equal_gaps_do_not_say_how_far_the_next_one_lies() -> None:
    assert chance([0.01, 0.01, 0.01]) is None and chance([0.3]) is None
    assert chance([0.0, 0.0]) == 0.5
