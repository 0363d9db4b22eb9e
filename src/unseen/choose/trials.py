"""Recipes, played with every group of sites left out in turn."""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from unseen.core import Method
from unseen.core.rule import Sees
from unseen.errors import UnseenError
from unseen.expression import Call, parse, text
from unseen.methods.compose import method as compose
from unseen.results.selection import less_is_better, value
from unseen.results.study_results import Results
from unseen.spec.study import StudySpec
from unseen.study import Study
from unseen.study.setting import read

#: Recipes for tables, and for data of which a linear model or trees make little.
TABLES = (
    "fedavg", "fedavg+ensemble(members=3)", "fedavg+shift(alpha=0.5)+ensemble(members=3)", "glm",
    "boost", "bag(of='trees')", "portfolio",
)  # fmt: skip
IMAGES = (
    "fedavg", "fedavg+ensemble(members=3)", "fedavg+shift(alpha=0.5)+ensemble(members=3)",
    "fedavg+am+ensemble(members=3)", "fedavg+mixup+ensemble(members=3)", "portfolio",
)  # fmt: skip
#: What every recipe is compared with: the usual one, pooled rows, and a site's own model elsewhere.
BASE, POOLED, ALONE = "fedavg", "deepall", "one site's own model"
#: What a server must see of a recipe, from the least: sums over sites, which masks and encryption
#: leave it; inner products of the updates; every site's update or model.
VIEWS: tuple[Sees, ...] = ("scalars", "products", "updates")
#: What the study's learning rate is multiplied by.
RATES = (0.2, 1.0, 5.0)


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
        recipe: Its expression, or `ALONE`.
        figures: Site -> the mean over seeds, at the rate that is best for the other groups.
        rates: Group -> the factor of the learning rate that was taken for it.
        best: The factor that is best over all groups, for the model in use.
        sees: What its server must see; see `VIEWS`.
        upload: Bytes that leave one site in one training, the mean over groups.
        seconds: Of one training, the mean.
    """

    recipe: str
    figures: Mapping[str, float]
    rates: Mapping[str, float] = field(default_factory=dict)
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
        refused: Recipe -> why it cannot be played.
        data: The data set and its digest.
        settings: The study's settings.
    """

    by_recipe: Mapping[str, Trial]
    metric: str
    lower: bool
    groups: Mapping[str, tuple[str, ...]]
    rows: Mapping[str, int]
    refused: Mapping[str, str]
    data: str
    settings: StudySpec

    @property
    def sign(self) -> float:
        """−1 where less is better."""
        return -1.0 if self.lower else 1.0

    @property
    def sites(self) -> list[str]:
        """Those where every recipe has a figure."""
        return sorted(set.intersection(*(set(trial.figures) for trial in self.by_recipe.values())))

    def at(self, sites: Sequence[str]) -> dict[str, list[float]]:
        """Return recipe -> its figure at each of the sites [K]."""
        return {n: [t.figures[site] for site in sites] for n, t in self.by_recipe.items()}


