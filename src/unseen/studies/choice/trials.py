"""Recipes, played with every group of sites left out in turn."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from unseen.core import Method
from unseen.core.rule import Sees
from unseen.errors import UnseenError
from unseen.methods.compose import method as compose
from unseen.studies.results.selection import value
from unseen.studies.results.study_results import Results
from unseen.studies.settings.holdout import PLANS, Fixed
from unseen.studies.settings.study import StudySpec

#: What every recipe is compared with: the usual one, pooled rows, a site's own model elsewhere, and
#: an answer that looks at no input. All but the first are for comparison and never recommended.
BASE, POOLED, ALONE, CONSTANT = "fedavg", "deepall", "one site's own model", "constant"
REFERENCES = (POOLED, ALONE, CONSTANT)
#: What a server must see of a recipe, from the least: sums over sites, which masks and encryption
#: leave it; inner products of the updates; every site's update or model.
VIEWS: tuple[Sees, ...] = ("scalars", "products", "updates")


class Cost(NamedTuple):
    """Of one training: bytes that leave one site, and seconds."""

    upload: float
    seconds: float


#: Rate's factor -> site -> one figure for each seed.
Figures = Mapping[float, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class Trial:
    """A recipe at the sites that it has not seen.

    Attributes:
        recipe: Its expression, or `ALONE` or `CONSTANT`.
        figures: Site -> the mean over seeds, at the rate that is best for the other groups.
        rates: Group -> the factor of the learning rate that was taken for it.
        at_rate: Factor -> site -> the mean over seeds.
        best: The factor that is best over all groups, for the model in use.
        sees: What its server must see; see `VIEWS`.
        upload: Bytes that leave one site in one training, the mean over groups.
        seconds: Of one training, the mean.
    """

    recipe: str
    figures: Mapping[str, float]
    rates: Mapping[str, float] = field(default_factory=dict)
    at_rate: Mapping[float, Mapping[str, float]] = field(default_factory=dict)
    best: float = 1.0
    sees: Sees = "scalars"
    upload: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Trials:
    """All recipes, and what they were played on.

    Attributes:
        by_recipe: Recipe -> how it did.
        metric: What is compared.
        lower: Whether less of it is better.
        groups: Group -> its sites.
        rows: Site -> how many rows its figures are of.
        refused: Recipe -> why it has no figures.
        data: The data set and its digest.
        settings: The study's settings.
        constant: What `CONSTANT` answers, in words; "" where there is no such row.
        positives: Site -> the share of the positive class, where that is known.
        unfinished: Recipe -> what of its training was not finished, in words.
        not_tried: Recipe for such data that was not played -> what it would take, if that is known.
        flat: Whether networks trained until flat.
        doubts: What the data themselves say against the figures.
    """

    by_recipe: Mapping[str, Trial]
    metric: str
    lower: bool
    groups: Mapping[str, tuple[str, ...]]
    rows: Mapping[str, int]
    refused: Mapping[str, str]
    data: str
    settings: StudySpec
    constant: str = ""
    positives: Mapping[str, float] = field(default_factory=dict)
    unfinished: Mapping[str, str] = field(default_factory=dict)
    not_tried: Mapping[str, str] = field(default_factory=dict)
    flat: bool = False
    doubts: tuple[str, ...] = ()

    @property
    def sign(self) -> float:
        """−1 where less is better."""
        return -1.0 if self.lower else 1.0

    @property
    def sites(self) -> list[str]:
        """Those where every recipe has a figure."""
        return sorted(set.intersection(*(set(trial.figures) for trial in self.by_recipe.values())))

    @property
    def groups_with_figures(self) -> list[str]:
        """Those with a site where every recipe has a figure."""
        return [name for name, own in self.groups.items() if {*own} & {*self.sites}]

    def figures_everywhere(self, trial: Trial) -> bool:
        """Return whether one more trial has a figure wherever all others have one."""
        return set(self.sites) <= set(trial.figures)

    def gaps(self, recipe: str, other: str, sites: Sequence[str] | None = None) -> list[float]:
        """Return what a recipe is better by than another at each site [K].

        Last bits that mean nothing are rounded away.

        Args:
            recipe: The one.
            other: The other.
            sites: Where; None for all sites.
        """
        ours, theirs = (self.by_recipe[name].figures for name in (recipe, other))
        places = self.sites if sites is None else sites
        return [self.sign * round(ours[site] - theirs[site], 9) for site in places]

    def at(self, sites: Sequence[str]) -> dict[str, list[float]]:
        """Return recipe -> its figure at each of the sites [K]."""
        return {n: [t.figures[site] for site in sites] for n, t in self.by_recipe.items()}


def judged_at_two_groups(trials: Trials) -> Trials:
    """Return the trials without recipes that leave fewer than two groups with figures of all.

    The recipe with the fewest figures goes first; the last one that can be recommended stays.
    """
    while len(trials.groups_with_figures) < 2:
        able = [name for name in trials.by_recipe if name not in REFERENCES]
        pool = [name for name in trials.by_recipe if name in REFERENCES] or able
        fewest = min(
            (*able, *pool), key=lambda name: (len(trials.by_recipe[name].figures), name == BASE)
        )
        if len(able) < 2 and fewest in able:
            return trials
        lacking = [s for s in trials.rows if s not in trials.by_recipe[fewest].figures]
        why = f"has no {trials.metric} at {', '.join(lacking)}"
        rest = {name: own for name, own in trials.by_recipe.items() if name != fewest}
        trials = replace(trials, by_recipe=rest, refused={**trials.refused, fewest: why})
    return trials


def with_alone(trials: Trials, elsewhere: Trial) -> Trials:
    """Return the trials with one site's own model elsewhere, if it has a figure at all sites."""
    if not trials.figures_everywhere(elsewhere):
        lacking = ", ".join(site for site in trials.sites if site not in elsewhere.figures)
        why = f"has no {trials.metric} of every other site's model at {lacking}"
        return replace(trials, refused={**trials.refused, ALONE: why})
    return replace(trials, by_recipe={**trials.by_recipe, ALONE: elsewhere})


