"""The results of a study: its records read back, its tables, the protocol under them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.core.atomic import write_atomically
from unseen.datasets.standin import NO_RESULT
from unseen.errors import UnseenError, nearest
from unseen.expression import parse
from unseen.methods.base import sets_weights
from unseen.methods.compose import method as compose
from unseen.results import protection, source_environments
from unseen.results.metric_name import VALIDATION, WORST, MetricName
from unseen.results.published_rows import Printed, printed
from unseen.results.records import Job, Record
from unseen.results.selection import (
    Selected,
    at_validation,
    less_is_better,
    main_metric,
    no_selection,
    selected,
)
from unseen.results.study_folder import JobFolder, StudyFolder
from unseen.results.table_of_runs import table
from unseen.results.tables import Table
from unseen.spec.holdout import Task

if TYPE_CHECKING:
    from unseen.spec.study import StudySpec


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

    def folders(self) -> Iterator[JobFolder]:
        """Yield every job that ran to its end or diverged."""
        study = StudyFolder(self.out)
        for key in product(self.methods, [task.name for task in self.tasks], self.study.seed_list):
            if (job := study.job(Job(*key))).finished:
                yield job

    def finished(self) -> Iterator[tuple[Job, Path]]:
        """Yield every job that ran to its end or diverged, with its folder."""
        return ((job.job, job.folder) for job in self.folders())

    def jobs(self) -> Iterator[tuple[Job, list[Record], list[Record]]]:
        """Yield every job that ran to its end, with its source records and its target records."""
        return ((job.job, job.source, job.target) for job in self.folders() if job.state == "done")

    def diverged(self) -> dict[Job, str]:
        """The jobs whose numbers stopped being finite, with what happened."""
        return {x.job: x.mark["diverged"] for x in self.folders() if x.state == "diverged"}

    def fallbacks(self) -> list[str]:
        """A line for every method whose solver failed, with how often."""
        count: Counter[str] = Counter()
        for job in self.folders():
            count[job.job.method] += job.mark.get("fallbacks", 0)
        return [
            f"{method}: its solver failed {n} times, and the weights of the plain mean stood in"
            for method, n in count.items()
            if n
        ]

    @property
    def metric(self) -> str:
        """What the study selects and reports by."""
        return main_metric(self.study.metric, self.metrics)

    @property
    def offered(self) -> tuple[str, ...]:
        """Every metric that a table can show."""
        groups = self.study.groups
        worst = (str(MetricName(m, column, (WORST,))) for m in self.metrics for column in groups)
        target = (*self.metrics, *worst)
        validators = any(task.validation for task in self.tasks)
        validation = (f"{VALIDATION} {name}" for name in target if validators)
        return (*target, *validation, *source_environments.offered(self.metrics, groups))

    def among(self, names: Sequence[str]) -> tuple[str | None, ...]:
        """Those of the names that a table can show; else None, for the study's metric."""
        return tuple(name for name in names if name in self.offered) or (None,)

    def table(
        self,
        metric: str | None = None,
        selection: str | None = None,
        test: str | None = None,
        spread: str = "error",
    ) -> Table:
        """Return methods × tasks, mean ± standard error over seeds.

        Args:
            metric: What to show (default: the study's), also `worst accuracy@column` for a study
                with groups, `validation accuracy` at domains that are neither source nor target,
                and at the sources as `unseen.results.source_environments` has it.
            selection: Another rule than the study's, to compare them.
            test: The p against the reference, `wilcoxon` or `t` (default: `t` next to a paper's
                p, else `wilcoxon`).
            spread: `error`, the standard error, or `interval`, a bootstrap interval of the mean.
        """
        shown, rule = metric or self.metric, selection or self.study.selection
        if shown not in self.offered:
            raise nearest("metric", shown, self.offered)
        failed, paper = self.diverged(), self.paper(shown)
        runs, columns, notes = self._runs(failed, rule), tuple[str, ...](), []
        if shown in source_environments.offered(self.metrics, self.study.groups):
            columns, made = source_environments.of_sources(shown, runs)
            notes = [source_environments.note(shown)]
        elif VALIDATION in MetricName.parse(shown).words:
            made = [at_validation(run, source, shown) for run, source in runs]
            notes = ["at the validation domains, which are neither source nor target"]
        else:
            made = [run for run, _ in runs]
        tasks = columns or tuple(task.name for task in self.tasks)
        return table(
            made,
            metric=shown,
            lower=less_is_better(shown),
            methods=(*self.methods, *self.not_applicable),
            tasks=tasks,
            seeds=self.study.seed_list,
            worst=len(tasks) > 1,
            not_applicable=self.not_applicable,
            protocol=(*notes, *lost(failed), *self.fallbacks(), *self.protocol(rule)),
            title=self.study.title or self.study.name,
            # Environments of the sources are not targets to rank or to test over.
            reference=None if columns else self.study.reference,
            test=test or ("t" if paper.tests else "wilcoxon"),
            published=paper,
            spread=spread,
            unit="environment" if columns else "target",
        )

    def _runs(self, failed: Iterable[Job], rule: str) -> Iterator[tuple[Selected, list[Record]]]:
        """The selected round of every finished job, with its source records."""
        by, lower = self.metric, less_is_better(self.metric)
        for job in self.folders():
            if job.state == "done":
                run = selected(job.source, job.target, rule, by, lower, job.constant)
                yield run, job.source
        yield from ((no_selection(job, self.offered), []) for job in failed)

    def published(self, metric: str) -> dict[str, dict[str, str]]:
        """The paper's rows for a metric, as texts by column."""
        return self.paper(metric).texts()

    def paper(self, metric: str) -> Printed:
        """The paper's figures of a metric; none next to a stand-in, which is not a result."""
        return Printed() if self.stand_in else printed(self.study.published, metric)

    def protocol(self, selection: str) -> list[str]:
        """What a reader must know to trust or repeat the table."""
        study, recipe = self.study, self.study.training
        work = (
            counted(recipe.steps, "step") if recipe.steps else counted(recipe.epochs or 1, "epoch")
        )
        seeds = ", ".join(map(str, study.seed_list))
        extras = [
            f"schedule {recipe.schedule}" if recipe.schedule != "constant" else "",
            f"label smoothing {recipe.smoothing:g}" if recipe.smoothing else "",
            f"augmentation {recipe.augment}" if recipe.augment else "",
            "balanced loss" if recipe.balanced else "",
            "oversampled training split" if recipe.oversample else "",
            "short last batches dropped" if recipe.drop_last else "",
        ]
        made = " and with ".join(self.made_with())
        whole = study.holdout == "none"
        begun = f", initial weights {self.weights}" if self.weights is not None else ""
        data = f"{self.data}, {NO_RESULT}" if self.stand_in else self.data
        unit = parse(study.dataset)[0].arguments.get("unit")
        return [
            f"selection: {selection} by {self.metric}, evaluated every "
            f"{counted(study.evaluate_every, 'round')}; seeds {seeds}",
            f"data: {data}; {study.validation:g} of each source held back for validation "
            "where there is no official split; "
            + (f"examples of one unit ({unit}) never split; " if unit is not None else "")
            + (
                "no target: figures are of the sources' validation splits"
                if whole
                else "targets whole"
            ),
            *(f"of the data: {note}" for note in self.notes),
            f"training: {counted(study.rounds, 'round')} of {work}, batch {recipe.batch_size}, "
            f"{recipe.optimiser}, client optimiser "
            f"{'kept' if recipe.keep_optimiser else 'reset each round'}"
            + "".join(f", {extra}" for extra in extras if extra),
            f"server: {recipe.server}; {taking_part(study.participation)}",
            weighting(recipe.weights, self.methods),
            f"model: {self.model}{begun}; BatchNorm statistics: {recipe.buffers}"
            + ("; products of layers in bfloat16" if study.precision == "bf16" else ""),
            *protection.protocol(study),
            *([stacked(study.stacked)] if study.stacked else []),
            f"{f'made with {made}' if made else 'no job is finished yet'}; {study.device}, "
            f"{counted(study.threads, 'thread')}",
        ]

    def made_with(self) -> list[str]:
        """The versions that made the records: one line, unless they were made at several times."""
        versions = (job.mark["versions"].items() for job in self.folders())
        return list(dict.fromkeys(", ".join(f"{n} {v}" for n, v in item) for item in versions))

    def write(self) -> None:
        """Write the study's table next to the records, as csv, Markdown and LaTeX; the notes of
        both csv files lie in a file of their own, so that any program reads them."""
        made = self.table()
        for name, content in {
            "table.csv": made.to_csv(),
            "runs.csv": made.runs_csv(),
            "table.notes.txt": made.to_notes(),
            "table.md": made.to_markdown(),
            "table.tex": made.to_latex(),
        }.items():
            write_atomically(self.out / name, content.encode())


