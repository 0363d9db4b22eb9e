"""Every recipe, played without each group of sites in turn."""

import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from unseen.data.dataset import DataSet
from unseen.errors import UnseenError
from unseen.studies.choice.budget import EXACT, Spent, Tracker, trainings
from unseen.studies.choice.constant import constant_trial
from unseen.studies.choice.rate_search import DIVERGED, Played, Run, Search, remarks
from unseen.studies.choice.rates import LIMIT, changed, until_flat
from unseen.studies.choice.texts import minutes
from unseen.studies.choice.trials import (
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
from unseen.studies.execution import Study
from unseen.studies.execution.setting import read
from unseen.studies.results.records import Job
from unseen.studies.results.selection import less_is_better
from unseen.studies.results.study_results import Results
from unseen.studies.settings.study import StudySpec
from unseen.studies.tracking.progress_bar import progress_bar

#: Recipes for tables, and for data of which a linear model or trees make little: cheap ones first.
TABLES = (
    "fedavg",
    "glm",
    "boost",
    "forest",
    "portfolio(members=['glm', 'boost', 'forest'])",
    "bag(of='trees')",
    "fedavg+ensemble(members=3)",
    "fedavg+shift(alpha=0.5)+ensemble(members=3)",
    "portfolio",
)
IMAGES = (
    "fedavg",
    "fedavg+ensemble(members=3)",
    "fedavg+shift(alpha=0.5)+ensemble(members=3)",
    "fedavg+am+ensemble(members=3)",
    "fedavg+mixup+ensemble(members=3)",
    "portfolio",
)
#: How many of them are played where there is no budget.
FEW = {TABLES: 5, IMAGES: 3}
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
        refused: Recipe that is not played -> why; see `unseen.studies.choice.refusals`.
        metric: What recipes are judged by; "" for the study's.
        why_metric: Why that is not what the data usually have; "" where it is.
        flat: Whether networks train until flat, and not for the study's rounds.
        wider: Whether rates beyond those are tried where the best is the last of them.
        budget: Seconds in which recipes are begun; None for all of them.
        further: Recipes for such data that are not played.
        doubts: What the data themselves say against the figures.
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
    flat: bool = False
    wider: bool = False
    budget: float | None = None
    further: Sequence[str] = ()
    doubts: Sequence[str] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        """What is played: the usual recipe, those to choose among, and pooled rows if wanted."""
        return tuple(dict.fromkeys((BASE, *self.recipes, *((POOLED,) if self.pool else ()))))


def play(
    candidates: Candidates,
    out: Path,
    *,
    jobs: int = 1,
    data_dir: Path | None = None,
    backend: str = "in-process",
    run: Run | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: bool = True,
) -> Trials:
    """Play every recipe without each group of sites; what has been played is not played again.

    A recipe that trains by rounds is played at every rate. Which of them counts for a group is
    decided by the other groups' figures, so that no site's figure chooses its own rate. With a
    budget recipes are begun one after the other as long as it lasts.

    Args:
        candidates: What is played.
        out: The folder of the records.
        jobs: Processes.
        data_dir: The data folder.
        backend: Where clients run, `in-process` or `flower-simulation`.
        run: Runs each study instead, with its records in a folder; real sites, say.
        say: Receives lines of progress.
        progress: Whether a bar shows the trainings.
    """
    check_whole(candidates.study)
    if BASE not in candidates.recipes:
        say(f"{BASE} is played as well: all recipes are compared with it")
    if run is not None:
        return Game(candidates, out, run, say).trials()
    tracker = tracker_of(candidates, out, data_dir, jobs)

    def here(one: Study, folder: Path) -> Results:
        def name(job: Job) -> str:
            return ALONE if folder.name == "alone" else job.method

        def after(job: Job, ended: int, total: int) -> None:
            tracker.ended(name, folder, job)

        return one.run(folder, jobs=jobs, data_dir=data_dir, backend=backend, after=after)

    say(f"{tracker.total} trainings of {len(candidates.rows)} recipes are to run")
    with progress_bar(tracker.total, 0, "trainings", progress) as show:
        tracker.show = show
        return Game(candidates, out, here, say, tracker).trials()


def tracker_of(candidates: Candidates, out: Path, data_dir: Path | None, jobs: int) -> Tracker:
    """Return the tracker of the candidates' trainings."""
    study, names = candidates.study, data_of(candidates.study, data_dir).names
    groups = min(candidates.groups, len(names))
    alone = {ALONE: len(names)} if candidates.alone else {}
    seeds = len(study.seed_list)
    left = trainings(candidates.rows, len(candidates.rates), groups, seeds, alone, out)
    deadline = None if candidates.budget is None else time.monotonic() + candidates.budget
    return Tracker(left, jobs, deadline, max(1, len(names) - 1), candidates.rows[:2])


@dataclass(frozen=True)
class Game:
    """Plays candidates.

    Attributes:
        candidates: What is played.
        out: The folder of the records.
        run: Runs each study, with its records in a folder.
        say: Receives lines of progress.
        tracker: Follows the trainings; None where nobody does.
    """

    candidates: Candidates
    out: Path
    run: Run
    say: Callable[[str], None]
    tracker: Tracker | None = None

    @property
    def search(self) -> Search:
        """How recipes are played."""
        asked = self.candidates
        return Search(
            asked.study,
            asked.rates,
            self.run,
            asked.metric,
            self.say,
            asked.flat,
            asked.wider,
            lambda folder: folder.exists() or self.tracker is None or not self.tracker.exceeds(0),
        )

    def trials(self) -> Trials:
        """Play all recipes."""
        asked, holdout = self.candidates, {"groups": self.candidates.groups}
        rows, late, unable = self.within_budget(holdout)
        whole = self.search.played(rows, holdout, self.out)
        whole.refused |= unable
        trials = judged_at_two_groups(self.judged(whole, late))
        if asked.alone and BASE in trials.by_recipe:
            trials = self.with_own_models(trials)
        return with_constant(trials, whole.results)

    def within_budget(
        self, holdout: Mapping[str, int]
    ) -> tuple[list[str], dict[str, str], dict[str, str]]:
        """Play recipes one after the other as long as the budget lasts, exact fits first.

        Returns:
            Those that were played; those that the budget does not hold, with what they take; those
            that cannot be trained, with the reason.
        """
        rows, tracker = [*self.candidates.rows], self.tracker
        late, unable = dict[str, str](), dict[str, str]()
        if tracker is None or tracker.deadline is None:
            return rows, late, unable
        for name in sorted(rows, key=lambda name: name not in EXACT):
            try:
                if name not in tracker.always and tracker.exceeds(tracker.needs(name)):
                    raise Spent(name)
                self.search.played([name], holdout, self.out)
            except Spent:
                more = tracker.needs(name)
                late[name] = f"about {minutes(more)} more" if more else ""
                tracker.left[name] = 0
            except UnseenError as error:
                if name == BASE:
                    raise
                unable[name] = f"cannot be trained here: {str(error).rstrip('.')}"
                tracker.left[name] = 0
        return [name for name in rows if name not in late and name not in unable], late, unable

    def judged(self, whole: Played, late: Mapping[str, str]) -> Trials:
        """Return the trials of what was played."""
        asked, results = self.candidates, whole.results
        sites, lower = (
            {task.name: task.targets for task in results.tasks},
            less_is_better(whole.metric),
        )
        by_recipe = {
            name: tuned(name, by_rate, sites, lower, whole.costs[name])
            for name, by_rate in whole.figures.items()
        }
        refused = {**asked.refused, **whole.refused}
        if all(name in REFERENCES for name in by_recipe):
            why = refused[BASE]
            remedies = {
                DIVERGED: "Take a smaller learning rate, or other rates.",
                whole.undefined: "Choose by another metric.",
            }
            raise UnseenError(
                f"{BASE}, which all recipes are compared with, {why}.", remedy=remedies.get(why, "")
            )
        best = {n: trial.best for n, trial in by_recipe.items() if n not in REFERENCES}
        open_ends = remarks(whole.improving, best, whole.figures, LIMIT * asked.study.rounds)
        not_tried = dict.fromkeys(asked.further, "") | dict(late)
        return Trials(
            by_recipe,
            whole.metric,
            lower,
            sites,
            whole.rows,
            refused,
            results.data,
            asked.study,
            unfinished=open_ends,
            not_tried=not_tried,
            flat=asked.flat,
            doubts=tuple(asked.doubts),
        )

    def with_own_models(self, trials: Trials) -> Trials:
        """Return the trials with one site's own model, if the budget and its training allow it."""
        tracker = self.tracker
        try:
            if tracker is not None and tracker.left[ALONE] and tracker.exceeds(0):
                raise Spent(ALONE)
            elsewhere = alone_elsewhere(self.search, trials.by_recipe[BASE].best, self.out)
        except Spent:
            return replace(trials, not_tried={**trials.not_tried, ALONE: ""})
        except UnseenError as error:  # one site's troubles are not those of the study
            why = f"cannot be trained here: {str(error).rstrip('.')}"
            return replace(trials, refused={**trials.refused, ALONE: why})
        return with_alone(trials, elsewhere)


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
    """Return the figures of each site's own model at all other sites, at one rate."""
    search.say(f"{ALONE}: {BASE} at one site, tried at the others")
    with warnings.catch_warnings():  # one site's troubles are not those of the study
        warnings.simplefilter("ignore")
        study = until_flat(search.study) if search.flat else search.study
        ran = search.run(changed(study, [BASE], {"alone": True}, factor), out / "alone")
    costs: dict[str, list[Cost]] = defaultdict(list)
    elsewhere = at_targets(ran, search.metric or ran.metric, {}, costs).get(BASE, {})
    means = {site: average(values) for site, values in sorted(elsewhere.items())}
    seconds = average([cost.seconds for cost in costs[BASE]])
    return Trial(ALONE, means, best=factor, seconds=seconds)


def portfolio_for(
    study: StudySpec, data_dir: Path | None, every: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the recipes to choose among, by the form of the data, and those that are left out.

    Args:
        study: The settings that all recipes share.
        data_dir: The data folder.
        every: Whether to take all of them, as far as a budget lasts.
    """
    recipes = TABLES if data_of(study, data_dir).schema is not None else IMAGES
    few = len(recipes) if every else FEW[recipes]
    return recipes[:few], recipes[few:]


def data_of(study: StudySpec, data_dir: Path | None) -> DataSet:
    """Return the study's data set."""
    folder = data_dir or os.environ.get("UNSEEN_DATA")
    return read(study.dataset, Path(folder).expanduser() if folder else None)
