"""A study at this moment, from its folder: what is done, what is running and what is left."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from unseen.errors import UnseenError
from unseen.expression import parse, text
from unseen.studies.results.records import Job
from unseen.studies.results.search_records import FOLDER, SearchRecord
from unseen.studies.results.search_records import NAME as SEARCH
from unseen.studies.results.selection import value
from unseen.studies.results.statistics import mean
from unseen.studies.results.study_file import NAME
from unseen.studies.results.study_folder import (
    Curve,
    JobFolder,
    State,
    StudyFolder,
    curve,
    last_record,
    modified,
)

#: Seconds without a new record after which a folder whose lock cannot be read counts as idle.
STILL = 60.0
UNKNOWN = {
    "missing": "there is no study.json: how much is left is unknown",
    "damaged": "study.json is damaged: how much is left is unknown",
}


@dataclass(frozen=True)
class Progress:
    """One job.

    Attributes:
        job: The job.
        state: Its state.
        rounds: Recorded rounds.
        validation: The metric by round, the mean over the sources.
        target: The same over the targets.
        last_write: When its records last grew, in seconds since the epoch.
        seconds: What it took, once it is done.
        why: What happened to it, where it diverged.
    """

    job: Job
    state: State = "waiting"
    rounds: int = 0
    validation: Curve = field(default_factory=dict)
    target: Curve = field(default_factory=dict)
    last_write: float | None = None
    seconds: float | None = None
    why: str = ""

    @property
    def over(self) -> bool:
        return self.state in ("done", "diverged")

    @property
    def name(self) -> str:
        return f"{self.job.method} · {self.job.task} · seed {self.job.seed}"


@dataclass(frozen=True)
class Snapshot:
    """A study at one moment.

    Attributes:
        title: What the study calls itself.
        metric: What the curves show.
        rounds: Rounds of each job; None where that is unknown.
        jobs: All jobs, in the study's order.
        active: Whether a run is at work.
        start: When that run started, in seconds since the epoch.
        now: When the snapshot was taken.
        refused: Methods that cannot run, with the reason.
        notes: What a reader must know.
    """

    title: str
    metric: str
    rounds: int | None
    jobs: tuple[Progress, ...]
    active: bool
    start: float
    now: float
    refused: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, *states: State) -> tuple[Progress, ...]:
        return tuple(job for job in self.jobs if job.state in states)

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(job.job.method for job in self.jobs))

    @property
    def finished(self) -> bool:
        return bool(self.jobs) and all(job.over for job in self.jobs)

    def ahead(self, job: Progress) -> int:
        """Return a job's rounds still to play; 0 for one that diverged."""
        return 0 if job.over else max((self.rounds or 0) - job.rounds, 0)

    def share(self) -> float | None:
        """Return the share of all rounds that is played; None where it is unknown."""
        if self.rounds is None or not self.jobs:
            return None
        return 1 - sum(map(self.ahead, self.jobs)) / (self.rounds * len(self.jobs))

    def seconds_left(self) -> float | None:
        """Return the seconds until the end at the pace of this run; None where nothing tells it.

        Rounds are weighted by what a round of their method took in finished jobs. The pace is that
        of this run, over all its processes: what it has played since it was started.
        """
        if self.rounds is None or not self.active or self.finished:
            return None
        cost = self.costs()
        this_run = [job for job in self.jobs if (job.last_write or 0) > self.start]
        played = sum(job.rounds * cost[job.job.method] for job in this_run)
        ahead = sum(self.ahead(job) * cost[job.job.method] for job in self.jobs)
        return (self.now - self.start) * ahead / played if played else None

    def costs(self) -> dict[str, float]:
        """Return seconds per round by method: of its done jobs, else of the others', else 1."""
        seconds: dict[str, list[float]] = defaultdict(list)
        for job in self.of("done"):
            if job.seconds and job.rounds:
                seconds[job.job.method].append(job.seconds / job.rounds)
        means = {method: mean(values) for method, values in seconds.items()}
        usual = mean(list(means.values())) if means else 1.0
        return {method: means.get(method, usual) for method in self.methods}