def stacked(models: int) -> str:
    """What stands under a table of models that were trained in batches."""
    return (
        f"up to {models} models trained as one batch, where the method allows it; figures equal "
        "those of models trained one by one up to rounding, not bit for bit"
    )


def lost(failed: Mapping[Job, str]) -> list[str]:
    """Return a line for every method with jobs that diverged: where, and what happened first."""
    lines = []
    for method in dict.fromkeys(job.method for job in failed):
        jobs = [job for job in failed if job.method == method]
        places = []
        for task in dict.fromkeys(job.task for job in jobs):
            seeds = [str(job.seed) for job in jobs if job.task == task]
            places.append(f"{task}, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(seeds)}")
        lines.append(
            f"diverged, counted as undefined: {method} at {'; '.join(places)}. "
            f"First: {failed[jobs[0]]}"
        )
    return lines


def counted(number: int, unit: str) -> str:
    """
    >>> counted(1, "epoch"), counted(5, "epoch")
    ('1 epoch', '5 epochs')
    """
    return f"{number} {unit}{'s' if number > 1 else ''}"


def weighting(weights: str, methods: Iterable[str]) -> str:
    """The line that names the weights of the clients in the methods' means."""
    methods = list(methods)
    own = [text for text in methods if "weights" in parse(text)[0].arguments]
    by_rule = [text for text in methods if text not in own and _by_rule(text)]
    line = {
        "uniform": "aggregation weights: 1/K in every method's mean",
        "examples": "aggregation weights: n_i/n, by examples, in every method's mean",
        "method": "aggregation weights: each method's own default, so that rows may differ in "
        "them and not in the method alone",
    }[weights]
    if weights == "method":
        return line
    line += f"; as written in {', '.join(own)}" if own else ""
    return line + (f"; {', '.join(by_rule)}: by a rule of their own" if by_rule else "")


def _by_rule(text: str) -> bool:
    try:
        return sets_weights(compose(text))
    except UnseenError:  # a user's part that is not here any more
        return False


def taking_part(participation: float | int) -> str:
    """Who takes part in a round, in words."""
    if isinstance(participation, int):
        return f"{counted(participation, 'client')} per round"
    return "all clients" if participation == 1 else f"{participation:.0%} of the clients per round"
