"""The search inside every (method, task): trials on the task's sources alone, and their winner."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.studies.execution.sampler import Sampler, combinations
from unseen.studies.execution.setting import Setting, Trial
from unseen.studies.execution.spaces import defaults, filled, spaces_of, with_values
from unseen.studies.results.metric_name import main_metric
from unseen.studies.results.records import Job
from unseen.studies.results.search_records import SearchRecord, TrialRecord, place, winner
from unseen.studies.results.selection import less_is_better, select, value
from unseen.studies.results.statistics import mean
from unseen.studies.results.study_folder import JobFolder
from unseen.studies.settings.holdout import Task
from unseen.studies.settings.search_plan import Tune
from unseen.studies.settings.search_space import Space
from unseen.studies.settings.study import StudySpec

#: Trials that are asked for at a time, however many processes there are, so that what a sampler
#: knows when it is asked does not depend on their number.
AT_A_TIME = 4

#: What `run_job` takes.
Order = tuple[Setting, Job, Task]


@dataclass
class Attempt:
    """A trial on its way.

    Attributes:
        record: What is known of it.
        setting: The study's setting with its values, and its own folder.
        ticket: What the sampler knows it by; None for the study's own setting.
    """

    record: TrialRecord
    setting: Setting
    ticket: Any = None


@dataclass
class Search:
    """The search for one method at one task.

    Attributes:
        setting: What all jobs of the study share.
        tune: Its search.
        method: The method, as the study names it.
        task: The task, whose sources alone are used.
        spaces: What is searched.
        folder: Where its trials are.
        attempts: The trials so far.
    """

    setting: Setting
    tune: Tune
    method: str
    task: Task
    spaces: tuple[Space, ...]
    folder: Path
    attempts: list[Attempt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.main = main_metric(self.setting.study.metric, self.setting.metrics)
        self.metric, self.selection = scoring(self.setting)
        self.lower = less_is_better(self.metric)
        self.ranges = {n: r for space in self.spaces for n, r in space.ranges.items()}
        self.tasks = self.tune.tasks(self.task)
        name = f"{self.method}/{self.task.name}"
        self.sampler = Sampler(self.tune, self.ranges, name, self.lower) if self.ranges else None

    @property
    def trials(self) -> int:
        """How many trials there are, with the study's own setting."""
        if self.sampler is None:
            return 1
        return 1 + combinations(self.ranges) if self.tune.sampler == "grid" else self.tune.trials

    @property
    def rungs(self) -> tuple[tuple[Task, ...], ...]:
        """The tasks of a trial, in parts after which it may be pruned."""
        half = (len(self.tasks) + 1) // 2
        if not self.tune.prune or len(self.tasks) < 2 or self.sampler is None:
            return (self.tasks,)
        return self.tasks[:half], self.tasks[half:]

    def ask(self) -> list[Attempt]:
        """Return the next trials; the first of all is the study's own setting."""
        coming = list[Attempt]()
        for _ in range(min(AT_A_TIME, self.trials - len(self.attempts))):
            if not self.attempts and not coming:
                coming.append(self.attempt({}))
            elif self.sampler is not None:
                ticket, values = self.sampler.ask()
                coming.append(replace(self.attempt(values), ticket=ticket))
        self.attempts += coming
        return coming

    def attempt(self, values: Mapping[str, Any]) -> Attempt:
        """Return a trial of these values; of none, of the study's own setting."""
        method, settings = filled(self.method, self.spaces, values)
        setting = tuned(self.setting, {**settings, **self.tune.length})
        name = sha256(repr((method, sorted(settings.items()))).encode()).hexdigest()[:10]
        out = self.folder / f"trial-{name}"
        trial = Trial(self.method, values, searching=True)
        setting = replace(setting, out=out, trial=trial)
        return Attempt(TrialRecord(values, method, settings), setting)

    def orders(self, attempt: Attempt, rung: Sequence[Task]) -> Iterator[Order]:
        """Yield the jobs of a trial at these tasks."""
        for task in rung:
            for seed in attempt.setting.study.seed_list[: self.tune.seeds]:
                yield attempt.setting, Job(attempt.record.method, task.name, seed), task

    def judge(self, attempt: Attempt, rung: int) -> None:
        """Score a trial at the tasks up to a rung."""
        played = [task for part in self.rungs[: rung + 1] for task in part]
        orders = self.orders(attempt, played)
        folders = [JobFolder(job, job.folder(setting.out)) for setting, job, _ in orders]
        rounds, steps = map(sum, zip(*map(work, folders), strict=True))
        record = replace(attempt.record, rounds=rounds, steps=steps)
        figures = self.figures(folders)
        last = rung == len(self.rungs) - 1
        if any(folder.state == "diverged" for folder in folders):
            record = replace(record, state="diverged")
        elif last and not figures:
            raise UnseenError(
                f"{self.metric} has no value at any source of task {self.task.name!r}, so that no "
                f"trial of {self.method} can be scored.",
                remedy="Set tune.metric to another: AUROC, for one, needs both classes at a site.",
            )
        else:
            record = replace(record, sites=figures)
            if last:
                record = replace(record, state="done", value=mean(list(figures.values())))
            elif figures and attempt.ticket is not None and self.worse(attempt.ticket, figures):
                record = replace(record, state="pruned")
        attempt.record = record
        if record.state != "waiting":
            self.tell(attempt)

    def worse(self, ticket: Any, figures: Mapping[str, float]) -> bool:
        """Return whether a trial is worse than the best at the sites seen."""
        return self.sampler is not None and self.sampler.worse(ticket, self.by_step(figures))

    def by_step(self, figures: Mapping[str, float]) -> dict[int, float]:
        """Return each site's place among all that are judged -> its figure, if it has one."""
        tasks = [task for part in self.rungs for task in part]
        sites = [site for task in tasks for site in task.targets or task.sources]
        return {sites.index(site): figure for site, figure in figures.items()}

    def tell(self, attempt: Attempt) -> None:
        """Tell the sampler how a trial ended."""
        record, sampler = attempt.record, self.sampler
        if sampler is None:
            return
        figures = self.by_step(record.sites)
        if attempt.ticket is not None:
            sampler.tell(attempt.ticket, figures, record.value)
        elif record.value is not None and (own := self.own()) is not None:
            sampler.knows(own, figures, record.value)

    def own(self) -> dict[str, Any] | None:
        """Return the study's own values of what is searched; None where it has other forms."""
        study, values = self.setting.study.model_dump(), dict[str, Any]()
        for space in self.spaces:
            if space.setting == self.method:
                values |= defaults(self.method, space)
                continue
            now: Any = study
            for key in space.setting.split("."):
                now = now.get(key) if isinstance(now, dict) else None
            if (inner := space.values_in(now)) is None:
                return None
            values |= inner
        return values

    def figures(self, folders: Sequence[JobFolder]) -> dict[str, float]:
        """Return site -> its figure at the round that the study's selection takes, over seeds."""
        by_site: dict[str, list[float]] = {}
        for job in folders:
            if job.state != "done":
                continue
            round_ = select(self.selection, job.source, job.target, self.main)
            rows = job.target or [row for row in job.source if row["role"] == "source"]
            for row in rows:
                if row["round"] == round_ and (figure := value(row, self.metric)) is not None:
                    by_site.setdefault(row["domain"], []).append(figure)
        return {site: mean(figures) for site, figures in by_site.items()}

    def record(self, ended: bool = False) -> SearchRecord:
        """Return what the search leaves."""
        trials = tuple(attempt.record for attempt in self.attempts)
        return SearchRecord(
            self.method,
            self.task.name,
            self.tune.criterion,
            self.metric,
            self.lower,
            {name: str(search) for name, search in self.ranges.items()},
            trials,
            winner(trials, self.lower) if ended else None,
            self.selection,
        )


