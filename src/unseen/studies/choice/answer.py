"""Which recipe for the next site: expectations, chances, and what they are worth."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unseen.core.rule import Sees
from unseen.errors import UnseenError
from unseen.studies.choice.constant import Constant, against_constant
from unseen.studies.choice.expectation import (
    LEVEL,
    Expectation,
    chance,
    expect,
    sites_needed,
    weighted_mean,
)
from unseen.studies.choice.primary import Primary, primary
from unseen.studies.choice.rates import settings_of
from unseen.studies.choice.texts import figure_text
from unseen.studies.choice.trials import ALONE, BASE, CONSTANT, REFERENCES, VIEWS, Trials
from unseen.studies.choice.within_sites import Sites, variances
from unseen.studies.results.comparison import LEVEL as ALPHA
from unseen.studies.results.comparison import agree, holm, wilcoxon
from unseen.studies.results.metric_name import MetricName

#: A site with this many times fewer rows than the median site is named.
TINY = 10


@dataclass(frozen=True)
class Row:
    """One recipe.

    Attributes:
        recipe: Its expression.
        expected: What to expect at a new site.
        worst: The worst site and its figure.
        against: Recipe -> the chance to be better than it at a new site, for `BASE`, `ALONE` and
            `CONSTANT`, where these sites say how far it varies.
        p: Of the best recipe against this one, Wilcoxon's over sites, after Holm; None for itself
            and for what cannot be chosen.
        factor: Of the study's learning rate, the best over all sites.
        sees: What its server must see.
        sent: Bytes that leave one site in one training.
        seconds: Of one training.
    """

    recipe: str
    expected: Expectation
    worst: tuple[str, float]
    against: Mapping[str, float]
    p: float | None
    factor: float
    sees: Sees
    sent: float
    seconds: float


class Verdict(NamedTuple):
    """What the sites say of the recipes.

    Attributes:
        recipe: What is recommended.
        best: The recipe with the best mean.
        tied: Those that the sites cannot tell from the best.
        p: Recipe -> p of the best against it.
    """

    recipe: str
    best: str
    tied: tuple[str, ...]
    p: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """The answer.

    Attributes:
        recipe: What is recommended.
        best: The recipe with the best mean.
        tied: Those that the sites cannot tell from the best.
        rows: All recipes, best first.
        metric: What they are compared by.
        lower: Whether less is better.
        procedure: What to expect of choosing so: each site's figure under the recipe that the other
            sites recommend.
        changes: What would change the answer, in sentences.
        refused: Recipe -> why it has no figures.
        groups: Group -> its sites.
        data: The data set and its digest.
        study: The settings of a study that trains the recommended recipe at all sites.
        figures: Recipe -> site -> figure.
        rows_at: Site -> the rows that its figures are of.
        constant: The recommended recipe against an answer that looks at no input, where there are
            figures of one.
        primary: The recommended recipe against one other; None where there is no other.
        unfinished: Recipe -> what of its training was not finished, in words.
        not_tried: Recipe for such data that was not played -> what it would take, if known.
        doubts: What the data themselves say against the figures.
        flat: Whether networks trained until flat.
    """

    recipe: str
    best: str
    tied: tuple[str, ...]
    rows: tuple[Row, ...]
    metric: str
    lower: bool
    procedure: Expectation
    changes: tuple[str, ...]
    refused: Mapping[str, str]
    groups: Mapping[str, tuple[str, ...]]
    data: str
    study: Mapping[str, Any]
    figures: Mapping[str, Mapping[str, float]]
    rows_at: Mapping[str, int]
    constant: Constant | None = None
    primary: Primary | None = None
    unfinished: Mapping[str, str] = field(default_factory=dict)
    not_tried: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    flat: bool = False

    def row(self, recipe: str) -> Row:
        """Return the row of a recipe."""
        return next(row for row in self.rows if row.recipe == recipe)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return asdict(self)


def choose(trials: Trials, level: float = LEVEL) -> Choice:
    """Return the recipe for the next site.

    The best recipe is the one with the best mean over sites. Those that Wilcoxon's test over sites,
    corrected for their number, cannot tell from it are tied with it; which of these is recommended,
    `cheapest` says.

    Args:
        trials: The figures.
        level: Of the intervals.

    Raises:
        UnseenError: If fewer than two groups have figures of every recipe.
    """
    check_groups(trials)
    sites, figures = trials.sites, trials.at(trials.sites)
    recipe, best, tied, p = verdict(trials, sites)
    procedure = left_out(trials)
    expected = {name: expectation(trials, sites, own, level, name) for name, own in figures.items()}
    order = sorted(figures, key=lambda name: -trials.sign * expected[name].mean)
    return Choice(
        recipe=recipe,
        best=best,
        tied=tied,
        rows=tuple(row(trials, name, p.get(name), expected[name]) for name in order),
        metric=trials.metric,
        lower=trials.lower,
        procedure=expectation(trials, [*procedure], [*procedure.values()], level),
        changes=tuple(changes(trials, recipe, best, expected[recipe])),
        refused=trials.refused,
        groups=trials.groups,
        data=trials.data,
        study=settings_of(trials, recipe),
        figures={name: dict(zip(sites, own, strict=True)) for name, own in figures.items()},
        rows_at={site: trials.rows[site] for site in sites},
        constant=against_constant(trials, recipe),
        primary=primary(trials, recipe),
        unfinished=trials.unfinished,
        not_tried=trials.not_tried,
        doubts=trials.doubts,
        flat=trials.flat,
    )


def expectation(
    trials: Trials, sites: Sequence[str], figures: Sequence[float], level: float, name: str = ""
) -> Expectation:
    """Return what figures at sites say of a new one.

    Args:
        trials: What was played.
        sites: Those of the figures.
        figures: One for each [K].
        level: Of the interval.
        name: The recipe.
    """
    if name == CONSTANT and len({*figures}) == 1:  # exact, not due to few rows
        return expect(figures, level)
    return expect(figures, level, *within_sites(trials, sites, figures))


def within_sites(
    trials: Trials, sites: Sequence[str], figures: Sequence[float]
) -> tuple[tuple[float, float] | None, Tensor, Tensor | None]:
    """Return a metric's bounds, and of figures at sites the rows [K] and variances by these [K]."""
    rows, positives = Sites(trials.rows, trials.positives).at(sites)
    values = torch.tensor(figures, dtype=torch.float64)
    bounds = MetricName.parse(trials.metric).range
    return bounds, rows, variances(trials.metric, values, rows, positives)


