"""Intervals for a new site: closed forms, and how often they hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from unseen import UnseenError
from unseen.core.metrics.evaluation import METRICS, RANGES
from unseen.studies.choice.expectation import (
    between_sites,
    chance,
    expect,
    mean_interval,
    pairs_needed,
    sites_needed,
)
from unseen.studies.choice.within_sites import variances


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


def test_figures_from_0_to_1_are_drawn_on_the_logits():
    figures = [0.71, 0.78, 0.83, 0.69, 0.99]
    y = special.logit(figures)
    ends = stats.t.interval(0.9, 4, loc=y.mean(), scale=y.std(ddof=1) * math.sqrt(1 + 1 / 5))
    found = expect(figures, bounds=(0.0, 1.0))
    assert (found.low, found.high) == pytest.approx(tuple(special.expit(ends)), abs=1e-5)
    assert found.mean == pytest.approx(np.mean(figures))


def test_errors_above_0_are_drawn_on_their_logarithms():
    figures = [1.0, 2.0, 5.0]
    y = np.log(figures)
    ends = stats.t.interval(0.9, 2, loc=y.mean(), scale=y.std(ddof=1) * math.sqrt(1 + 1 / 3))
    found = expect(figures, bounds=(0.0, math.inf))
    assert (found.low, found.high) == pytest.approx(tuple(np.exp(ends)))


def test_the_variance_between_sites_solves_paule_and_mandels_equation():
    y, v = torch.tensor([0.1, 0.9, 1.7, 0.4]).double(), torch.tensor([0.1, 0.2, 0.05, 0.1]).double()
    between = between_sites(y, v)
    w = 1 / (between + v)
    mean = (w * y).sum() / w.sum()
    assert between > 0
    assert float((w * (y - mean) ** 2).sum()) == pytest.approx(3.0)
    assert between_sites(y, v + 10) == 0  # rows explain all of it


def test_areas_have_the_variance_that_draws_have():
    """Scores of two normal laws; Hanley and McNeil's formula is of exponential ones, and larger."""
    rng, m, n = np.random.default_rng(0), 40, 120
    areas = []
    for _ in range(3000):
        u = stats.mannwhitneyu(rng.normal(1.2, 1, m), rng.normal(0, 1, n)).statistic
        areas.append(u / (m * n))
    one = torch.tensor([np.mean(areas)]).double()
    rows, positives = torch.tensor([m + n]).double(), torch.tensor([m / (m + n)]).double()
    found = variances("auroc", one, rows, positives)
    assert found is not None
    assert 0.9 < float(found[0]) / np.var(areas) < 1.5


def test_a_site_of_four_rows_hardly_counts():
    rows, half = torch.tensor([400.0, 500, 300, 450, 350, 4]).double(), torch.full((6,), 0.5)
    figures = [0.80, 0.82, 0.79, 0.81, 0.80, 0.25]
    within = variances("accuracy", torch.tensor(figures).double(), rows, half.double())
    found = expect(figures, bounds=(0.0, 1.0), rows=rows, within=within)
    without = expect(figures[:5], bounds=(0.0, 1.0))
    plain = expect(figures, bounds=(0.0, 1.0))
    assert abs(found.mean - without.mean) < 0.02 < abs(plain.mean - without.mean)
    assert found.high - found.low < 0.5 * (plain.high - plain.low)


@pytest.mark.parametrize("sites", [4, 10, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spread", [0.1, pytest.param(0.3, marks=pytest.mark.slow), 0.8])
@pytest.mark.parametrize("kind", [pytest.param("even", marks=pytest.mark.slow), "mixed", "tiny"])
def test_nine_of_ten_new_sites_lie_inside(sites: int, spread: float, kind: str) -> None:
    """Shares of sites whose logits are normal, one more of the median size; each tail apart."""
    rng, trials = np.random.default_rng(sites), 400
    below = above = 0
    for _ in range(trials):
        rows = {
            "even": np.full(sites, 300),
            "mixed": np.exp(rng.uniform(math.log(30), math.log(3000), sites)).astype(int),
            "tiny": np.where(np.arange(sites) < max(1, sites // 4), 4, 400),
        }[kind]
        shares = special.expit(1.4 + spread * rng.standard_normal(sites + 1))
        median = int(np.median(rows))
        figures = torch.tensor(rng.binomial(rows, shares[:-1]) / rows)
        new = rng.binomial(median, shares[-1]) / median
        counts = torch.tensor(rows).double()
        within = variances("accuracy", figures, counts, torch.full_like(counts, 0.5))
        found = expect(figures.tolist(), bounds=(0.0, 1.0), rows=counts, within=within)
        below, above = below + (new < found.low), above + (new > found.high)
    # Four standard errors of 400 draws are 6 points of the interval and 4.4 of a tail.
    assert 1 - (below + above) / trials > 0.85 - 0.06
    assert max(below, above) / trials < 0.07 + 0.044


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
    assert 0.99 < expect([0.99, 1.0, 0.9], bounds=(0, 1)).high < 1.0
    assert expect([0.5, 0.99], bounds=(-math.inf, 1.0)).high == 1.0
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

    def share(figures: list[float], rows: int) -> float | None:
        counts = torch.full((len(figures),), float(rows)).double()
        within = variances("accuracy", torch.tensor(figures).double(), counts, counts)
        return expect(figures, bounds=(0.0, 1.0), rows=counts, within=within).few_rows

    chance_alone = share(list(rng.binomial(50, 0.8, 2000) / 50), 50)
    differing = share([0.2, 0.5, 0.8], 10_000)
    assert chance_alone is not None and chance_alone > 0.9
    assert differing is not None and differing < 0.001
    assert expect([0.2, 0.5, 0.8]).few_rows is None


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
