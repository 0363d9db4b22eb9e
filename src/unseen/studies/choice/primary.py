"""The one comparison that an answer is read by, and what few sites can and cannot show."""

import math
from dataclasses import dataclass
from statistics import fmean

from unseen.studies.choice.expectation import mean_interval
from unseen.studies.choice.trials import BASE, REFERENCES, Trials
from unseen.studies.results.comparison import LEVEL as ALPHA

#: The simplest recipe, which the usual one is compared with.
SIMPLEST = "glm"


@dataclass(frozen=True)
class Primary:
    """The recommended recipe against one other, at the sites left out.

    Attributes:
        against: The other recipe.
        gap: What the recipe is better by, the mean over sites; below 0 where it is worse.
        low, high: The interval of this mean by Student's t.
        ahead, sites: At how many sites it is better, of how many.
    """

    against: str
    gap: float
    low: float
    high: float
    ahead: int
    sites: int


def primary(trials: Trials, recipe: str) -> Primary | None:
    """Return the recommended recipe against FedAvg, or FedAvg against the simplest other recipe.

    Args:
        trials: All recipes.
        recipe: The one that is recommended.
    """
    figures = trials.at(trials.sites)
    others = [name for name in figures if name not in REFERENCES and name != recipe]
    if not others or len(trials.sites) < 2:
        return None
    usual = [name for name in (BASE, SIMPLEST) if name in others]
    against = [*usual, *sorted(others, key=lambda name: trials.by_recipe[name].upload)][0]
    gaps = trials.gaps(recipe, against)
    low, high = mean_interval(gaps)
    return Primary(against, fmean(gaps), low, high, sum(gap > 0 for gap in gaps), len(gaps))


def shows(sites: int, comparisons: int) -> bool:
    """Return whether Wilcoxon's test over these sites can fall below 0.05 after Holm.

    Example:
        >>> shows(4, 1), shows(6, 1), shows(6, 8)
        (False, True, False)
    """
    return bool(2.0 ** (1 - sites) * max(1, comparisons) <= ALPHA)


def halving(sites: int) -> int:
    """Return the number of sites that would halve the interval of the mean.

        t_{n−1} / √n ≤ ½ t_{K−1} / √K

    Example:
        >>> halving(4), halving(30)
        (10, 115)
    """
    from scipy.stats import t as student

    def width(n: int) -> float:
        return float(student.ppf(0.95, n - 1)) / math.sqrt(n)

    n = sites + 1
    while width(n) > width(sites) / 2:
        n += 1
    return n