def check_groups(trials: Trials) -> None:
    """Refuse figures at the sites of one group: no others could recommend a recipe for it."""
    able = trials.groups_with_figures
    if len(able) < 2:
        lacking = ", ".join(name for name in trials.groups if name not in able)
        raise UnseenError(
            f"every recipe needs {trials.metric} at the sites of two groups at least; at those of "
            f"{lacking} a recipe diverged, or {trials.metric} has no value.",
            remedy="Choose by another metric, or by fewer recipes.",
        )


def verdict(trials: Trials, sites: Sequence[str]) -> Verdict:
    """Return what these sites say of the recipes."""
    figures = trials.at(sites)
    able = [name for name in figures if name not in REFERENCES]
    best = leader(trials, able, sites)
    others = [name for name in able if name != best]
    gaps = [trials.gaps(best, name, sites) for name in others]
    tests = [wilcoxon(gap) if agree(gap) else 1.0 for gap in gaps]
    p = dict(zip(others, holm(tests), strict=True))
    tied = (best, *(name for name in others if p[name] >= ALPHA))
    return Verdict(cheapest(trials, tied, sites), best, tied, p)


def leader(trials: Trials, names: Sequence[str], sites: Sequence[str]) -> str:
    """Return the recipe with the best expectation at a new site."""
    figures = trials.at(sites)

    def score(name: str) -> float:
        own = figures[name]
        return trials.sign * weighted_mean(own, *within_sites(trials, sites, own))

    return max(names, key=score)


