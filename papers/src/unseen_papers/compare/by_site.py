"""Methods compared with the site as the unit: means over seeds first, then tests over sites.

A seed is not another site. What a study says of sites that nobody has seen rests on the sites that
it left out: their number decides what a test can show.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from unseen.core.metrics.evaluation import IN_UNITS, RANGES
from unseen.errors import UnseenError, check_known
from unseen.studies.results.comparison import holm, wilcoxon
from unseen.studies.results.selection import less_is_better
from unseen.studies.results.statistics import interval, mean, quantile, ranks
from unseen_papers.compare.paired import detectable, equivalence, permuted
from unseen_papers.compare.seeds_by_site import BySeed, difference

#: Sites from which on a test over them is a claim; of fewer it is printed with this said.
ENOUGH = 9


@dataclass(frozen=True)
class Sites:
    """Figures of one data set by method and site.

    Attributes:
        name: What the data set is called.
        metric: What the figures are.
        figures: Method -> site -> the mean over seeds.
        seeds: The fewest seeds that a figure is the mean of.
        lines: Where the figures come from, a line for each study.
        groups: Sites that were left out together.
        budgets: Study -> its search, rounds and recipe, in words; rows differ where these do.
        classes: Whether labels are classes, whose loss has no unit.
        plan: The study's hold-out, as its settings have it.
        by_seed: Method -> site -> seed -> its figure, where that is known.
        expressions: Method -> its expression, where it is called otherwise.
        alone: Methods whose figures are means over models of single sites.
    """

    name: str
    metric: str
    figures: Mapping[str, Mapping[str, float]]
    seeds: int
    lines: tuple[str, ...] = ()
    groups: frozenset[frozenset[str]] = frozenset()
    budgets: Mapping[str, str] = field(default_factory=dict)
    classes: bool = True
    plan: str = ""
    by_seed: Mapping[str, BySeed] = field(default_factory=dict)
    expressions: Mapping[str, str] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()

    @property
    def lower(self) -> bool:
        return less_is_better(self.metric)

    def among(self, methods: Sequence[str]) -> tuple[str, ...]:
        """Return the sites where each of these methods has a figure, sorted."""
        for method in methods:
            check_known("method", self.figures, method)
        common = set.intersection(*(set(self.figures[method]) for method in methods))
        return tuple(sorted(common))

    def row(self, method: str) -> Row:
        """Return what a table says of a method."""
        own = list(self.figures[method].values())
        worst = max(own) if self.lower else min(own)
        tail = quantile(own, 0.9 if self.lower else 0.1)
        return Row(mean(own), interval(own), worst, tail, len(own))


@dataclass(frozen=True)
class Row:
    """A method at the sites of one data set.

    Attributes:
        mean: The mean over sites.
        interval: Its bootstrap interval over sites; None of one site.
        worst: The worst site's figure.
        tail: The tenth percentile over sites from the worse end.
        sites: How many there are.
    """

    mean: float
    interval: tuple[float, float] | None
    worst: float
    tail: float
    sites: int


@dataclass(frozen=True)
class Effect:
    """How much better one method is than another, by site; above 0 it is better.

    Attributes:
        method, other: The two.
        differences: Site -> the difference.
        mean: Their mean.
        interval: Its bootstrap interval over sites.
        p: Wilcoxon's, two-sided.
        signs: p of the mean when the sites' signs are permuted, two-sided.
        corrected: p after Holm's correction over the comparisons of one declaration.
        equivalent: p of two one-sided t-tests that the mean is within ± the margin.
        declared: The comparisons of the declaration, those that have not run among them.
        detectable: See `detectable`.
    """

    method: str
    other: str
    differences: Mapping[str, float]
    mean: float
    interval: tuple[float, float] | None
    p: float
    signs: float
    corrected: float
    equivalent: float | None
    detectable: float | None
    declared: int = 1

    @property
    def wins(self) -> int:
        return sum(d > 0 for d in self.differences.values())


def effects(sites: Sites, method: str, others: Sequence[str]) -> tuple[Effect, ...]:
    """Return one method against each of others that has run, corrected over all of them.

    Args:
        sites: The figures.
        method: The method that is claimed to be better.
        others: The comparisons of one declaration.
    """
    raw = [effect(sites, method, other) for other in others if other in sites.figures]
    corrected, declared = holm([one.p for one in raw], len(others)), len(others)
    return tuple(
        replace(one, corrected=p, declared=declared) for one, p in zip(raw, corrected, strict=True)
    )


def effect(sites: Sites, method: str, other: str) -> Effect:
    """Return one method against another at the sites where both have a figure."""
    sign = -1 if sites.lower else 1
    ours, theirs = (
        sites.by_seed.get(m) or {site: {0: x} for site, x in sites.figures[m].items()}
        for m in (method, other)
    )
    by_site = {
        site: round(sign * difference(ours, theirs, site), 12)
        for site in sites.among([method, other])
    }
    d = list(by_site.values())
    if not d:
        raise UnseenError(f"{method} and {other} have no site of {sites.name} in common.")
    p = wilcoxon(d)
    return Effect(
        method, other, by_site, mean(d), interval(d), p, permuted(d), p, equivalence(d),
        detectable(d),
    )  # fmt: skip


@dataclass(frozen=True)
class Across:
    """One method against others over data sets, each set one figure: its mean over sites.

    Attributes:
        sets: How many data sets have all methods.
        ranks: Method -> its mean rank over sets.
        friedman: p that all methods are alike; None for fewer than three methods or two sets.
        corrected: Other method -> Wilcoxon's p over the sets, Holm-corrected.
        tested: Of how many sets, those whose figures have one unit.
    """

    sets: int
    ranks: Mapping[str, float]
    friedman: float | None
    corrected: Mapping[str, float]
    tested: int = 0


def across(every: Iterable[Sites], method: str, others: Sequence[str], declared: int = 0) -> Across:
    """Compare methods over the data sets that have all of them.

    Args:
        every: The figures of each data set.
        method: The method that is claimed to be better.
        others: Those that it is compared with.
        declared: See `holm`.

    Note:
        Ranks within a set need no unit. Wilcoxon's test ranks differences of several sets, so it is
        of those with one unit: shares between 0 and 1, or the metric that most of them have.

    Source:
        Demšar 2006, "Statistical Comparisons of Classifiers over Multiple Data Sets", §3.1.3.
    """
    from scipy.stats import friedmanchisquare

    methods = (method, *others)
    whole = [sites for sites in every if set(methods) <= set(sites.figures)]
    rows = [
        [round((-1 if s.lower else 1) * mean(list(s.figures[m].values())), 12) for m in methods]
        for s in whole
    ]
    by_rank = np.mean([ranks(row) for row in rows], 0) if rows else [math.nan] * len(methods)
    enough = len(methods) > 2 and len(rows) > 1
    p = float(friedmanchisquare(*zip(*rows, strict=True)).pvalue) if enough else None
    units = Counter(unit for sites in whole if (unit := unit_of(sites)))
    common = units.most_common(1)[0][0] if units else ""
    alike = [r for r, s in zip(rows, whole, strict=True) if common and unit_of(s) == common]
    raw = [wilcoxon([round(row[0] - row[i], 12) for row in alike]) for i in range(1, len(methods))]
    corrected = holm(raw, declared) if alike else []
    named = zip(methods, map(float, by_rank), strict=True)
    tests = dict(zip(others, corrected, strict=False))
    return Across(len(whole), dict(named), p, tests, len(alike))


def unit_of(sites: Sites) -> str:
    """Return what differences of a metric are measured in; "" for the unit of the data."""
    if sites.metric in IN_UNITS or (sites.metric == "loss" and not sites.classes):
        return ""
    return "share" if RANGES.get(sites.metric) == (0.0, 1.0) else sites.metric