def check_whole(study: StudySpec) -> None:
    """Refuse a study that keeps sites away: all of them are left out in turn, and train."""
    plan = study.holdout
    names = isinstance(plan, Fixed) or (isinstance(plan, str) and plan not in PLANS)
    if (away := plan if names else study.targets) is not None:
        raise UnseenError(
            f"the study keeps sites away (holdout or targets: {away}), and choosing takes all "
            "sites: each is left out in turn, and trains otherwise.",
            remedy="Leave the setting out, or the site out of the data, as by "
            "table(..., without=[SITE]).",
        )


def at_targets(
    results: Results, metric: str, rows: dict[str, int], costs: dict[str, list[Cost]]
) -> dict[str, dict[str, list[float]]]:
    """Return method -> site -> its figures at the last round, one for each run at the site.

    A site where one run of a method diverged, or gave no figure that can be used, has none of this
    method: the runs that are left would speak for those that failed.

    Args:
        results: A study that has been run.
        metric: What its models are judged by.
        rows: Site -> how many rows; it is filled.
        costs: Method -> those of its runs; it is filled.
    """
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    sites = {task.name: task.targets for task in results.tasks}
    runs = Counter[tuple[str, str]]()
    for job in results.folders():
        runs.update((job.job.method, site) for site in sites[job.job.task])
        if job.state != "done":
            continue
        upload = sum(x["bytes"]["up"] / max(1, len(x["clients"])) for x in job.rounds)
        costs[job.job.method].append(Cost(upload, float(job.mark["seconds"])))
        last = max((record["round"] for record in job.target), default=-1)
        for record in job.target:
            figure = value(record, metric) if record["round"] == last else None
            if figure is not None:
                figures[job.job.method][record["domain"]].append(figure)
                rows[record["domain"]] = int(record["examples"])
    whole = {
        method: {site: own for site, own in at.items() if len(own) == runs[method, site]}
        for method, at in figures.items()
    }
    return {method: at for method, at in whole.items() if at}


def tuned(
    recipe: str,
    figures: Figures,
    groups: Mapping[str, Sequence[str]],
    lower: bool,
    costs: Sequence[Cost],
) -> Trial:
    """Return the recipe with, for each group, the rate that is best at all other groups.

    Args:
        recipe: Its expression.
        figures: Rate's factor -> site -> figures.
        groups: Group -> its sites.
        lower: Whether less is better.
        costs: Of its runs.
    """
    means = {
        factor: {site: average(values) for site, values in by_site.items()}
        for factor, by_site in figures.items()
    }
    rates = {name: best_rate(means, lower, without=sites) for name, sites in groups.items()}
    at_sites = {
        site: means[rates[name]][site]
        for name, sites in groups.items()
        for site in sites
        if site in means.get(rates[name], {})
    }
    upload, seconds = (average(values) for values in zip(*costs, strict=True))
    sees = view_of(compose(recipe))
    return Trial(recipe, at_sites, rates, means, best_rate(means, lower), sees, upload, seconds)


def view_of(method: Method) -> Sees:
    """Return what the server must see of a method's replies, the most of all its rules."""
    slots = (slot for exchange in method.exchanges for slot in exchange.slots.values())
    rules = [slot.combine.sees for slot in slots if slot.combine is not None]
    return max(rules, key=VIEWS.index, default="scalars")


def best_rate(
    means: Mapping[float, Mapping[str, float]], lower: bool, without: Sequence[str] = ()
) -> float:
    """Return the rate with the best mean over sites, of those that have a figure at most sites.

    Args:
        means: Rate -> site -> figure.
        lower: Whether less is better.
        without: Sites that have no say.
    """
    own = {
        rate: [figure for site, figure in sorted(by_site.items()) if site not in without]
        for rate, by_site in means.items()
    }
    most = max(map(len, own.values()), default=0)
    sign = -1 if lower else 1
    scores = {r: sign * average(f) for r, f in own.items() if f and len(f) == most}
    return max(sorted(scores), key=scores.__getitem__, default=1.0)


def average(values: Sequence[float]) -> float:
    """Return the mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
