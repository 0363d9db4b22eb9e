"""Numbers about runs: means with errors and intervals, mean ranks (Nemenyi), a table's cell."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from unseen.errors import UnseenError, number

#: Bootstrap samples, each as large as what it is drawn from.
RESAMPLES = 9999


def mean(values: Sequence[float]) -> float:
    """Return Σ x_i / n, exact before it is rounded: equal values give that value, in any order.

    Example:
        >>> mean([0.8, 0.8, 0.8])
        0.8
    """
    if not values:
        raise UnseenError("the mean of no values is not defined.", remedy="Give at least one.")
    return float(statistics.mean(values))


def comparable(figure: float) -> float:
    """Return the figure to twelve digits, since means that should be equal may differ by rounding.

    Example:
        >>> 0.1 + 0.5 == 0.2 + 0.4, comparable(0.1 + 0.5) == comparable(0.2 + 0.4)
        (False, True)
    """
    return float(f"{figure:.12g}")


def standard_error(values: Sequence[float]) -> float | None:
    """Return s / √n, the standard error of the mean, with s² = Σ (x_i - x̄)² / (n - 1).

    Returns:
        The error; None for n = 1.

    Example:
        >>> standard_error([1.0, 2.0, 3.0, 4.0, 5.0]) == math.sqrt(0.5)
        True
    """
    if not values:
        what = "the standard error of no values is not defined."
        raise UnseenError(what, remedy="Give at least two.")
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Return a percentile bootstrap interval of the mean, from 9999 samples.

    The ends are the (1 ± level) / 2 quantiles of the means of samples of n drawn with replacement.
    The draws are keyed, so the same values in any order give the same interval.

    Args:
        values: One number per seed.
        level: The share of the sampled means that lie between the ends.

    Returns:
        The ends; None for n = 1.

    Note:
        Over seeds it is about further seeds with these targets and their examples, never about
        other targets. With few seeds it is too narrow: with 2 or 3 it is their range, which holds
        the mean of many (normal) seeds one time in two, or three in four. It is not BCa, whose two
        corrections would be estimated from those same few values.

    Source:
        Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, section 13.3.

    Example:
        >>> interval([0.80, 0.82, 0.84])
        (0.8, 0.84)
    """
    import torch

    from unseen.core.metrics.bootstrap import ends, resamples
    from unseen.core.turn import keyed

    number("level", level, 0, 1, open_low=True)
    if len(values) < 2:
        return None
    ordered = torch.tensor(sorted(values), dtype=torch.float64)
    draws = resamples(len(values), RESAMPLES, keyed("bootstrap"))
    samples = torch.cat([ordered[index] for index in draws])
    order = samples.mean(1).argsort(stable=True)
    # The means of the two samples again, exactly: equal values give that value.
    low, high = sorted(mean(samples[order[at]].tolist()) for at in ends(RESAMPLES, level))
    return low, high


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile at a share, linear between the two nearest order statistics.

    Args:
        values: At least one number.
        share: In [0, 1].

    Source:
        Hyndman and Fan, "Sample quantiles in statistical packages", The American Statistician 1996,
        type 7, which is numpy's default.

    Example:
        >>> quantile([5.0, 1.0, 2.0, 3.0, 4.0], 0.1)
        1.4
    """
    if not values:
        raise UnseenError("a quantile of no values is not defined.", remedy="Give at least one.")
    number("share", share, 0, 1)
    ordered = sorted(values)
    rest, below = math.modf(share * (len(ordered) - 1))
    low, high = (ordered + ordered[-1:])[int(below) : int(below) + 2]
    return low + rest * (high - low)


def ranks(values: Sequence[float], lower: bool = False) -> list[float]:
    """Return ranks from 1 for the best; equal values share the mean of their ranks.

    Args:
        values: The numbers to rank.
        lower: Whether less is better.

    Example:
        >>> ranks([0.9, 0.7, 0.9, 0.8])
        [1.5, 4.0, 1.5, 3.0]
    """
    ordered = sorted(values, reverse=not lower)
    return [ordered.index(x) + (ordered.count(x) + 1) / 2 for x in values]


@dataclass(frozen=True)
class Ranking:
    """All that a critical-difference diagram shows.

    Attributes:
        ranks: Mean rank over targets, the best method first.
        targets: How many targets there are, N.
        alpha: The level.
        difference: Mean ranks that are less than this apart do not differ.
        groups: The largest sets of such methods, best first, which a diagram joins by bars.
        chi2: Friedman's test that all methods are alike.
        f: Iman and Davenport's F of it.
        p: The p of F.

    Note:
        Where there are fewer than two methods or two targets, difference and tests are None.
        Assumes that targets are independent and comparable by ranks alone. Leave-one-domain-out
        breaks the first: each target is a source of the others. Few targets make it weak: of four
        methods on four targets only ranks 2.35 apart differ, and no two can be more than 3 apart.
    """

    ranks: Mapping[str, float]
    targets: int
    alpha: float
    difference: float | None = None
    groups: tuple[tuple[str, ...], ...] = ()
    chi2: float | None = None
    f: float | None = None
    p: float | None = None

    @property
    def note(self) -> str:
        """The critical difference and Friedman's test, in a line; empty where undefined."""
        if self.difference is None or self.p is None:
            return ""
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        return (
            f"critical difference of mean ranks: {self.difference:.2f} (Nemenyi, {self.alpha:g}, "
            f"{self.targets} targets); Friedman's test that all methods are alike, by Iman and "
            f"Davenport's F: {p}"
        )


