"""Every recipe, played without each group of sites in turn."""

import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from unseen.choice.constant import constant_trial
from unseen.choice.rates import changed
from unseen.choice.trials import (
    ALONE,
    BASE,
    CONSTANT,
    POOLED,
    REFERENCES,
    Cost,
    Trial,
    Trials,
    at_targets,
    average,
    check_whole,
    judged_at_two_groups,
    tuned,
    with_alone,
)
from unseen.datasets.dataset import DataSet
from unseen.errors import UnseenError
from unseen.methods.compose import method as compose
from unseen.results.selection import less_is_better
from unseen.results.study_results import Results
from unseen.spec.study import StudySpec
from unseen.study import Study
from unseen.study.setting import read

#: Recipes for tables, and for data of which a linear model or trees make little.
TABLES = (
    "fedavg", "fedavg+ensemble(members=3)", "fedavg+shift(alpha=0.5)+ensemble(members=3)", "glm",
    "boost", "forest", "bag(of='trees')", "portfolio(members=['glm', 'boost', 'forest'])",
    "portfolio",
)  # fmt: skip
IMAGES = (
    "fedavg", "fedavg+ensemble(members=3)", "fedavg+shift(alpha=0.5)+ensemble(members=3)",
    "fedavg+am+ensemble(members=3)", "fedavg+mixup+ensemble(members=3)", "portfolio",
)  # fmt: skip
#: (study, folder of the records) -> its results.
Run = Callable[[Study, Path], Results]
#: Why a recipe has no figures.
DIVERGED = "diverged at every rate"
#: What the study's learning rate is multiplied by.
RATES = (0.2, 1.0, 5.0)


@dataclass(frozen=True)
class Candidates:
    """What is played for a choice.

    Attributes:
        study: The settings that all recipes share; its methods and plan are replaced.
        recipes: Expressions of methods.
        groups: Groups of sites that are left out in turn.
        rates: Factors of the study's learning rate.
        pool: Whether rows may be pooled, for a comparison.
        alone: Whether every site's own model is tried elsewhere.
        refused: Recipe that is not played -> why; see `unseen.choice.refusals`.
        metric: What recipes are judged by; "" for the study's.
        why_metric: Why that is not what the data usually have; "" where it is.
    """

    study: StudySpec
    recipes: Sequence[str]
    groups: int = 5
    rates: Sequence[float] = RATES
    pool: bool = True
    alone: bool = True
    refused: Mapping[str, str] = field(default_factory=dict)
    metric: str = ""
    why_metric: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        """What is played: the usual recipe, those to choose among, and pooled rows if wanted."""
        return tuple(dict.fromkeys((BASE, *self.recipes, *((POOLED,) if self.pool else ()))))


@dataclass(frozen=True)
class Played:
    """What studies that differ in the learning rate alone leave.

    Attributes:
        results: Of the last of them.
        figures: Recipe -> rate's factor -> site -> one figure for each seed.
        costs: Recipe -> those of its runs.
        rows: Site -> how many rows its figures are of.
        refused: Recipe -> why it has no figures.
        metric: What the figures are.
    """

    results: Results
    figures: Mapping[str, Mapping[float, Mapping[str, Sequence[float]]]]
    costs: Mapping[str, Sequence[Cost]]
    rows: Mapping[str, int]
    refused: Mapping[str, str]
    metric: str

    @property
    def undefined(self) -> str:
        """Why a recipe that did not diverge has no figures."""
        return f"has no {self.metric} at any site"


class Rated(NamedTuple):
    """A study at a multiple of the learning rate, and the folder of its records."""

    factor: float
    study: Study
    folder: Path


@dataclass(frozen=True)
class Search:
    """How recipes are played, whichever sites are left out.

    Attributes:
        study: The settings that all recipes share.
        rates: Factors of its learning rate.
        run: Runs a study, with its records in a folder.
        metric: What recipes are judged by; "" for the study's.
        say: Receives lines of progress.
    """

    study: StudySpec
    rates: Sequence[float]
    run: Run
    metric: str = ""
    say: Callable[[str], None] = lambda line: None

    def played(self, recipes: Sequence[str], holdout: Any, out: Path) -> Played:
        """Play recipes, those that train by rounds at every rate."""
        figures: dict[str, dict[float, Mapping[str, Sequence[float]]]] = defaultdict(dict)
        costs: dict[str, list[Cost]] = defaultdict(list)
        rows: dict[str, int] = {}
        refused: dict[str, str] = {}
        ran, diverged = Counter[str](), Counter[str]()
        results = None
        for factor, study, folder in studies(self.study, self.rates, recipes, holdout, out):
            self.say(f"learning rate × {factor:g}: {', '.join(study.methods)}")
            results = self.run(study, folder)
            refused |= results.not_applicable
            diverged.update({job.method for job in results.diverged()})
            ran.update(results.methods)
            metric = self.metric or results.metric
            for name, by_site in at_targets(results, metric, rows, costs).items():
                figures[name][factor] = by_site
        if results is None:
            raise UnseenError("rates is empty.", remedy="Name one, such as 1.")
        played = Played(results, figures, costs, rows, refused, self.metric or results.metric)
        for name in ran:
            if name not in figures and name not in refused:
                refused[name] = DIVERGED if diverged[name] == ran[name] else played.undefined
        return played


