"""A study: the folder of its records, and the finished runs in it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unseen.core.record_lines import Record
from unseen.studies.report.figures import INK
from unseen.studies.results.published_rows import Printed, printed
from unseen.studies.results.selection import Selected
from unseen.studies.results.statistics import Cell
from unseen.studies.results.study_folder import JobFolder, StudyFolder
from unseen.studies.results.study_results import Results, divergence_lines
from unseen.studies.results.table_of_runs import Layout, table
from unseen.studies.results.tables import Table
from unseen.studies.settings.holdout import Task
from unseen.studies.settings.study import StudySpec

#: What identifies a job in the lines of its records.
KEYS = ("method", "task", "seed")


@dataclass(frozen=True)
class Omission:
    """Something that is not on the page.

    Attributes:
        place: Where it is.
        reason: Why it is left out.
    """

    place: str
    reason: str


class Folder(StudyFolder):
    """A folder of which at least the protocol is known."""

    @cached_property
    def _reasons(self) -> list[tuple[JobFolder, str]]:
        targets = self.settings.get("holdout") != "none"
        return [(job, unusable(job, targets)) for job in self.jobs()]

    @property
    def runs(self) -> tuple[JobFolder, ...]:
        return tuple(job for job, reason in self._reasons if not reason)

    @property
    def omissions(self) -> tuple[Omission, ...]:
        names = ((str(job.folder.relative_to(self.path.parent)), why) for job, why in self._reasons)
        return tuple(Omission(name, why) for name, why in names if why)


def read_folder(path: Path) -> Folder | Omission:
    """Return a folder, or why there is nothing to show of it."""
    if not path.is_dir():
        return Omission(str(path), "is not a folder")
    folder = Folder.open(path)
    if folder.problem == "missing":
        return Omission(str(path), "has no study.json, so its protocol is unknown")
    if not isinstance(folder.identity.get("settings"), dict):
        return Omission(str(path), "its study.json is damaged, so its protocol is unknown")
    return folder


def unusable(job: JobFolder, targets: bool) -> str:
    """Return why a job is left out; "" for one to show.

    Args:
        job: The job's folder.
        targets: Whether its study has targets.
    """
    if not (job.folder / "done.json").exists():
        return f"unfinished: {len({r.get('round') for r in job.rounds})} rounds are recorded"
    if job.state == "damaged":
        return "damaged: its records have changed since it finished"
    jobs = {tuple(row.get(key) for key in KEYS) for row in (*job.source, *job.target)}
    if job.state == "diverged" and not jobs:
        return ""
    if job.state == "done" and not (job.source and (job.target or not targets)):
        return "it holds no evaluations"
    if len(jobs) != 1 or None in next(iter(jobs)):
        return "its records are those of several jobs"
    return ""


@dataclass(frozen=True)
class Run:
    """A finished job with the round that counts."""

    raw: JobFolder
    result: Selected

    @property
    def method(self) -> str:
        return self.raw.job.method

    @property
    def task(self) -> str:
        return self.raw.job.task

    @property
    def trained(self) -> list[Record]:
        """The rounds of the exchange that trains the model."""
        return [r for r in self.raw.rounds if r.get("exchange") == "train"]


@dataclass(frozen=True)
class StudyReport:
    """All that ran of a study.

    Attributes:
        study: The study's settings.
        folder: The folder of its records.
        runs: The finished jobs.
        methods: The rows of its tables.
        tasks: The columns.
        metric: What is shown first.
        selection: The rule that chose each run's round.
        reference: The method that the others are tested against, or None.
        omissions: What is left out.
    """

    study: StudySpec
    folder: Folder
    runs: tuple[Run, ...]
    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    metric: str
    selection: str
    reference: str | None
    omissions: tuple[Omission, ...]

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that decides what a job computes."""
        return self.folder.identity

    @property
    def stand_in(self) -> bool:
        """Whether the data are a synthetic stand-in."""
        return self.folder.stand_in

    def paper(self, metric: str) -> Printed:
        """Return the paper's figures of a metric; none next to a stand-in, not a result."""
        return Printed() if self.stand_in else printed(self.study.published, metric)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What can be shown: the study's metric first, then the others."""
        metrics = next(run.result.metrics for run in self.runs if run.result.round >= 0)
        return tuple(dict.fromkeys((self.metric, *self.identity.get("metrics", ()), *metrics)))

    @property
    def title(self) -> str:
        own = self.study.title or (self.study.name if self.study.name != "study" else "")
        return own or f"{self.study.dataset}: {self.folder.path.name}"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds asked for and those found."""
        return tuple(sorted({*self.study.seed_list, *(run.raw.job.seed for run in self.runs)}))

    @property
    def refused(self) -> dict[str, str]:
        """Methods that the data or the model cannot serve, with the reason."""
        return self.folder.refused

    def colour(self, method: str) -> int:
        """Return a method's colour in panels of dots, where the reference stands out."""
        return INK if method == self.reference else 0

    def of(self, method: str, *tasks: str) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.method == method and run.task in tasks)

    @cached_property
    def tables(self) -> Mapping[str, Table]:
        return {metric: self.table(metric) for metric in self.metrics}

    @property
    def main(self) -> Table:
        return self.tables[self.metric]

    @property
    def panels(self) -> Mapping[str, tuple[str, ...]]:
        """A panel's title -> its targets: one each, or one for all where they are many."""
        if self.main.many:
            return {f"mean over {len(self.tasks)} targets": self.tasks}
        return {task: (task,) for task in self.tasks}

    @cached_property
    def domains(self) -> Mapping[str, int]:
        """Every domain that is a source of some task -> its colour, the same in all figures."""
        names = {row["domain"] for run in self.runs for row in run.raw.source}
        return {name: i for i, name in enumerate(sorted(names, key=natural))}

    @cached_property
    def results(self) -> Results:
        """The results of the folder."""
        about = self.identity
        return Results(
            self.study.model_copy(update={"seeds": self.seeds}),
            self.folder.path,
            self.methods,
            self.plan,
            tuple(self.metrics),
            about.get("model", ""),
            about.get("data", ""),
            self.refused,
            about.get("weights"),
            self.stand_in,
            self.folder.notes,
        )

    @cached_property
    def protocol(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.results.protocol(self.selection)))

    def table(self, metric: str) -> Table:
        """Return methods × tasks for a metric, with the protocol under it."""
        paper = self.paper(metric)
        marks = {run.raw.job: run.raw.mark.get("diverged", "") for run in self.runs}
        diverged = divergence_lines({job: why for job, why in marks.items() if why})
        layout = Layout(
            methods=self.methods,
            tasks=self.tasks,
            seeds=self.seeds,
            not_applicable=self.refused,
            protocol=(*diverged, *self.protocol),
            title=self.title,
        )
        results = [run.result for run in self.runs]
        return table(results, metric, layout, self.reference, published=paper)

    @cached_property
    def plan(self) -> tuple[Task, ...]:
        """The tasks with their domains, as the records show them."""
        tasks = []
        for name in self.tasks:
            run = next((r for r in self.runs if r.task == name), None)
            roles = {r["domain"]: r["role"] for r in run.raw.source} if run else {}
            sources = tuple(d for d, role in roles.items() if role == "source")
            targets = dict.fromkeys(r["domain"] for r in run.raw.target) if run else ()
            validators = tuple(d for d, role in roles.items() if role == "ood-validation")
            tasks.append(Task(name, sources, tuple(targets), validators))
        return tuple(tasks)


def natural(text: str) -> list[tuple[int, float, str]]:
    """Return a key that sorts M5 before M15, and -1 before 2.

    Example:
        >>> sorted(["M15", "M5", "a2"], key=natural)
        ['M5', 'M15', 'a2']
    """
    pieces = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(0, float(p), "") if i % 2 else (1, 0.0, p) for i, p in enumerate(pieces)]


def cells_of(table: Table, name: str) -> Mapping[str, Cell]:
    """Return method -> its cell in a column, which may be that of the percentile."""
    if name == table.tail_name:
        return dict(zip(table.methods, table.tail, strict=True))
    at = table.columns.index(name)
    return {m: row[at] for m, row in zip(table.methods, table.cells, strict=True)}