def rank(
    values: Mapping[str, Sequence[float]], lower: bool = False, alpha: float = 0.05
) -> Ranking:
    """Rank methods on every target, and say which mean ranks do not differ.

    Args:
        values: Method -> one number per target, the mean over seeds.
        lower: Whether less is better.
        alpha: The level.

    Source:
        Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 2006,
        section 3.2.2; his data sets are our targets.

    Note:
        N is the number of targets, not of (target, seed) pairs: seeds repeat one target, and to
        count them would shrink the difference by √seeds with no new target seen.

    Example:
        >>> ranking = rank({"a": [0.9, 0.8, 0.9], "b": [0.8, 0.7, 0.8], "c": [0.7, 0.6, 0.7]})
        >>> ranking.ranks, round(ranking.difference, 2), ranking.groups
        ({'a': 1.0, 'b': 2.0, 'c': 3.0}, 1.91, (('a', 'b'), ('b', 'c')))
    """
    number("alpha", alpha, 0, 1)
    if len({len(row) for row in values.values()}) > 1 or not all(values.values()):
        raise UnseenError("ranks need one number per target of every method.")
    columns = [ranks(column, lower) for column in zip(*values.values(), strict=True)]
    means = {m: mean(row) for m, row in zip(values, zip(*columns, strict=True), strict=True)}
    ordered = dict(sorted(means.items(), key=lambda item: item[1]))
    if len(values) < 2 or len(columns) < 2:
        return Ranking(ordered, len(columns), alpha)
    apart = critical_difference(len(values), len(columns), alpha)
    groups = _groups(ordered, apart)
    return Ranking(ordered, len(columns), alpha, apart, groups, *friedman(columns))


