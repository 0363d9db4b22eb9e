"""What figures at sites left out say of a site that nobody has seen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from unseen.core.turn import keyed
from unseen.errors import UnseenError
from unseen.metrics.bootstrap import bootstrap, interval

#: Of intervals; samples of the bootstrap over sites.
LEVEL, SAMPLES = 0.9, 10_000
#: The level at which a difference is shown, and how often it is to be.
SHOWN, POWER = 0.05, 0.8
#: A mean this small beside the largest difference is rounding; from so many pairs on t is normal.
ROUNDING, LARGE = 1e-9, 1_000_000


@dataclass(frozen=True)
class Expectation:
    """What to expect at a new site.

    Attributes:
        mean: m̄, the mean over sites.
        spread: s, the standard deviation between sites, with K − 1 degrees of freedom.
        low, high: The prediction interval of one new site's figure.
        mean_low, mean_high: The bootstrap interval of the mean over sites.
        sites: K.
    """

    mean: float
    spread: float
    low: float
    high: float
    mean_low: float
    mean_high: float
    sites: int


def expect(
    figures: Sequence[float], level: float = LEVEL, bounds: tuple[float, float] | None = None
) -> Expectation:
    """Return what to expect of a draw from where the sites are drawn from.

        m̄ ± t_{K−1, (1+level)/2} s √(1 + 1/K)

    Args:
        figures: One figure for each site, at a model that was trained without it [K].
        level: The share of new sites inside.
        bounds: What a figure cannot leave, as 0 and 1: the interval is cut there. Where all figures
            are equal, those that are finite are its ends.

    Raises:
        UnseenError: If there are fewer than two sites.

    Source:
        Higgins, Thompson and Spiegelhalter 2009, "A re-evaluation of random-effects meta-analysis",
        Eq. 12, where sites are large, with K − 1 degrees of freedom.

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
    mean, spread = float(values.mean()), float(values.std())
    reach = float(student.ppf((1 + level) / 2, K - 1)) * spread * math.sqrt(1 + 1 / K)
    samples = bootstrap({"mean": lambda w: w @ values / K}, K, SAMPLES, keyed("choose/sites"))
    mean_low, mean_high = interval(samples["mean"], level) or (mean, mean)
    low, high = mean - reach, mean + reach
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
        if not spread:  # equal figures, of few rows, do not say how far apart sites are
            low, high = (b if math.isfinite(b) else mean for b in bounds)
    return Expectation(mean, spread, low, high, mean_low, mean_high, K)


def unknown_spread(expected: Mapping[str, float]) -> bool:
    """Return whether figures were equal, so that the interval is the metric's whole range.

    Args:
        expected: The fields of an `Expectation`.
    """
    return expected["spread"] == 0 and expected["low"] < expected["high"]


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


def chance_share(figures: Sequence[float], rows: Sequence[int]) -> float:
    """Return how much of the spread between sites is that of few rows, for shares of rows.

        (1/K Σ_k p_k (1 − p_k) / n_k) / s²,   at most 1

    Args:
        figures: Accuracies p_k [K].
        rows: n_k [K].
    """
    values = torch.tensor(figures, dtype=torch.float64)
    within = (values * (1 - values) / torch.tensor(rows, dtype=torch.float64)).mean()
    variance = values.var()
    return 1.0 if variance <= within else float(within / variance)