def scoring(setting: Setting) -> tuple[str, str]:
    """Return the metric that trials are scored by, and the rule that takes their round.

    A search has no target that could choose a round, and no domains apart from its sources.
    """
    study, tune = setting.study, setting.study.tune or Tune()
    by_sources = study.selection.startswith(("source-validation", "last"))
    metric = tune.metric or main_metric(study.metric, setting.metrics)
    return metric, study.selection if by_sources else "source-validation"


def check_same(setting: Setting, before: SearchRecord) -> None:
    """Refuse a search that ended by another score; all else is part of the folder's settings."""
    metric, selection = scoring(setting)
    rule = before.selection or selection
    if (before.metric, rule) != (metric, selection):
        raise UnseenError(
            f"the folder's search scored {before.metric} at the round of {rule}, and this one "
            f"scores {metric} at that of {selection}.",
            remedy="Choose another --out. To see another metric or selection of the same runs: "
            "unseen table.",
        )


def search(
    setting: Setting,
    methods: Sequence[str],
    tasks: Sequence[Task],
    work: Callable[[Sequence[Order]], Iterator[Job]],
    say: Callable[[Job], None] = lambda job: None,
) -> dict[tuple[str, str], SearchRecord]:
    """Search for every method at every task; what has been played is not played again.

    Trials of all searches are played together, a few of each at a time, so that processes do not
    wait for one another.

    Args:
        setting: What all jobs of the study share; its study has a search.
        methods: The methods.
        tasks: The tasks.
        work: Plays jobs.
        say: Receives the jobs as they finish.

    Returns:
        (method, task) -> the record of its search.
    """
    tune, records, open_ = setting.study.tune, {}, list[Search]()
    if tune is None:
        raise UnseenError("this study has no search.", remedy="Give it a [tune] table.")
    for method in methods:
        spaces = spaces_of(setting.study, method)
        for task in tasks:
            folder = place(setting.out, method, task.name)
            before = SearchRecord.read(folder)
            if before is not None and before.winner is not None:
                check_same(setting, before)
                records[method, task.name] = before
            else:
                open_.append(Search(setting, tune, method, task, spaces, folder))
    going = open_
    while going := [one for one in going if len(one.attempts) < one.trials]:
        coming = {id(one): one.ask() for one in going}
        for rung in range(2):
            left = [
                (one, attempt)
                for one in going
                if rung < len(one.rungs)
                for attempt in coming[id(one)]
                if attempt.record.state == "waiting"
            ]
            orders = {
                job.folder(place.out): (place, job, task)
                for one, attempt in left
                for place, job, task in one.orders(attempt, one.rungs[rung])
            }
            missing = [
                order
                for folder, order in orders.items()
                if not JobFolder(order[1], folder).finished
            ]
            for job in work(missing):
                say(job)
            for one, attempt in left:
                one.judge(attempt, rung)
        for one in going:
            one.record().write(one.folder)
    for one in open_:
        records[one.method, one.task.name] = one.record(ended=True)
        one.record(ended=True).write(one.folder)
    return records


