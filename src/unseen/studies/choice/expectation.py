"""What figures at sites left out say of a site that nobody has seen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.studies.choice.within_sites import Scale, scale_for

#: Of intervals.
LEVEL = 0.9
#: The level at which a difference is shown, and how often it is to be.
SHOWN, POWER = 0.05, 0.8
#: A mean this small beside the largest difference is rounding; from so many pairs on t is normal.
ROUNDING, LARGE = 1e-9, 1_000_000
#: Of τ²: the most steps, and the excess for each site that counts as none.
STEPS, ENOUGH = 100, 1e-10


@dataclass(frozen=True)
class Expectation:
    """What to expect at a new site.

    Attributes:
        mean: The weighted mean of the sites' figures, in which sites of few rows count less.
        spread: s, the standard deviation between the sites' figures, with K − 1 degrees of freedom.
        low, high: The prediction interval of one new site's figure.
        mean_low, mean_high: The interval of `mean` itself.
        sites: K.
        few_rows: The share of the variance at a new site that is chance of few rows; None where it
            is not known.
    """

    mean: float
    spread: float
    low: float
    high: float
    mean_low: float
    mean_high: float
    sites: int
    few_rows: float | None = None


def expect(
    figures: Sequence[float],
    level: float = LEVEL,
    bounds: tuple[float, float] | None = None,
    rows: Tensor | None = None,
    within: Tensor | None = None,
) -> Expectation:
    r"""Return what to expect of one more site, by a random-effects model over sites.

    On a scale g on which the metric has no ends (the logit for shares and areas, the logarithm for
    figures above 0), with $y_k = g(x_k)$, the variance $v_k$ by few rows and the variance $\tau^2$
    between sites:

    $$\bar x = \frac{\sum_k w_k x_k}{\sum_k w_k},\quad
    \hat\mu = \frac{\sum_k w_k y_k}{\sum_k w_k},\quad w_k = \frac{1}{\tau^2 + v_k},\quad
    \hat\mu \pm t_{K-1,(1+level)/2} \sqrt{\tau^2 + \tilde v + s_\mu^2}$$

    $\tau^2$ is Paule and Mandel's. $\tilde v$ is the median of the $v_k$: the interval is for a
    site with as many rows as the sites here. $s_\mu^2$ is the larger of $1 / \sum_k w_k$ and
    Hartung and Knapp's $\sum_k w_k (y_k - \hat\mu)^2 / ((K - 1) \sum_k w_k)$. Without variances
    within sites this is $\bar y \pm t s \sqrt{1 + 1/K}$.

    Args:
        figures: One figure for each site, at a model that was trained without it [K].
        level: The share of new sites inside.
        bounds: What a figure cannot leave, as 0 and 1. Where all figures are equal and nothing is
            known of their rows, the finite ones are the interval's ends.
        rows: Of each figure [K]; None where they are many.
        within: The variance of each figure by its rows [K]; None where that is not known.

    Raises:
        UnseenError: There are fewer than two sites.

    Source:
        Higgins, Thompson and Spiegelhalter 2009, "A re-evaluation of random-effects meta-analysis",
        Eq. 12; Paule and Mandel 1982, "Consensus values and weighting factors".

    Example:
        >>> found = expect([0.7, 0.8, 0.9])
        >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
        (0.8, 0.463, 1.137)
    """
    from scipy.stats import t as student

    K = len(figures)
    if K < 2:
        raise UnseenError(f"an interval over sites needs two sites; there is {K}.")
    values = torch.tensor(figures, dtype=torch.float64)
    spread = float(values.std())
    if not spread and within is None:  # equal figures do not say how far apart sites are
        return _of_equals(float(values[0]), bounds, K)
    scale, y, v, between = _on_scale(values, bounds, rows, within)
    w = 1 / (between + v)
    middle = (w * y).sum() / w.sum()
    knapp = (w * (y - middle).square()).sum() / (K - 1) / w.sum()
    error = torch.maximum(knapp, 1 / w.sum())
    typical = v.quantile(0.5)
    t = float(student.ppf((1 + level) / 2, K - 1))
    reach = t * (between + typical + error).sqrt()
    mean = (w * values).sum() / w.sum()
    of_mean = t * ((w * (values - mean).square()).sum() / (K - 1) / w.sum()).sqrt()
    first, last = bounds or (-math.inf, math.inf)
    ends = (scale.back(float(middle - reach)), scale.back(float(middle + reach)))
    every = (*ends, float(mean - of_mean), float(mean + of_mean))
    low, high, mean_low, mean_high = (min(max(end, first), last) for end in every)
    share = float(typical / (between + typical)) if within is not None else None
    return Expectation(float(mean), spread, low, high, mean_low, mean_high, K, share)


def weighted_mean(
    figures: Sequence[float],
    bounds: tuple[float, float] | None,
    rows: Tensor | None,
    within: Tensor | None,
) -> float:
    """Return the `mean` of `expect`, of one site its figure; see there for the arguments."""
    values = torch.tensor(figures, dtype=torch.float64)
    if len(values) == 1 or not bool(values.var()):
        return float(values[0])
    *_, v, between = _on_scale(values, bounds, rows, within)
    w = 1 / (between + v)
    return float((w * values).sum() / w.sum())


def _on_scale(
    values: Tensor,
    bounds: tuple[float, float] | None,
    rows: Tensor | None,
    within: Tensor | None,
) -> tuple[Scale, Tensor, Tensor, Tensor]:
    """Return the scale, and on it values [K], variances within [K] and that between sites."""
    scale: Scale = scale_for(bounds)
    many = torch.full_like(values, math.inf) if rows is None else rows
    y, slope = scale.to(values, many.clamp(max=LARGE))
    v = torch.zeros_like(y) if within is None else within * slope.square()
    return scale, y, v, between_sites(y, v)


def _of_equals(figure: float, bounds: tuple[float, float] | None, K: int) -> Expectation:
    """Return the expectation of equal figures: the whole range, as far as it has an end."""
    low, high = (b if math.isfinite(b) else figure for b in bounds or (figure, figure))
    return Expectation(figure, 0.0, low, high, figure, figure, K)


def between_sites(y: Tensor, v: Tensor) -> Tensor:
    r"""Return the variance $\tau^2$ between sites; 0 where the rows explain all of the spread.

    $$\sum_k (y_k - \hat\mu)^2 / (\tau^2 + v_k) = K - 1$$

    Args:
        y: A value for each site [K].
        v: Their variances within sites [K].

    Source:
        Paule and Mandel 1982.
    """
    if not bool(v.any()):
        return y.var()

    between = (y.var() - v.mean()).clamp(min=0)
    for _ in range(STEPS):  # Newton's: the sum is convex, so that they come from below
        w = 1 / (between + v)
        squares = (y - (w * y).sum() / w.sum()).square()
        excess = (w * squares).sum() - (len(y) - 1)
        if excess.abs() <= ENOUGH * len(y) or (not between and excess < 0):
            break
        between = (between + excess / (w.square() * squares).sum()).clamp(min=0)
    return between


def unknown_spread(expected: Mapping[str, Any]) -> bool:
    """Return whether figures were equal, so that the interval is the metric's whole range.

    Args:
        expected: The fields of an `Expectation`.
    """
    of_rows = expected.get("few_rows") is not None  # then rows say how far figures may be apart
    return expected["spread"] == 0 and expected["low"] < expected["high"] and not of_rows


def mean_interval(figures: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Return the interval of the mean over sites by Student's t: m̄ ± t_{K−1, (1+level)/2} s / √K.

    Of few sites it is wider than the bootstrap's, which cannot go beyond the smallest figure.

    Args:
        figures: One for each site [K], two at least.
        level: How often such an interval holds the mean, for normal figures.
    """
    from scipy.stats import t as student

    values = torch.tensor(figures, dtype=torch.float64)
    error = float(values.std()) / math.sqrt(len(figures))
    reach = float(student.ppf((1 + level) / 2, len(figures) - 1)) * error
    return float(values.mean()) - reach, float(values.mean()) + reach


