"""Tests of paired differences, and corrections of their p for how many tests there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unseen.errors import number
from unseen.results.statistics import mean, ranks, standard_error

#: Differences other than 0 up to which Wilcoxon's p is exact.
EXACT = 500


def wilcoxon(differences: Sequence[float]) -> float:
    """The two-sided p of Wilcoxon's signed-rank test that paired differences are around 0.

        p = min(1, 2 P(W ≤ min(W⁺, W⁻))),   W = Σ_i s_i r_i,  every s ∈ {0, 1}ⁿ equally likely

    r: ranks of |d|, where equal ones share the mean of their ranks; W⁺ and W⁻: their sums over
    the positive and over the negative differences. This is exact, with ties too: the signs are
    permuted and the sizes stay as they are. Differences of 0 are left out (Wilcoxon's own
    treatment, not Pratt's), and n counts the others; where all are 0, p = 1. Where n > 500, p is
    that of a normal W with the ties' own variance, Σ r² / 4, and a continuity correction of 1/2.
    Ties are of equal floats: round differences whose last bits mean nothing.

    >>> wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0]), wilcoxon([1.0, 1.0, 1.0, 1.0, -1.0, 0.0])
    (0.0625, 0.375)
    """
    found = [d for d in differences if d]
    if not found:
        return 1.0
    # Twice the mean ranks, which are whole.
    doubled = [round(2 * r) for r in ranks([abs(d) for d in found], lower=True)]
    above = sum(r for r, d in zip(doubled, found, strict=True) if d > 0)
    least = min(above, sum(doubled) - above)
    if len(found) > EXACT:
        return _normal(doubled, least)
    return min(1.0, 2 * _at_most(least, doubled))


def _at_most(limit: int, sizes: Sequence[int]) -> float:
    """P(Σ s_i size_i ≤ limit) for signs s ∈ {0, 1}ⁿ that are all equally likely."""
    import numpy as np

    sums = np.zeros(limit + 1)
    sums[0] = 1.0
    for size in sizes:
        sums *= 0.5
        if size <= limit:
            sums[size:] += sums[: limit + 1 - size].copy()
    return math.fsum(sums)


def _normal(doubled: Sequence[int], least: int) -> float:
    """The two-sided p of doubled ranks whose smaller sum is `least`, were that sum normal."""
    centre, deviation = sum(doubled) / 2, math.sqrt(sum(r * r for r in doubled)) / 2
    # 1/2 of a rank is 1 of its double.
    return math.erfc(max(0.0, centre - least - 1) / deviation / math.sqrt(2))


def smallest_p(pairs: int) -> float:
    """The smallest p that Wilcoxon's test can have: 2 / 2ⁿ for n differences other than 0.

    Of few pairs none can be below 0.05, whatever they show: five give 0.0625 at best, six 0.03125;
    and Holm multiplies the smallest of m by m.

    >>> smallest_p(5), smallest_p(6), smallest_p(0)
    (0.0625, 0.03125, 1.0)
    """
    number("pairs", pairs, 0, whole=True)
    return min(1.0, math.ldexp(2.0, -pairs))


@dataclass(frozen=True)
class Student:
    """A paired t-test. t: its statistic; degrees: of freedom, n − 1; p: two-sided."""

    t: float
    degrees: int
    p: float


def student(differences: Sequence[float]) -> Student | None:
    """The paired t-test that differences have mean 0; None for fewer than two.

    t = d̄ / (s / √n) with n − 1 degrees of freedom. Where all differences are equal, t is infinite
    and p = 0, or t = 0 and p = 1 if they are 0.

    >>> found = student([1.0, 2.0, 3.0])
    >>> round(found.t, 3), found.degrees, round(found.p, 4)
    (3.464, 2, 0.0742)
    """
    from scipy.stats import t as students

    if len(differences) < 2:
        return None
    centre, error, degrees = mean(differences), standard_error(differences), len(differences) - 1
    if not error:
        return Student(
            math.copysign(math.inf, centre) if centre else 0.0, degrees, float(not centre)
        )
    return Student(centre / error, degrees, 2 * float(students.sf(abs(centre) / error, degrees)))


def t_test(differences: Sequence[float]) -> float | None:
    """The p of `student`; None for fewer than two differences."""
    found = student(differences)
    return None if found is None else found.p


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the i-th smallest of m becomes max over j ≤ i of
    (m − j + 1) p_(j), at most 1. Bounds the chance that any rejection is wrong. Source: Holm, "A
    simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 1979.

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    corrected, largest = [0.0] * len(p), 0.0
    for step, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - step) * p[i]))
        corrected[i] = largest
    return corrected


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's step-up correction: the i-th smallest of m becomes min over j ≥ i of
    (m / j) p_(j), at most 1. Bounds the share of wrong rejections that is expected, for tests that
    are independent or positively dependent; Holm's bounds more and rejects less. Source:
    Benjamini and Hochberg, "Controlling the false discovery rate", JRSS B 1995.

    >>> benjamini_hochberg([0.04, 0.01, 0.03])
    [0.04, 0.03, 0.04]
    """
    m, smallest, corrected = len(p), 1.0, [0.0] * len(p)
    for j, i in zip(
        range(m, 0, -1), sorted(range(m), key=p.__getitem__, reverse=True), strict=True
    ):
        smallest = min(smallest, m * p[i] / j)
        corrected[i] = smallest
    return corrected