def jobs_of(study: StudySpec, methods: Sequence[str], tasks: Sequence[Task]) -> int:
    """Return how many jobs the searches of a study take at most."""
    tune = study.tune
    if tune is None:
        return 0
    count = 0
    for method in methods:
        ranges = {n: r for space in spaces_of(study, method) for n, r in space.ranges.items()}
        trials = tune.trials if ranges else 1
        if ranges and tune.sampler == "grid":
            trials = 1 + combinations(ranges)
        seeds = len(study.seed_list[: tune.seeds])
        count += sum(trials * len(tune.tasks(task)) * seeds for task in tasks)
    return count


def tuned(setting: Setting, settings: Mapping[str, Any]) -> Setting:
    """Return the setting with other values of the study's settings, and without a search."""
    changed = with_values(setting.study, settings)
    return replace(setting, study=changed, model=changed.model or setting.model)


def winners(
    setting: Setting, records: Mapping[tuple[str, str], SearchRecord]
) -> dict[tuple[str, str], Setting]:
    """Return (method, task) -> the setting that its search chose."""
    return {
        (method, task): replace(
            tuned(setting, record.best.settings),
            tuned=record.best.method,
            trial=Trial(method, record.best.values),
        )
        for (method, task), record in records.items()
    }


def work(job: JobFolder) -> tuple[int, int]:
    """Return the rounds that a job played, and the local steps of all its clients."""
    rounds = {row["round"] for row in job.rounds}
    steps = sum(sum(map(int, row["scalars"].get("steps", ()))) for row in job.rounds)
    return len(rounds), steps