def cheapest(trials: Trials, tied: Sequence[str], sites: Sequence[str]) -> str:
    """Return the recipe that is recommended of those that the sites cannot tell from the best.

    A recipe whose server must see more (inner products for sums, every site's model for these) has
    to be ahead by the test. Of those whose server sees least, it is the one that sends the fewest
    bytes within one standard error of the best mean among them, s_d / √K of the differences d to
    it: with few sites no test tells anything apart, and bytes alone would decide. Seconds have no
    say, since they differ by the run.

    Args:
        trials: All recipes.
        tied: Those to choose from.
        sites: Those that have a say.

    Source:
        Breiman, Friedman, Olshen and Stone 1984, "Classification and Regression Trees", §3.4.3,
        the 1 SE rule.
    """
    by_recipe = trials.by_recipe
    least = min(VIEWS.index(by_recipe[name].sees) for name in tied)
    discreet = [name for name in tied if VIEWS.index(by_recipe[name].sees) == least]
    first = leader(trials, discreet, sites)

    def near(name: str) -> bool:
        gaps = trials.gaps(first, name, sites)
        return fmean(gaps) <= (stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0)

    return min(filter(near, discreet), key=lambda name: by_recipe[name].upload)


def row(trials: Trials, name: str, p: float | None, expected: Expectation) -> Row:
    """Return what is said of one recipe; see `Row`."""
    trial, sites, figures = trials.by_recipe[name], trials.sites, trials.at(trials.sites)
    own = dict(zip(sites, figures[name], strict=True))
    worst = min(sites, key=lambda site: trials.sign * own[site])
    against: dict[str, float] = {}
    for other in (BASE, ALONE, CONSTANT):
        if other in figures and other != name:
            better = chance(trials.gaps(name, other))
            if better is not None:
                against[other] = better
    return Row(
        name,
        expected,
        (worst, own[worst]),
        against,
        p,
        trial.best,
        trial.sees,
        trial.upload,
        trial.seconds,
    )


def left_out(trials: Trials) -> dict[str, float]:
    """Return site -> its figure under the recipe that the sites of the other groups recommend."""
    figures: dict[str, float] = {}
    for own in trials.groups.values():
        others = [site for site in trials.sites if site not in own]
        recommended = trials.by_recipe[verdict(trials, others).recipe].figures
        figures |= {site: recommended[site] for site in own if site in trials.sites}
    return {site: figures[site] for site in trials.sites}


def changes(trials: Trials, recipe: str, best: str, expected: Expectation) -> list[str]:
    """Return sentences on what would change the answer."""
    sentences, sites, figures = [], trials.sites, trials.at(trials.sites)
    if recipe != best:
        gap = trials.gaps(best, recipe)
        able = [name for name in figures if name not in REFERENCES]
        needed = sites_needed(gap, len(able) - 1)
        size = figure_text(abs(sum(gap)) / len(gap), trials.metric, gap=True)
        sentences.append(
            f"More sites: {best} is ahead of {recipe} by {size} on average. If that is so at all "
            f"sites, some {needed} sites would show it, four times in five; here are {len(sites)}."
            if needed is not None
            else f"More sites: {best} and {recipe} have the same mean, and differ in cost alone."
        )
    if lacking := [s for group in trials.groups.values() for s in group if s not in sites]:
        why = f"a recipe diverged there, or {trials.metric} has no value"
        sentences.append(f"Sites that do not count, since {why}: {', '.join(lacking)}.")
    if (part := expected.few_rows) is not None:
        sentences.append(
            f"More rows: {part:.0%} of the variance at a new site is chance of few rows; the rest "
            "is that sites differ."
            if part < 0.995
            else "More rows: the few rows of each site explain all of the spread seen."
        )
    return sentences + few_rows(trials)


def few_rows(trials: Trials) -> list[str]:
    """Return a sentence on the sites that count little, since they have few rows."""
    counts = [trials.rows[site] for site in trials.sites]
    typical = median(counts)
    tiny = [f"{site} ({n})" for site in trials.sites if (n := trials.rows[site]) < typical / TINY]
    if not tiny:
        return []
    return [f"Sites of few rows, which count less: {', '.join(tiny)}; the median has {typical:g}."]