def studies(
    study: StudySpec, rates: Sequence[float], recipes: Sequence[str], holdout: Any, out: Path
) -> Iterator[Rated]:
    """Yield a study for every rate, with the recipes that train by rounds.

    Exact models have no rate, and mixtures find their members' own or hold the study's.

    Args:
        study: The settings that all recipes share.
        rates: Factors of its learning rate.
        recipes: Expressions of methods.
        holdout: The plan of sites left out.
        out: The folder of the records.
    """
    by_rounds = [name for name in recipes if compose(name).rounds is None]
    exact = [name for name in recipes if name not in by_rounds]
    for factor in sorted(rates, key=lambda rate: (rate != 1, rate)):
        methods = [*by_rounds, *(exact if factor == 1 or 1 not in rates else ())]
        yield Rated(factor, changed(study, methods, holdout, factor), out / f"rate-{factor:g}")


def play(
    candidates: Candidates,
    out: Path,
    *,
    jobs: int = 1,
    data_dir: Path | None = None,
    backend: str = "in-process",
    run: Run | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Trials:
    """Play every recipe without each group of sites; what has been played is not played again.

    A recipe that trains by rounds is played at every rate. Which of them counts for a group is
    decided by the other groups' figures, so that no site's figure chooses its own rate.

    Args:
        candidates: What is played.
        out: The folder of the records.
        jobs: Processes.
        data_dir: The data folder.
        backend: Where clients run, `in-process` or `flower-simulation`.
        run: Runs each study instead, with its records in a folder; real sites, say.
        say: Receives lines of progress.
    """

    def here(one: Study, out: Path) -> Results:
        return one.run(out, jobs=jobs, data_dir=data_dir, backend=backend, progress=True)

    study = candidates.study
    check_whole(study)
    search = Search(study, candidates.rates, run or here, candidates.metric, say)
    if BASE not in candidates.recipes:
        say(f"{BASE} is played as well: all recipes are compared with it")
    whole = search.played(candidates.rows, {"groups": candidates.groups}, out)
    results = whole.results
    sites = {task.name: task.targets for task in results.tasks}
    lower = less_is_better(whole.metric)
    by_recipe = {
        name: tuned(name, by_rate, sites, lower, whole.costs[name])
        for name, by_rate in whole.figures.items()
    }
    refused = {**candidates.refused, **whole.refused}
    if all(name in REFERENCES for name in by_recipe):
        why = refused[BASE]
        remedies = {
            DIVERGED: "Take a smaller learning rate, or other rates.",
            whole.undefined: "Choose by another metric.",
        }
        raise UnseenError(
            f"{BASE}, which all recipes are compared with, {why}.", remedy=remedies.get(why, "")
        )
    trials = judged_at_two_groups(
        Trials(by_recipe, whole.metric, lower, sites, whole.rows, refused, results.data, study)
    )
    if candidates.alone and BASE in trials.by_recipe:
        elsewhere = alone_elsewhere(search, trials.by_recipe[BASE].best, out)
        trials = with_alone(trials, elsewhere)
    return with_constant(trials, results)


def with_constant(trials: Trials, results: Results) -> Trials:
    """Return the trials with the answer that looks at no input, if all sites have its figure.

    Args:
        trials: All recipes.
        results: Of a study of them, with the constants of every group's training sites. The server
            of real sites does not know these.
    """
    name = BASE if BASE in trials.by_recipe else next(iter(trials.by_recipe))
    jobs = (job for job in results.folders() if job.job.method == name)
    trial, answer, positives = constant_trial(jobs, trials.metric)
    trials = replace(trials, positives=positives)
    if trial is None or not trials.figures_everywhere(trial):
        return trials
    return replace(trials, by_recipe={**trials.by_recipe, CONSTANT: trial}, constant=answer)


def alone_elsewhere(search: Search, factor: float, out: Path) -> Trial:
    """Return how one site's own model does at all others, at a rate."""
    search.say(f"{ALONE}: {BASE} at one site, tried at the others")
    with warnings.catch_warnings():  # one site's troubles are not those of the study
        warnings.simplefilter("ignore")
        ran = search.run(changed(search.study, [BASE], {"alone": True}, factor), out / "alone")
    costs: dict[str, list[Cost]] = defaultdict(list)
    elsewhere = at_targets(ran, search.metric or ran.metric, {}, costs).get(BASE, {})
    means = {site: average(values) for site, values in sorted(elsewhere.items())}
    seconds = average([cost.seconds for cost in costs[BASE]])
    return Trial(ALONE, means, best=factor, seconds=seconds)


def portfolio_for(study: StudySpec, data_dir: Path | None) -> tuple[str, ...]:
    """Return the recipes to choose among, by the form of the data."""
    return TABLES if data_of(study, data_dir).schema is not None else IMAGES


def data_of(study: StudySpec, data_dir: Path | None) -> DataSet:
    """Return the study's data set."""
    folder = data_dir or os.environ.get("UNSEEN_DATA")
    return read(study.dataset, Path(folder).expanduser() if folder else None)