@dataclass
class Reader:
    """Reads a study's folder repeatedly; files that have not changed are not read twice.

    Attributes:
        folder: The study's folder.
        metric: What to show instead of the study's metric.
        cache: A job's folder -> its files' stamp and the metric, and what was read then.
    """

    folder: Path
    metric: str | None = None
    cache: dict[Path, tuple[object, Progress]] = field(default_factory=dict)

    def snapshot(self) -> Snapshot:
        """Return the study as it is now.

        Raises:
            UnseenError: The records do not have the metric.
        """
        study = StudyFolder.open(self.folder)
        if self.metric is not None and (first := study.first):
            value(first, self.metric)
        own, there = study.settings, list(study.jobs())
        rounds = (own or study.identity.get("settings") or {}).get("rounds")
        active, start = at_work(self.folder), modified(self.folder / NAME) or 0.0
        places = jobs_of(study, there)
        notes = [UNKNOWN[study.problem]] if study.problem else []
        if others := len({job.folder for job in there} - {job.folder for job in places}):
            notes.append(f"{others} more jobs, of earlier settings, are in the same folder")
        if own.get("tune"):
            notes.append(searched(self.folder, len({(j.job.method, j.job.task) for j in places})))
        if own and not (study.about.get("tasks") or own.get("targets")):
            notes.append("written by an earlier version: targets without records are not counted")
        metric, jobs = self.metric or study.metric, []
        for job in places:
            key = (job.stamp(), metric)
            if self.cache.get(job.folder, (None,))[0] != key:
                self.cache[job.folder] = key, progress(job, metric)
            jobs.append(self.cache[job.folder][1])
        # Records that this run has written to are being written; others wait for their turn.
        running = [j.state == "stopped" and active and (j.last_write or 0) > start for j in jobs]
        return Snapshot(
            title=str(own.get("title") or own.get("name") or self.folder.name),
            metric=metric,
            rounds=rounds if isinstance(rounds, int) else None,
            jobs=tuple(
                replace(job, state="running") if now else job
                for job, now in zip(jobs, running, strict=True)
            ),
            active=active,
            start=start,
            now=time.time(),
            refused=study.refused,
            notes=tuple(notes),
        )


def searched(folder: Path, count: int) -> str:
    """Return how many of `count` searches are done.

    Note:
        Jobs of the study itself begin when all searches have ended.
    """
    read = (SearchRecord.read(path.parent) for path in (folder / FOLDER).glob(f"*/*/{SEARCH}"))
    records = [record for record in read if record is not None]
    trials = sum(trial.state != "waiting" for record in records for trial in record.trials)
    ended = sum(record.winner is not None for record in records)
    return f"{ended} of {count} searches have ended; {trials} trials are scored"


def jobs_of(study: StudyFolder, there: Sequence[JobFolder]) -> Sequence[JobFolder]:
    """Return every job that the study asks for; where the folder does not say, those in it.

    Args:
        study: The study's folder.
        there: The jobs that have a folder in it.
    """
    settings = study.settings
    if not settings:
        return there
    methods = [m for m in map(canonical, settings.get("methods", ())) if m not in study.refused]
    tasks_there = (*(settings.get("targets") or ()), *(job.job.task for job in there))
    tasks = study.about.get("tasks") or dict.fromkeys(tasks_there)
    seeds = settings.get("seeds", 1)
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    return [study.job(Job(*key)) for key in product(methods, tasks, seeds)]


def progress(job: JobFolder, metric: str) -> Progress:
    """Return how far a job is, by its records.

    Args:
        job: The job's folder.
        metric: What the curves show.
    """
    seconds = job.mark.get("seconds")
    return Progress(
        job.job,
        job.state,
        int(last_record(job.folder / "rounds.jsonl").get("round", -1)) + 1,
        curve([row for row in job.source if row.get("role") == "source"], metric),
        curve(job.target, metric),
        job.last_write,
        float(seconds) if isinstance(seconds, int | float) else None,
        str(job.mark.get("diverged", "")),
    )


def canonical(expression: str) -> str:
    """Return a method as records name it."""
    try:
        return text(parse(expression))
    except UnseenError:
        return expression


def at_work(folder: Path) -> bool:
    """Return whether a run holds the folder's lock, which is tried as a second reader would."""
    try:
        import fcntl

        with (folder / ".lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError) as error:
        return isinstance(error, BlockingIOError)
    except (ImportError, OSError):
        files = (job.folder / "rounds.jsonl" for job in StudyFolder(folder).jobs())
        return any((modified(file) or 0) > time.time() - STILL for file in files)
    return False
