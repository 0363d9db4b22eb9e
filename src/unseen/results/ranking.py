"""Mean ranks of methods over targets, and the difference that they need to count (Nemenyi)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from unseen.errors import UnseenError, number
from unseen.results.statistics import mean, ranks


@dataclass(frozen=True)
class Ranking:
    """All that a critical-difference diagram shows.

    Where there are fewer than two methods or two targets, difference and tests are None.

    Assumes that targets are independent and comparable by ranks alone. Leave-one-domain-out breaks
    the first: each target is a source of the others. Few targets make it weak: of four methods on
    four targets only ranks 2.35 apart differ, and 3 is the largest that there is.

    Attributes:
        ranks: Mean rank over targets, the best method first.
        targets: How many, N.
        alpha: The level.
        difference: Mean ranks that are less than this apart do not differ.
        groups: The largest sets of such methods, best first, which a diagram joins by bars.
        chi2: Friedman's test that all methods are alike.
        f: Iman and Davenport's F of it.
        p: The p of F.
    """

    ranks: Mapping[str, float]
    targets: int
    alpha: float
    difference: float | None
    groups: tuple[tuple[str, ...], ...]
    chi2: float | None
    f: float | None
    p: float | None

    @property
    def note(self) -> str:
        """The critical difference and Friedman's test, in a line; empty where undefined."""
        if self.difference is None or self.p is None:
            return ""
        return (
            f"critical difference of mean ranks: {self.difference:.2f} (Nemenyi, {self.alpha:g}, "
            f"{self.targets} targets); Friedman's test that all methods are alike: "
            f"{'p < 0.001' if self.p < 0.001 else f'p = {self.p:.3f}'}"
        )


def rank(
    values: Mapping[str, Sequence[float]], lower: bool = False, alpha: float = 0.05
) -> Ranking:
    """Rank methods on every target, and say which mean ranks do not differ.

    N is the number of targets, not of (target, seed) pairs: seeds repeat one target, and to count
    them would shrink the difference by √seeds with no new target seen.

    Args:
        values: Method -> one number per target, the mean over seeds.
        lower: Whether less is better.
        alpha: The level.

    Source:
        Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 2006,
        section 3.2.2; his data sets are our targets.

    >>> ranking = rank({"a": [0.9, 0.8, 0.9], "b": [0.8, 0.7, 0.8], "c": [0.7, 0.6, 0.7]})
    >>> ranking.ranks, round(ranking.difference, 2), ranking.groups
    ({'a': 1.0, 'b': 2.0, 'c': 3.0}, 1.91, (('a', 'b'), ('b', 'c')))
    """
    number("alpha", alpha, 0, 1)
    if len({len(row) for row in values.values()}) > 1 or not all(values.values()):
        raise UnseenError("ranks need as many numbers, one per target, of every method.")
    columns = [ranks(column, lower) for column in zip(*values.values(), strict=True)]
    means = {m: mean(row) for m, row in zip(values, zip(*columns, strict=True), strict=True)}
    ordered = dict(sorted(means.items(), key=lambda item: item[1]))
    if len(values) < 2 or len(columns) < 2:
        return Ranking(ordered, len(columns), alpha, None, (), None, None, None)
    apart = critical_difference(len(values), len(columns), alpha)
    return Ranking(
        ordered, len(columns), alpha, apart, _groups(ordered, apart), *friedman(columns)
    )  # fmt: skip


def critical_difference(methods: int, targets: int, alpha: float = 0.05) -> float:
    """Nemenyi's: q_α √(k(k + 1) / 6N), q_α the studentized range of k at infinite df, over √2.

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - alpha, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * targets))


def friedman(columns: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Friedman's χ², Iman and Davenport's F of it, and the p of F.

    χ² = 12N / (k(k + 1)) · [Σ_j R_j² − k(k + 1)² / 4];  F = (N − 1) χ² / (N(k − 1) − χ²), with
    k − 1 and (k − 1)(N − 1) degrees of freedom. columns: the ranks of k methods on each of N
    targets. Not corrected for ties, which make it careful. Source: Demšar 2006, section 3.2.2.
    """
    from scipy.stats import f

    N, k = len(columns), len(columns[0])
    # Ranks are multiples of a half, so fractions keep N(k − 1) − χ² from missing 0 by rounding.
    sums = [sum(map(Fraction, row)) for row in zip(*columns, strict=True)]
    chi2 = 12 * sum(s * s for s in sums) / Fraction(N * k * (k + 1)) - 3 * N * (k + 1)
    rest = N * (k - 1) - chi2
    F = float((N - 1) * chi2 / rest) if rest else math.inf
    return float(chi2), F, float(f.sf(F, k - 1, (k - 1) * (N - 1)))


def _groups(ordered: Mapping[str, float], apart: float) -> tuple[tuple[str, ...], ...]:
    """The longest runs of methods whose first and last are less than `apart` apart."""
    names, groups, reached = list(ordered), [], 0
    for i, first in enumerate(names):
        end = sum(ordered[name] - ordered[first] < apart for name in names)
        if end > max(reached, i + 1):
            groups.append(tuple(names[i:end]))
            reached = end
    return tuple(groups)