def critical_difference(methods: int, targets: int, alpha: float = 0.05) -> float:
    """Return Nemenyi's critical difference q_α √(k(k + 1) / 6N).

    q_α is the studentized range of k at infinite degrees of freedom, over √2.

    Args:
        methods: How many methods there are, k.
        targets: How many targets there are, N.
        alpha: The level, α.

    Example:
        >>> round(critical_difference(4, 14), 2)
        1.25
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - alpha, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * targets))


def friedman(columns: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return Friedman's χ², Iman and Davenport's F of it, and the p of F.

    χ² = 12N / (k(k + 1)) · [Σ_j R_j² − k(k + 1)² / 4];  F = (N − 1) χ² / (N(k − 1) − χ²), with
    k − 1 and (k − 1)(N − 1) degrees of freedom.

    Args:
        columns: The ranks [N, k] of k methods on each of N targets.

    Note:
        It is not corrected for ties, which make it careful. Where all targets rank the methods
        alike F is infinite, and p is the chance of that, k!^(1 − N).

    Source:
        Demšar 2006, section 3.2.2.
    """
    from scipy.stats import f

    N, k = len(columns), len(columns[0])
    # Ranks are multiples of a half, so fractions keep N(k − 1) − χ² from missing 0 by rounding.
    sums = [sum(map(Fraction, row)) for row in zip(*columns, strict=True)]
    chi2 = 12 * sum(s * s for s in sums) / Fraction(N * k * (k + 1)) - 3 * N * (k + 1)
    rest = N * (k - 1) - chi2
    if not rest:
        return float(chi2), math.inf, float(math.factorial(k)) ** (1 - N)
    F = float((N - 1) * chi2 / rest)
    return float(chi2), F, float(f.sf(F, k - 1, (k - 1) * (N - 1)))


def _groups(ordered: Mapping[str, float], apart: float) -> tuple[tuple[str, ...], ...]:
    """Return the longest runs of methods whose first and last are less than `apart` apart."""
    names, groups, last = tuple(ordered), [], 0
    for i, first in enumerate(names):
        end = sum(ordered[name] - ordered[first] < apart for name in names)
        if end > max(last, i + 1):
            groups.append(names[i:end])
            last = end
    return tuple(groups)


@dataclass(frozen=True)
class Cell:
    """One number per seed for which it is defined.

    Attributes:
        values: The numbers.
        undefined: How many finished seeds have none.
        seeds: How many seeds were asked for.
        applies: Whether the method can run there at all.

    Example:
        >>> Cell((0.5, 0.75), undefined=0, seeds=3).text("{:.2f}".format)
        '0.62 ± 0.12 (2/3 seeds)'
    """

    values: tuple[float, ...]
    undefined: int
    seeds: int
    applies: bool = True

    @property
    def complete(self) -> bool:
        """Whether every seed has a number. Only such cells are compared."""
        return self.applies and len(self.values) == self.seeds > 0

    def fields(self) -> tuple[float | str, float | None, int]:
        """Return mean, standard error and number of seeds.

        Returns:
            In place of the mean `n/a`, `undefined` or nothing where there is no number.
        """
        if not self.applies:
            return "n/a", None, 0
        if not self.values:
            return "undefined" if self.undefined else "", None, 0
        return mean(self.values), standard_error(self.values), len(self.values)

    def interval(self) -> tuple[float | None, float | None]:
        """Return the ends of the mean's bootstrap interval; None where there are no two seeds."""
        return (interval(self.values) if self.applies else None) or (None, None)

    def raw_fields(self) -> list[float | str | None]:
        """Return mean, standard error, the interval's ends and the number of seeds.

        Returns:
            None for an undefined mean, so that a column of means holds numbers.
        """
        value, error, n = self.fields()
        return [None if value == "undefined" else value, error, *self.interval(), n]

    def text(self, write: Callable[[float], str]) -> str:
        """Return mean ± standard error, and what keeps the cell from being complete.

        Args:
            write: Writes one number.
        """
        value, error, n = self.fields()
        finished = n + self.undefined
        remarks = [f"{finished}/{self.seeds} seeds"] * (finished < self.seeds)
        if not self.applies or not finished:
            return str(value) or remarks[0]
        remarks += [f"{self.undefined} undefined"] * bool(n and self.undefined)
        text = value if isinstance(value, str) else write(value)
        if error is not None:
            text += f" ± {write(error)}"
        return f"{text} ({', '.join(remarks)})" if remarks else text
