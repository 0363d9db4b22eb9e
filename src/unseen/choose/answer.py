"""Which recipe for the next site: expectations, chances, and what they are worth."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unseen.choose.expectation import (
    LEVEL,
    Expectation,
    chance,
    chance_share,
    expect,
    sites_needed,
)
from unseen.choose.trials import ALONE, BASE, POOLED, Trial, Trials, changed
from unseen.results.comparison import LEVEL as ALPHA
from unseen.results.comparison import holm, wilcoxon
from unseen.results.formats import decimals

#: Metrics that lie between 0 and 1.
SHARES = ("accuracy", "balanced-accuracy", "auroc", "auprc", "f1")


@dataclass(frozen=True)
class Row:
    """One recipe.

    Attributes:
        recipe: Its expression.
        expected: What to expect at a new site.
        worst: The worst site and its figure.
        against: Recipe -> the chance to be better than it at a new site, for `BASE` and `ALONE`.
        p: Of the best recipe against this one, Wilcoxon's over sites, after Holm; None for itself
            and for what cannot be chosen.
        factor: Of the study's learning rate, the best over all sites.
        sent: Bytes that leave one site in one training.
        seconds: Of one training.
    """

    recipe: str
    expected: Expectation
    worst: tuple[str, float]
    against: Mapping[str, float]
    p: float | None
    factor: float
    sent: float
    seconds: float


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
        refused: Recipe -> why it was not played.
        groups: Group -> its sites.
        data: The data set and its digest.
        study: The settings of a study that trains the recommended recipe at all sites.
        figures: Recipe -> site -> figure.
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

    def row(self, recipe: str) -> Row:
        """Return the row of a recipe."""
        return next(row for row in self.rows if row.recipe == recipe)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return asdict(self)


def choose(trials: Trials, level: float = LEVEL) -> Choice:
    """Return the recipe for the next site.

    The best recipe is the one with the best mean over sites. Those that Wilcoxon's test over sites,
    corrected for their number, cannot tell from it are tied with it, and of these the cheapest is
    recommended.

    Args:
        trials: The figures.
        level: Of the intervals.
    """
    sites = sorted(set.intersection(*(set(trial.figures) for trial in trials.by_recipe.values())))
    sign = -1.0 if trials.lower else 1.0
    figures = {n: [t.figures[s] for s in sites] for n, t in trials.by_recipe.items()}
    best, tied, p = verdict(trials.by_recipe, figures, sign)
    recipe = cheapest(trials.by_recipe, tied)
    bounds = (0.0, 1.0) if trials.metric in SHARES else None
    rows = [
        row(trials.by_recipe[name], figures, sites, sign, p.get(name), level, bounds)
        for name in sorted(figures, key=lambda n: -sign * sum(figures[n]))
    ]
    return Choice(
        recipe, best, tied, tuple(rows), trials.metric, trials.lower,
        expect(nested(trials, sites, sign), level, bounds),
        tuple(changes(trials, figures, sites, recipe, best, sign)),
        trials.refused, trials.groups, trials.data, settings(trials, recipe),
        {name: {s: trial.figures[s] for s in sites} for name, trial in trials.by_recipe.items()},
    )  # fmt: skip


def settings(trials: Trials, recipe: str) -> dict[str, Any]:
    """Return the settings of a study that trains a recipe at all sites, at its best rate."""
    whole = changed(trials.settings, [recipe], "none", trials.by_recipe[recipe].best)
    return whole.model_dump(mode="json", exclude_defaults=True)


def verdict(
    trials: Mapping[str, Trial], figures: Mapping[str, Sequence[float]], sign: float
) -> tuple[str, tuple[str, ...], dict[str, float]]:
    """Return the best recipe, those tied with it, and recipe -> p against the best.

    Args:
        trials: All recipes.
        figures: Recipe -> its figure at each site [K].
        sign: −1 where less is better.
    """
    able = [name for name in trials if name not in (POOLED, ALONE)]
    best = max(able, key=lambda name: sign * sum(figures[name]))
    others = [name for name in able if name != best]
    tests = [wilcoxon(rounded(figures[best], figures[name])) for name in others]
    p = dict(zip(others, holm(tests), strict=True))
    return best, (best, *(name for name in others if p[name] >= ALPHA)), p


def cheapest(trials: Mapping[str, Trial], tied: Sequence[str]) -> str:
    """Return the recipe that sends the fewest bytes: a count, where seconds differ by the run."""
    return min(tied, key=lambda name: trials[name].sent)


def rounded(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return differences without last bits that mean nothing."""
    return [round(a - b, 9) for a, b in zip(ours, theirs, strict=True)]


def row(
    trial: Trial,
    figures: Mapping[str, Sequence[float]],
    sites: Sequence[str],
    sign: float,
    p: float | None,
    level: float,
    bounds: tuple[float, float] | None,
) -> Row:
    """Return what is said of one recipe; see `Row`."""
    own = figures[trial.recipe]
    worst = min(range(len(sites)), key=lambda k: sign * own[k])
    against = {
        other: chance([sign * d for d in rounded(own, figures[other])])
        for other in (BASE, ALONE)
        if other in figures and other != trial.recipe
    }
    expected = expect(own, level, bounds)
    return Row(trial.recipe, expected, (sites[worst], own[worst]), against, p, trial.best,
               trial.sent, trial.seconds)  # fmt: skip


def nested(trials: Trials, sites: Sequence[str], sign: float) -> list[float]:
    """Return each site's figure under the recipe that the sites of the other groups recommend."""
    figures = []
    for site in sites:
        own = next(group for group in trials.groups.values() if site in group)
        rest = [s for s in sites if s not in own]
        others = {n: [t.figures[s] for s in rest] for n, t in trials.by_recipe.items()}
        _, tied, _ = verdict(trials.by_recipe, others, sign)
        figures.append(trials.by_recipe[cheapest(trials.by_recipe, tied)].figures[site])
    return figures


def changes(
    trials: Trials,
    figures: Mapping[str, Sequence[float]],
    sites: Sequence[str],
    recipe: str,
    best: str,
    sign: float,
) -> list[str]:
    """Return sentences on what would change the answer."""
    said = []
    if recipe != best:
        gap = [sign * d for d in rounded(figures[best], figures[recipe])]
        needed = sites_needed(gap)
        size = shown(abs(sum(gap)) / len(gap), trials.metric, gap=True)
        said.append(
            f"More sites: {best} is ahead of {recipe} by {size} on average. If that is so at all "
            f"sites, some {needed} sites would show it, four times in five; here are {len(sites)}."
        )
    if trials.metric == "accuracy":
        part = chance_share(figures[recipe], [trials.rows[site] for site in sites])
        said.append(
            f"More rows: {part:.0%} of the spread between sites is what few rows at the sites "
            "leave to chance; the rest is that sites differ."
        )
    return said


def shown(number: float, metric: str, gap: bool = False) -> str:
    """Return a figure as tables print it; accuracies in percent."""
    share = metric in SHARES
    text = f"{100 * number:.1f}" if share else f"{number:.{max(2, decimals(metric))}f}"
    return f"{text} points" if gap and share else text