def play(
    study: StudySpec,
    recipes: Sequence[str],
    out: Path,
    *,
    groups: int = 5,
    rates: Sequence[float] = RATES,
    pool: bool = True,
    alone: bool = True,
    jobs: int = 1,
    data_dir: Path | None = None,
    backend: str = "in-process",
    say: Callable[[str], None] = lambda line: None,
) -> Trials:
    """Play every recipe without each group of sites; what has been played is not played again.

    A recipe that trains by rounds is played at every rate. Which of them counts for a group is
    decided by the other groups' figures, so that no site's figure chooses its own rate.

    Args:
        study: The settings that all recipes share; its methods and plan are replaced.
        recipes: Expressions of methods.
        out: The folder of the records.
        groups: Groups of sites that are left out in turn.
        rates: Factors of the study's learning rate.
        pool: Whether rows may be pooled, for a comparison.
        alone: Whether every site's own model is tried elsewhere.
        jobs: Processes.
        data_dir: The data folder.
        backend: Where clients run, `in-process` or `flower-simulation`.
        say: Receives lines of progress.
    """
    names = tuple(dict.fromkeys((BASE, *recipes, *((POOLED,) if pool else ()))))
    by_rounds = [name for name in names if compose(name).rounds is None]
    exact = [name for name in names if name not in by_rounds]
    where: dict[str, Any] = {
        "jobs": jobs, "data_dir": data_dir, "backend": backend, "progress": True
    }  # fmt: skip
    figures: dict[str, dict[float, dict[str, list[float]]]] = defaultdict(dict)
    costs: dict[str, list[Cost]] = defaultdict(list)
    sites: dict[str, tuple[str, ...]] = {}
    rows: dict[str, int] = {}
    results = None
    for factor in sorted(rates, key=lambda rate: (rate != 1, rate)):
        # Exact models have no rate, and mixtures find their members' own or hold the study's.
        methods = [*by_rounds, *(exact if factor == 1 or 1 not in rates else ())]
        say(f"learning rate × {factor:g}: {', '.join(methods)}")
        played = changed(study, methods, {"groups": groups}, factor)
        results = played.run(out / f"rate-{factor:g}", **where)
        sites = {task.name: task.targets for task in results.tasks}
        for name, by_site in at_targets(results, rows, costs).items():
            figures[name][factor] = by_site
    if results is None:
        raise UnseenError("rates is empty.", remedy="Name one, such as 1.")
    lower = less_is_better(results.metric)
    trials = {
        name: tuned(name, by_rate, sites, lower, costs[name]) for name, by_rate in figures.items()
    }
    if alone:
        best = trials[BASE].best
        say(f"{ALONE}: {BASE} at one site, tried at the others")
        single = changed(study, [BASE], {"alone": True}, best)
        costs_alone: dict[str, list[Cost]] = defaultdict(list)
        ran = single.run(out / "alone", **where)
        elsewhere = at_targets(ran, {}, costs_alone)[BASE]
        means = {site: average(values) for site, values in sorted(elsewhere.items())}
        seconds = average([cost.seconds for cost in costs_alone[BASE]])
        trials[ALONE] = Trial(ALONE, means, best=best, seconds=seconds)
    return Trials(
        trials, results.metric, lower, sites, rows, results.not_applicable, results.data, study
    )


def portfolio_for(study: StudySpec, data_dir: Path | None) -> tuple[str, ...]:
    """Return the recipes to choose among, by the form of the data."""
    folder = data_dir or os.environ.get("UNSEEN_DATA")
    data = read(study.dataset, Path(folder).expanduser() if folder else None)
    return TABLES if data.schema is not None else IMAGES


def changed(study: StudySpec, methods: Sequence[str], holdout: Any, factor: float) -> Study:
    """Return the study with these methods and plan, at a multiple of its learning rate."""
    rate = learning_rate(study.training.optimiser)
    training = study.training.model_copy(
        update={"optimiser": at_rate(study.training.optimiser, factor * rate)}
    )
    settings = study.model_dump(exclude_defaults=True) | {
        "methods": tuple(methods), "holdout": holdout, "training": training.model_dump(),
        "selection": "last", "evaluate_every": study.rounds, "reference": None, "published": {},
        "targets": None,
    }  # fmt: skip
    return Study(**settings)


def learning_rate(optimiser: str) -> float:
    """Return the rate of an optimiser's expression."""
    (call,) = parse(optimiser)
    rate = call.arguments.get("lr")
    if not isinstance(rate, float | int):
        raise UnseenError(
            f"the optimiser {optimiser!r} names no learning rate to search around.",
            remedy="Write it, as in sgd(lr=0.05).",
        )
    return float(rate)


def at_rate(optimiser: str, rate: float) -> str:
    """Return the optimiser's expression with another rate."""
    (call,) = parse(optimiser)
    return text((Call(call.name, {**call.arguments, "lr": float(f"{rate:.6g}")}),))


def at_targets(
    results: Results, rows: dict[str, int], costs: dict[str, list[Cost]]
) -> dict[str, dict[str, list[float]]]:
    """Return method -> site -> its figures at the last round; a run that diverged has none.

    Args:
        results: A study that has been run.
        rows: Site -> how many rows; it is filled.
        costs: Method -> those of its runs; it is filled.
    """
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for job in results.folders():
        if job.state != "done":
            continue
        upload = sum(x["bytes"]["up"] / max(1, len(x["clients"])) for x in job.rounds)
        costs[job.job.method].append(Cost(upload, float(job.mark["seconds"])))
        last = max(record["round"] for record in job.target)
        for record in job.target:
            figure = value(record, results.metric) if record["round"] == last else None
            if figure is not None:
                figures[job.job.method][record["domain"]].append(figure)
                rows[record["domain"]] = int(record["examples"])
    return figures


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
    return Trial(recipe, at_sites, rates, best_rate(means, lower), sees, upload, seconds)


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