def chance(differences: Sequence[float]) -> float | None:
    """Return the chance that the difference at one new site is above 0.

    None where all are equal and not 0, or there is one: how far they vary is not known.

        P(t_{K−1} < d̄ / (s_d √(1 + 1/K)))

    Args:
        differences: What one recipe is better by than another, by site [K].

    Example:
        >>> chance([1.0, -1.0]), round(chance([1.0, 2.0, 3.0]), 3)
        (0.5, 0.887)
    """
    from scipy.stats import t as student

    K = len(differences)
    values = torch.tensor(differences, dtype=torch.float64)
    mean, spread = float(values.mean()), float(values.std()) if K > 1 else 0.0
    if spread == 0:
        return None if mean else 0.5
    return float(student.cdf(mean / (spread * math.sqrt(1 + 1 / K)), K - 1))


def sites_needed(differences: Sequence[float], comparisons: int = 1) -> int | None:
    """Return about how many sites would show a difference such as this one, in four cases of five.

    By Wilcoxon's test with Holm's correction, in its strictest step, at the level α = 0.05 / m:

        n ≥ (π / 3) n_t,   2^(1 − n) ≤ α

    n_t: of the paired t-test, whose power Wilcoxon's has with π / 3 times the sites where
    differences are normal; 2^(1 − n): the smallest p of n sites.

    Args:
        differences: What one recipe is better by than another, by site [K].
        comparisons: m, the recipes that are compared with the best.

    Returns:
        n, at least as many as there are; None where there is no difference but that of rounding.
    """
    K = len(differences)
    values = torch.tensor(differences, dtype=torch.float64)
    mean, spread = float(values.mean()), float(values.std()) if K > 1 else 0.0
    if abs(mean) <= ROUNDING * max(map(abs, differences)):
        return None
    level = SHOWN / comparisons
    smallest = 1 + math.ceil(-math.log2(level))
    by_t = pairs_needed(abs(mean) / spread, level) if spread else 2
    return max(K, smallest, math.ceil(math.pi / 3 * by_t))


def pairs_needed(effect: float, level: float) -> int:
    """Return how many pairs a two-sided t-test needs to show an effect in four cases of five.

    Args:
        effect: The mean difference in standard deviations of the differences, above 0.
        level: Of the test.

    Example:
        >>> pairs_needed(0.5, 0.05), pairs_needed(1.0, 0.05)
        (34, 10)
    """
    from scipy.stats import nct, norm
    from scipy.stats import t as student

    z = float(norm.ppf(1 - level / 2) + norm.ppf(POWER))
    n = max(2, math.ceil((z / effect) ** 2))
    if n > LARGE:
        return n
    while nct.sf(student.ppf(1 - level / 2, n - 1), n - 1, math.sqrt(n) * effect) < POWER:
        n += 1
    return n
