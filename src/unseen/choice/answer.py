"""Which recipe for the next site: expectations, chances, and what they are worth."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple

from unseen.choice.constant import Constant, against_constant
from unseen.choice.expectation import (
    LEVEL,
    Expectation,
    chance,
    chance_share,
    expect,
    sites_needed,
)
from unseen.choice.rates import changed
from unseen.choice.texts import figure_text
from unseen.choice.trials import ALONE, BASE, CONSTANT, REFERENCES, VIEWS, Trials, rounded
from unseen.core.rule import Sees
from unseen.errors import UnseenError
from unseen.results.comparison import LEVEL as ALPHA
from unseen.results.comparison import agree, holm, wilcoxon
from unseen.results.metric_name import MetricName


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
        nested: Whether they recommend it by models that had none of the site's rows.
        changes: What would change the answer, in sentences.
        refused: Recipe -> why it has no figures.
        groups: Group -> its sites.
        data: The data set and its digest.
        study: The settings of a study that trains the recommended recipe at all sites.
        figures: Recipe -> site -> figure.
        constant: The recommended recipe against an answer that looks at no input, where there are
            figures of one.
    """

    recipe: str
    best: str
    tied: tuple[str, ...]
    rows: tuple[Row, ...]
    metric: str
    lower: bool
    procedure: Expectation
    nested: bool
    changes: tuple[str, ...]
    refused: Mapping[str, str]
    groups: Mapping[str, tuple[str, ...]]
    data: str
    study: Mapping[str, Any]
    figures: Mapping[str, Mapping[str, float]]
    constant: Constant | None = None

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
    bounds = MetricName.parse(trials.metric).range
    procedure, failed = nested(trials)
    order = sorted(figures, key=lambda name: -trials.sign * sum(figures[name]))
    return Choice(
        recipe=recipe,
        best=best,
        tied=tied,
        rows=tuple(row(trials, name, p.get(name), level, bounds) for name in order),
        metric=trials.metric,
        lower=trials.lower,
        procedure=expect([*procedure.values()], level, bounds),
        nested=bool(trials.inner),
        changes=(*changes(trials, recipe, best), *failed),
        refused=trials.refused,
        groups=trials.groups,
        data=trials.data,
        study=settings(trials, recipe),
        figures={name: dict(zip(sites, own, strict=True)) for name, own in figures.items()},
        constant=against_constant(trials, recipe),
    )


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


def settings(trials: Trials, recipe: str) -> dict[str, Any]:
    """Return the settings of a study that trains a recipe at all sites, at its best rate."""
    whole = changed(trials.settings, [recipe], "none", trials.by_recipe[recipe].best)
    return whole.model_dump(mode="json", exclude_defaults=True)


def verdict(trials: Trials, sites: Sequence[str]) -> Verdict:
    """Return what these sites say of the recipes."""
    figures = trials.at(sites)
    able = [name for name in figures if name not in REFERENCES]
    best = max(able, key=lambda name: trials.sign * sum(figures[name]))
    others = [name for name in able if name != best]
    gaps = [rounded(figures[best], figures[name]) for name in others]
    tests = [wilcoxon(gap) if agree(gap) else 1.0 for gap in gaps]
    p = dict(zip(others, holm(tests), strict=True))
    tied = (best, *(name for name in others if p[name] >= ALPHA))
    return Verdict(cheapest(trials, tied, sites), best, tied, p)


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
    figures, by_recipe = trials.at(sites), trials.by_recipe
    least = min(VIEWS.index(by_recipe[name].sees) for name in tied)
    discreet = [name for name in tied if VIEWS.index(by_recipe[name].sees) == least]
    first = max(discreet, key=lambda name: trials.sign * sum(figures[name]))

    def near(name: str) -> bool:
        gaps = [trials.sign * d for d in rounded(figures[first], figures[name])]
        return fmean(gaps) <= (stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0)

    return min(filter(near, discreet), key=lambda name: by_recipe[name].upload)


def row(
    trials: Trials, name: str, p: float | None, level: float, bounds: tuple[float, float] | None
) -> Row:
    """Return what is said of one recipe; see `Row`."""
    trial, sites, figures = trials.by_recipe[name], trials.sites, trials.at(trials.sites)
    own = dict(zip(sites, figures[name], strict=True))
    worst = min(sites, key=lambda site: trials.sign * own[site])
    against: dict[str, float] = {}
    for other in (BASE, ALONE, CONSTANT):
        if other in figures and other != name:
            better = chance([trials.sign * d for d in rounded(figures[name], figures[other])])
            if better is not None:
                against[other] = better
    # Equal figures of an answer that looks at no input are exact, not due to few rows.
    exact = name == CONSTANT and len({*figures[name]}) == 1
    expected = expect(figures[name], level, None if exact else bounds)
    return Row(name, expected, (worst, own[worst]), against, p, trial.best, trial.sees,
               trial.upload, trial.seconds)  # fmt: skip


def nested(trials: Trials) -> tuple[dict[str, float], list[str]]:
    """Return site -> its figure under the recipe that the sites of the other groups recommend.

    Where models without every two groups were played, the others judge by those that had none of
    the group's rows either, and the rate is theirs too. Where what they recommend diverged there is
    no figure; a sentence on these sites comes second.
    """
    figures, failed = {}, []
    for group, own in trials.groups.items():
        recommended = recommendation(trials, group)
        for site in (site for site in own if site in trials.sites):
            if site in recommended:
                figures[site] = recommended[site]
            else:
                failed.append(site)
    if len(figures) < 2:
        raise UnseenError(
            "what the other sites recommend has no figure at all but one site: there is no "
            "estimate of the choice.",
            remedy="Take a smaller learning rate, or leave nested out.",
        )
    if not failed:
        return figures, []
    where = ", ".join(failed)
    return figures, [f"What the other sites recommend has no figure at {where}: not counted."]


def recommendation(trials: Trials, group: str) -> Mapping[str, float]:
    """Return site -> figure of the recipe that the other groups recommend for a group's sites."""
    judges, own = trials.inner.get(group, trials), trials.groups[group]
    others = [site for site in judges.sites if site not in own] if judges.by_recipe else []
    if not others:
        return {}
    recipe = verdict(judges, others).recipe
    trial, rate = trials.by_recipe[recipe], judges.by_recipe[recipe].best
    return trial.figures if judges is trials else trial.at_rate.get(rate, {})


def changes(trials: Trials, recipe: str, best: str) -> list[str]:
    """Return sentences on what would change the answer."""
    sentences, sites, figures = [], trials.sites, trials.at(trials.sites)
    if recipe != best:
        gap = [trials.sign * d for d in rounded(figures[best], figures[recipe])]
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
    if trials.metric == "accuracy":
        part = chance_share(figures[recipe], [trials.rows[site] for site in sites])
        sentences.append(
            f"More rows: {part:.0%} of the spread between sites is what few rows at the sites "
            "leave to chance; the rest is that sites differ."
            if part < 0.995
            else "More rows: the small number of rows per site explains all of the spread seen."
        )
    return sentences
