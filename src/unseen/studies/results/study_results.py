"""The results of a study: its records read back, its tables, the protocol under them."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unseen.core import Method
from unseen.core.atomic import write_atomically
from unseen.core.record_lines import Record
from unseen.core.templates import render
from unseen.data.standin import NO_RESULT
from unseen.errors import UnseenError, check_known, choice, optional
from unseen.expression import parse
from unseen.methods.compose import method as compose
from unseen.methods.new_rule import sets_weights
from unseen.studies.results import fairness
from unseen.studies.results.absences import absences
from unseen.studies.results.drawing import dots, lines
from unseen.studies.results.ends import Ends, lengths
from unseen.studies.results.formats import counted
from unseen.studies.results.metric_name import VALIDATION, WORST, MetricName, main_metric
from unseen.studies.results.published_rows import Printed, printed
from unseen.studies.results.records import Job
from unseen.studies.results.search_records import (
    SearchRecord,
    all_ranges,
    as_csv,
    efforts,
    searches,
)
from unseen.studies.results.selection import Selected, at_validation, no_selection, selected
from unseen.studies.results.study_folder import JobFolder, StudyFolder
from unseen.studies.results.table_of_runs import Layout, table
from unseen.studies.results.tables import Table
from unseen.studies.settings.holdout import Task
from unseen.studies.settings.length import in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from unseen.studies.settings.study import StudySpec


@dataclass(frozen=True)
class Results:
    """The finished jobs of a study.

    Attributes:
        study: The study's settings.
        out: The folder of the records.
        methods: The methods that can run.
        tasks: The tasks.
        metrics: The metrics that were recorded.
        model: The model's expression.
        data: The data set's name and digest.
        not_applicable: Method -> why it cannot run.
        weights: The file of initial weights and its digest, if there is one.
        stand_in: Whether the data are a synthetic stand-in, which the protocol then says; no
            published figure is shown next to it.
        notes: Remarks on the data, such as rows that were left out.
        temporary: Keeps a temporary folder alive as long as the results.
    """

    study: StudySpec
    out: Path
    methods: tuple[str, ...]
    tasks: tuple[Task, ...]
    metrics: tuple[str, ...]
    model: str
    data: str
    not_applicable: Mapping[str, str]
    weights: str | None = None
    stand_in: bool = False
    notes: tuple[str, ...] = ()
    temporary: Any = None
    _read: dict[Job, tuple[object, JobFolder]] = field(default_factory=dict, compare=False)

    def folders(self) -> Iterator[JobFolder]:
        """Yield every job that ran to its end or diverged; its files are read again if changed."""
        study = StudyFolder(self.out)
        for key in product(self.methods, [task.name for task in self.tasks], self.study.seed_list):
            job = study.job(Job(*key))
            stamp, (before, same) = job.stamp(), self._read.get(job.job, (None, job))
            if before != stamp:
                same = job
                self._read[job.job] = stamp, job
            if same.finished:
                yield same

    def finished(self) -> Iterator[tuple[Job, Path]]:
        """Yield every job that ran to its end or diverged, with its folder."""
        return ((job.job, job.folder) for job in self.folders())

    def jobs(self) -> Iterator[tuple[Job, list[Record], list[Record]]]:
        """Yield every job that ran to its end, with its source records and its target records."""
        return ((job.job, job.source, job.target) for job in self.folders() if job.state == "done")

    def diverged(self) -> dict[Job, str]:
        """Return the jobs whose numbers stopped being finite, with what happened."""
        return {x.job: x.mark["diverged"] for x in self.folders() if x.state == "diverged"}

    def solved(self) -> list[str]:
        """Return a line for every method whose solver failed, or whose fit needed a penalty."""
        count: Counter[str] = Counter()
        columns: dict[str, set[str]] = {}
        for job in self.folders():
            count[job.job.method] += job.mark.get("fallbacks", 0)
            columns.setdefault(job.job.method, set()).update(job.mark.get("separated", ()))
        what = "and the weights of the plain mean stood in"
        return [
            *(f"{method}: its solver failed {n} times, {what}" for method, n in count.items() if n),
            *(separation(method, names) for method, names in columns.items() if names),
        ]

    @property
    def metric(self) -> str:
        return main_metric(self.study.metric, self.metrics)

    @property
    def plain(self) -> tuple[str, ...]:
        """The metrics that are of no groups."""
        return tuple(name for name in self.metrics if "@" not in name)

    @property
    def offered(self) -> tuple[str, ...]:
        """Every metric that a table can show."""
        groups = self.study.groups
        worst = (str(MetricName(m, column, (WORST,))) for m in self.plain for column in groups)
        target = dict.fromkeys((*self.metrics, *worst))
        has_validation = any(task.validation for task in self.tasks)
        validation = (f"{VALIDATION} {name}" for name in target if has_validation)
        return (*target, *validation, *fairness.offered(self.plain, groups))

    def among(self, names: Sequence[str]) -> tuple[str | None, ...]:
        """Return the names that a table can show; for none of them None, the study's metric."""
        return tuple(name for name in names if name in self.offered) or (None,)

    def table(
        self,
        metric: str | None = None,
        selection: str | None = None,
        test: str | None = None,
    ) -> Table:
        """Return methods × tasks, mean ± standard error over seeds.

        Args:
            metric: What to show (default: the study's), also `worst accuracy@column` for a study
                with groups, `validation accuracy` at domains that are neither source nor target,
                and at the sources as `unseen.studies.results.fairness` names them.
            selection: Another rule than the study's, to compare them.
            test: The p against the reference, `wilcoxon` or `t` (default: `t` next to a paper's
                p, else `wilcoxon`).
        """
        metric, rule = metric or self.metric, selection or self.study.selection
        check_known("metric", self.offered, metric)
        failed, paper = self.diverged(), self.paper(metric)
        ends = Ends(self.own_rounds(), self.study.evaluate_every)
        runs, columns, notes = ends.watch(self._runs(failed, rule)), tuple[str, ...](), []
        if metric in fairness.offered(self.plain, self.study.groups):
            columns, results = fairness.of_sources(metric, runs)
            notes = [fairness.note(metric)]
        elif VALIDATION in MetricName.parse(metric).words:
            results = [at_validation(run, source, metric) for run, source in runs]
            notes = ["at the validation domains, which are neither source nor target"]
        else:
            results = [run for run, _ in runs]
        tasks = columns or tuple(task.name for task in self.tasks)
        layout = Layout(
            methods=(*self.methods, *self.not_applicable),
            tasks=tasks,
            seeds=self.study.seed_list,
            not_applicable=self.not_applicable,
            protocol=(
                *notes,
                *divergence_lines(failed),
                *self.solved(),
                *self.protocol(rule),
                *ends.notes(self.metric, self.study.patience is not None),
            ),
            title=self.study.title or self.study.name,
            unit="environment" if columns else "target",
        )
        # Environments of the sources are not targets to rank or to test over.
        reference = None if columns else self.study.reference
        return table(results, metric, layout, reference, test, paper)

    def _runs(self, failed: Iterable[Job], rule: str) -> Iterator[tuple[Selected, list[Record]]]:
        """Yield the selected round of every finished job, with its source records."""
        for job in self.folders():
            if job.state == "done":
                run = selected(job.source, job.target, rule, self.metric, job.constant)
                yield run, job.source
        yield from ((no_selection(job, self.offered), []) for job in failed)

    def published(self, metric: str) -> dict[str, dict[str, str]]:
        """Return the paper's rows for a metric, as texts by column."""
        return self.paper(metric).texts()

    def paper(self, metric: str) -> Printed:
        """Return the paper's figures of a metric; none for a stand-in, which is not a result."""
        return Printed() if self.stand_in else printed(self.study.published, metric)

    def protocol(self, selection: str) -> list[str]:
        """Return what a reader must know to trust or repeat the table.

        Args:
            selection: The rule that chose the rounds.
        """
        methods, own_rounds = self.composed(), self.own_rounds()
        searched = self.searched()
        by_rule = [name for name, method in methods.items() if sets_weights(method)]
        named = [name for name in self.methods if "weights" in parse(name)[0].arguments]
        text = render(
            "unseen.studies.results",
            "protocol.jinja",
            selection=selection,
            study=self.study,
            recipe=self.study.training,
            results=self,
            unit=parse(self.study.dataset)[0].arguments.get("unit"),
            own_rounds=own_rounds,
            own_weights=[name for name in named if name not in by_rule],
            by_rule=by_rule,
            counted=counted,
            in_words=in_words,
            searches=searched,
            several=any(len(task.targets) > 1 for task in self.tasks),
            ranges=all_ranges(searched),
            efforts=efforts(searched),
            played=self.played(own_rounds) if self.study.patience else (),
            no_result=NO_RESULT,
        )
        lines = [" ".join(line.split()) for line in f"\n{text}".split("\n* ")[1:]]
        return [*lines, *absences(self.out, self.tasks, self.folders())]

    def composed(self) -> dict[str, Method]:
        """Return the study's methods by their expressions, without a user's that are gone."""
        methods: dict[str, Method] = {}
        for text in self.methods:
            with suppress(UnseenError):
                methods[text] = compose(text)
        return methods

    def own_rounds(self) -> list[str]:
        """Return the methods that say themselves how many rounds they take."""
        return [text for text, method in self.composed().items() if method.rounds is not None]

    def searched(self) -> list[SearchRecord]:
        """Return the records of the searches of settings."""
        tasks = [task.name for task in self.tasks]
        return list(searches(self.out, self.methods, tasks)) if self.study.tune else []

    def played(self, without: Sequence[str]) -> list[str]:
        """Return for each method, without these, after how many rounds its jobs ended."""
        counts: dict[str, list[int]] = defaultdict(list)
        for job in self.folders():
            if job.job.method not in without:
                counts[job.job.method].append(len({row["round"] for row in job.rounds}))
        return [f"{method} {lengths(own, self.study.rounds)}" for method, own in counts.items()]

    def made_with(self) -> list[str]:
        """Return the versions that made the records; several lines if they differ among jobs."""
        versions = (job.mark["versions"].items() for job in self.folders())
        return list(dict.fromkeys(", ".join(f"{n} {v}" for n, v in item) for item in versions))

    def __repr__(self) -> str:
        what = f"{len(self.methods)} methods × {len(self.tasks)} tasks"
        seeds = f"{len(self.study.seed_list)} seeds"
        return f"<Results {self.study.name}: {what} × {seeds}, {self.metric}>"

    def _repr_html_(self) -> str:
        """Return the table as a notebook shows it."""
        return f"<pre>{escape(str(self.table()))}</pre>"

    def to_pandas(self) -> Any:
        """Return every run's figures at the chosen round as a data frame, a row for each run."""
        pandas = optional("pandas", "a data frame needs", "pandas", "read runs.csv")
        return pandas.read_csv(io.StringIO(self.table().runs_csv()))

    def plot(
        self, over: Literal["targets", "rounds"] = "targets", metric: str | None = None
    ) -> Figure:
        """Return a figure: the means of the table by target, or over rounds at each target.

        Args:
            over: `targets`, the chosen rounds' means with their standard errors over seeds; or
                `rounds`, the mean over seeds at every round.
            metric: What to draw (default: the study's).
        """
        choice("over", over, ("targets", "rounds"))
        if over == "targets":
            return dots(self.table(metric))
        check_known("metric", self.metrics, name := metric or self.metric)
        records = [record for _, _, target in self.jobs() for record in target]
        return lines(records, name, [task.name for task in self.tasks])

    def write(self) -> None:
        """Write the study's table next to the records, as csv, Markdown and LaTeX.

        Note:
            The notes of both csv files are in a file of their own, so that any program reads them.
        """
        whole = self.table()
        for name, content in {
            "table.csv": whole.to_csv(),
            "runs.csv": whole.runs_csv(),
            "table.notes.txt": whole.to_notes(),
            "table.md": whole.to_markdown(),
            "table.tex": whole.to_latex(),
        }.items():
            write_atomically(self.out / name, content.encode())
        if searched := self.searched():
            write_atomically(self.out / "tuned.csv", as_csv(searched).encode())


def divergence_lines(failed: Mapping[Job, str]) -> list[str]:
    """Return a line for every method with jobs that diverged: where, and what happened first."""
    lines = []
    for method in dict.fromkeys(job.method for job in failed):
        jobs = [job for job in failed if job.method == method]
        seeds: dict[str, list[str]] = defaultdict(list)
        for job in jobs:
            seeds[job.task].append(str(job.seed))
        at = (f"{t}, {'seeds' if s[1:] else 'seed'} {', '.join(s)}" for t, s in seeds.items())
        lines.append(
            f"diverged, counted as undefined: {method} at {'; '.join(at)}. First: {failed[jobs[0]]}"
        )
    return lines


def separation(method: str, columns: Iterable[str]) -> str:
    """Return what is said of columns that separate the classes."""
    names = ", ".join(sorted(columns))
    return f"{method}: classes are separated by {names}; a small penalty keeps coefficients finite"
