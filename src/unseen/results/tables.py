"""The table of a study: methods × tasks, mean ± standard error over seeds, in several formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, TypeVar

from unseen.errors import UnseenError, choice, nearest
from unseen.results import formats, table_layout
from unseen.results.comparison import Comparison, compare
from unseen.results.formats import BEST, PLAIN, SECOND, Rows, caption, decimals, line, scale_of
from unseen.results.metric_name import MetricName
from unseen.results.published_rows import DIFFERENCES, Gap, Printed
from unseen.results.ranking import Ranking, rank
from unseen.results.selection import Selected
from unseen.results.statistics import Cell, mean, quantile

if TYPE_CHECKING:
    from unseen.results.terminal import Terminal

#: Why a metric may have no value.
REASONS = {
    **dict.fromkeys(("auroc", "auprc"), "its examples are of one class"),
    "r2": "its labels are all equal",
    "pearson": "its labels or the predictions are all equal",
}
#: The same in a word or two, where targets are listed.
SHORT = {
    **dict.fromkeys(("auroc", "auprc"), "one class"),
    "r2": "equal labels",
    "pearson": "equal labels or predictions",
}
T = TypeVar("T")
Summary = Callable[[Sequence[float]], float]
#: Below so many tasks a tenth of them is less than one, and the percentile next to the worst.
FEW = 10


@dataclass(frozen=True)
class Table:
    """Rows are methods, columns tasks and their summaries; `cells[row][column]`.

    Attributes:
        metric: What the table shows.
        lower: Whether less of it is better.
        methods: The rows.
        columns: The tasks, then their summaries.
        cells: One per row and column.
        runs: The selected round of every finished job.
        notes: The lines under the table; the first says what a number is, over how many seeds.
        title: What the table is called.
        comparison: Ranks and tests against one method, as two more columns.
        published: Figures of a paper, as rows of texts by column.
        differences: A paper's label -> method of ours -> column -> ours minus theirs.
        tasks: The columns that are not summaries.
        spread: What follows a mean: its standard `error`, or `interval`.
        tail: Each method's tenth percentile over tasks, next to the worst where tasks are many.
        unit: What a task is, in a word.
        counted: The tasks that summaries and ranks are over.
    """

    metric: str
    lower: bool
    methods: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    runs: tuple[Selected, ...]
    notes: tuple[str, ...]
    title: str = ""
    comparison: Comparison | None = None
    published: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    differences: Mapping[str, Mapping[str, Mapping[str, Gap]]] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    spread: str = "error"
    tail: tuple[Cell, ...] = ()
    unit: str = "target"
    counted: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """The title, what a number is, and over how many seeds."""
        return ": ".join(filter(None, [self.title, *self.notes[:1]]))

    @property
    def scale(self) -> int:
        """The unit of what is shown over that of the cells: accuracies are shown in percent."""
        return scale_of(self.metric)

    def shown(self, value: float) -> str:
        """Accuracies in percent with one decimal, everything else with three, or fewer where the
        table's numbers are large, as those in a label's own unit may be."""
        return f"{self.scale * value:z.{self.places}f}"

    @cached_property
    def places(self) -> int:
        """Decimals of all of the table's numbers."""
        means = [mean(c.values) for row in self.cells for c in row if c.applies and c.values]
        return decimals(self.metric, max(map(abs, means), default=0.0))

    @property
    def many(self) -> bool:
        """Whether the tasks are too many for columns of a document."""
        return len(self.tasks) > table_layout.LIMIT

    @property
    def tail_name(self) -> str:
        """The percentile at the bad end."""
        return "90th percentile" if self.lower else "10th percentile"

    def marks(self, column: int) -> dict[int, str]:
        """Row -> best or second best, by the numbers as shown; equal ones share the mark."""
        return self.marked([row[column] for row in self.cells])

    def marked(self, column: Sequence[Cell]) -> dict[int, str]:
        """As `marks`, of one cell per method."""
        cells = {i: cell for i, cell in enumerate(column) if cell.complete}
        values = {i: float(self.shown(mean(cell.values))) for i, cell in cells.items()}
        levels = sorted(set(values.values()), reverse=not self.lower)
        names = dict(zip(levels, (BEST, SECOND), strict=False)) if len(values) > 1 else {}
        return {i: names.get(x, PLAIN) for i, x in values.items()}

    def ranking(self, alpha: float = 0.05) -> Ranking:
        """Mean ranks over tasks of the methods that have every number, and which do not differ."""
        places = [self.tasks.index(task) for task in self.counted or self.tasks]
        rows = ([row[i] for i in places] for row in self.cells)
        pairs = zip(self.methods, rows, strict=True)
        whole = {m: row for m, row in pairs if all(cell.complete for cell in row)}
        means = {m: [mean(cell.values) for cell in row] for m, row in whole.items()}
        return rank(means, self.lower, alpha)

    def rows(self, cell: Callable[[str, str], T], tail: bool = False) -> list[list[T]]:
        """The header and a row per method; every field is `cell(text, mark)`.

        tail: with the percentile, behind the other summaries.
        """
        tails = [[x] for x in self.tail] if tail else [[] for _ in self.methods]
        cells = [[*row, *more] for row, more in zip(self.cells, tails, strict=True)]
        marks = [self.marked(column) for column in zip(*cells, strict=True)]
        further = self.comparison.columns if self.comparison else ()
        columns = (*self.columns, *[self.tail_name] * tail, *further)
        rows = [[cell(name, PLAIN) for name in ("method", *columns)]]
        for i, (method, found) in enumerate(zip(self.methods, cells, strict=True)):
            texts = (c.text(self.shown, self.spread) for c in found)
            fields = (cell(t, m.get(i, PLAIN)) for t, m in zip(texts, marks, strict=True))
            compared = self.comparison.fields(method) if self.comparison else ()
            rows.append([cell(method, PLAIN), *fields, *(cell(t, PLAIN) for t in compared)])
        beside = {}
        for label, figures in self.published.items():
            beside[f"{label} (published)"] = figures
            for method, gaps in self.differences.get(label, {}).items():
                beside[f"{method} − published"] = {c: g.text(self.places) for c, g in gaps.items()}
        for label, figures in beside.items():
            texts = (figures.get(column, "") for column in columns)
            rows.append([cell(label, PLAIN), *(cell(t, PLAIN) for t in texts)])
        return rows

    @property
    def parts(self) -> tuple[Rows, Rows]:
        """What is shown where tasks are too many to be columns: the summaries by method, and the
        tasks as rows with methods as columns."""
        return table_layout.parts(self.rows(_pair, bool(self.tail)), len(self.tasks), self.unit)

    @property
    def legend(self) -> list[str]:
        """What bold and underlined mean, where anything is."""
        marked = any(mark for j in range(len(self.columns)) for mark in self.marks(j).values())
        return [formats.LEGEND] * marked

    @property
    def tail_note(self) -> str:
        """What the percentile is."""
        tasks = f"{len(self.counted or self.tasks)} {self.unit}s"
        return (
            f"{self.tail_name}: over the {tasks} within each seed, interpolated linearly between "
            f"the two nearest {self.unit}s"
        )

    @property
    def footnotes(self) -> tuple[str, ...]:
        """The notes, with what the percentile is where it is shown."""
        return (*self.notes[:1], *[self.tail_note] * self.many, *self.notes[1:])

    def _grids(self) -> list[Rows]:
        """The grids of a document: one, or the summaries and then the tasks, a few methods each."""
        if not self.many:
            return [self.rows(_pair)]
        summaries, turned = self.parts
        return [summaries, *table_layout.blocks(turned, table_layout.BLOCK)]

    def __str__(self) -> str:
        """Plain text, columns aligned."""
        return formats.plain(self.title, self._grids(), self.footnotes)

    def to_markdown(self) -> str:
        """A table as GitHub reads it: highest mean bold, second underlined."""
        return formats.markdown(self.title, self._grids(), [*self.footnotes, *self.legend])

    def to_latex(self) -> str:
        """A table for the package booktabs: highest mean bold, second underlined."""
        notes = [*self.footnotes[1:], *self.legend]
        return formats.latex(self.caption, self._grids(), notes, self.unit)

    def to_rich(self) -> Terminal:
        """A table for a terminal, as wide as it is, the notes below it."""
        from unseen.results.terminal import Terminal

        return Terminal(
            self.title, self.rows(_pair), *self.parts, self.notes,
            [self.tail_note] * bool(self.tail), self.legend,
        )  # fmt: skip

    def to_notes(self) -> str:
        """The title and the notes, a line each: what csv has no place for."""
        return "".join(f"{text}\n" for text in (self.title, *self.footnotes) if text)

    def to_csv(self) -> str:
        """The raw numbers of every cell: mean, standard error, bootstrap interval, seeds.

        A mean is `n/a` where a method does not apply, and empty where it is undefined or no seed
        is finished.
        Every task is a column, however many there are.
        """
        fields = ("mean", "se", "low", "high", "n")
        columns = (*self.columns, *[self.tail_name] * self.many)
        header = ["method", *(f"{c} {part}" for c in columns for part in fields)]
        tails = [[x] for x in self.tail] if self.many else [[] for _ in self.methods]
        parts = zip(self.methods, self.cells, tails, strict=True)
        rows = [
            [m, *(f for cell in (*row, *tail) for f in cell.raw_fields())] for m, row, tail in parts
        ]
        if self.comparison:
            header += self.comparison.raw_columns
            rows = [[*row, *self.comparison.raw_fields(str(row[0]))] for row in rows]
        return formats.comma_separated([header, *rows])

    def runs_csv(self) -> str:
        """One row per finished job: the round that was selected and the target's raw number."""
        header = ["method", "task", "seed", "round", self.metric]
        rows = (
            [run.method, run.task, run.seed, run.round, run.metrics[self.metric]]
            for run in self.runs
        )
        return formats.comma_separated([header, *rows])


def table(
    results: Iterable[Selected], *, metric: str, lower: bool = False, worst: bool = False,
    methods: Sequence[str] = (), tasks: Sequence[str] = (), seeds: Sequence[int] = (),
    not_applicable: Mapping[str, str] | None = None, protocol: Sequence[str] = (), title: str = "",
    reference: str | None = None, test: str = "wilcoxon", published: Printed | None = None,
    spread: str = "error", unit: str = "target",
) -> Table:  # fmt: skip
    """Return the table of a metric over methods, tasks and seeds.

    `average` is the mean over tasks per seed, over the seeds that finished all tasks; `worst` the
    same with the worst task. A task whose data leave the metric undefined, whatever the method, is
    left out of both, and of ranks and tests.

    Args:
        results: The selected round of every finished job.
        metric: What to show.
        lower: Whether less of it is better.
        worst: Whether to add the column of the worst task.
        methods: The rows; by default those of the results, as are tasks and seeds.
        tasks: The columns.
        seeds: The seeds that a cell should have.
        not_applicable: Method -> why it cannot run.
        protocol: Lines for the foot.
        title: What the table is called.
        reference: The method that all others are compared with, in two more columns.
        test: Which p is shown there, `wilcoxon` or `t`.
        published: A paper's figures, in rows below, and how far ours are from them.
        spread: `error`, the standard error, or `interval`, the bootstrap interval.
        unit: What a task is, in a word.

    >>> runs = [Selected("fedavg", t, s, 9, {"accuracy": a}) for t, s, a in
    ...         [("0", 0, 0.90), ("0", 1, 0.92), ("15", 0, 0.80), ("15", 1, 0.86)]]
    >>> print(table(runs, metric="accuracy", protocol=["selection: source-validation"]))
    method           0          15     average
    ------------------------------------------
    fedavg  91.0 ± 1.0  83.0 ± 3.0  87.0 ± 2.0
    accuracy in percent, mean ± standard error over 2 seeds; higher is better
    selection: source-validation
    """
    choice("spread", spread, ("error", "interval"))
    refused, printed = not_applicable or {}, published or Printed()
    runs: dict[tuple[str, str, int], Selected] = {}
    for run in results:
        if metric not in run.metrics:
            raise nearest("metric", metric, run.metrics)
        if (key := (run.method, run.task, run.seed)) in runs:
            raise UnseenError(f"one result per method, task and seed; found two of {key}.")
        runs[key] = run
    methods = tuple(dict.fromkeys(methods or (*(m for m, _, _ in runs), *refused)))
    tasks = tuple(tasks or dict.fromkeys(t for _, t, _ in runs))
    seeds = tuple(seeds or sorted({s for _, _, s in runs}))
    if not (methods and tasks and seeds):
        raise UnseenError("a table needs a method, a task and a seed; no job is finished yet.")
    shown = tuple(runs[key] for key in product(methods, tasks, seeds) if key in runs)

    def cell(method: str, over: Sequence[str], summary: Summary) -> Cell:
        """The summary of the tasks in `over`, per seed that finished all of them."""
        keys = [[(method, t, s) for t in over] for s in seeds]
        done = [[runs[k].metrics[metric] for k in ks] for ks in keys if all(k in runs for k in ks)]
        values = [summary([x for x in xs if x is not None]) for xs in done if None not in xs]
        return Cell(tuple(values), len(done) - len(values), len(seeds), method not in refused)

    lacking = _lacking(shown, metric, tasks)
    counted = tuple(t for t in tasks if t not in lacking)
    parts: list[tuple[Sequence[str], Summary]] = [*(((t,), mean) for t in tasks), (counted, mean)]
    parts += [(counted, max if lower else min)] * worst
    columns = (*tasks, "average", *["worst"] * worst)
    cells = tuple(tuple(cell(m, *part) for part in parts) for m in methods)
    bad = 0.9 if lower else 0.1
    tail = tuple(
        cell(m, counted, lambda xs: quantile(xs, bad)) for m in methods if len(tasks) >= FEW
    )
    notes = [caption(metric, len(seeds), spread, lower)]
    summaries = (*columns[len(tasks) :], *[f"{100 * bad:.0f}th percentile"] * bool(tail))
    if lacking:
        ranked = ("rank", "p") if reference is not None else ()
        notes.append(_over(metric, (*summaries, *ranked), lacking, len(tasks), unit))
    notes += _undefined(shown, metric, summaries, lacking)
    notes += _worse(shown, metric, len(seeds))
    notes += [f"n/a: {m} {refused[m]}" for m in methods if m in refused]
    comparison = None
    if reference is not None:
        values = {key: x for key, run in runs.items() if (x := run.metrics[metric]) is not None}
        verdict = bool(printed.tests)
        comparison = compare(values, methods, counted, seeds, reference, lower, test, verdict)
        notes += comparison.notes
    differences = printed.differences(methods, columns, cells, scale_of(metric))
    notes += [DIFFERENCES] * bool(differences) + list(printed.notes)
    lines = tuple(map(line, [*dict.fromkeys(notes), *protocol]))
    return Table(
        metric, lower, methods, columns, cells, shown, lines, line(title), comparison,
        printed.texts(comparison.columns[1] if comparison else None), differences, tasks, spread,
        tail, unit, counted,
    )  # fmt: skip


def _lacking(runs: Sequence[Selected], metric: str, tasks: Sequence[str]) -> dict[str, str]:
    """Task -> why, in short, where some seed has the metric of no method: the data's doing. Empty
    where that is so of every task, since then nothing would be left to sum up.

    A job that diverged says nothing of the data.
    """
    known: dict[tuple[str, int], bool] = {}
    for run in runs:
        if run.round >= 0:
            key = run.task, run.seed
            known[key] = known.get(key, False) or run.metrics[metric] is not None
    without = {task for (task, _), some in known.items() if not some}
    reason = SHORT.get(MetricName.parse(metric).metric, "")
    return {t: reason for t in tasks if t in without} if len(without) < len(tasks) else {}


def _over(
    metric: str, summaries: Sequence[str], lacking: Mapping[str, str], tasks: int, unit: str
) -> str:
    """What the summaries are over where the metric is undefined at some tasks."""
    omitted = ", ".join(f"{task} ({why})" if why else task for task, why in lacking.items())
    return (
        f"{_joined(summaries)} over the {tasks - len(lacking)} of {tasks} {unit}s where {metric} "
        f"is defined; not at: {omitted}"
    )


def _undefined(
    runs: Sequence[Selected], metric: str, summaries: Sequence[str], lacking: Mapping[str, str]
) -> list[str]:
    """Where else a metric has no value, why, and what becomes of the means it would be in."""
    reason = REASONS.get(MetricName.parse(metric).metric, "")
    why = f": {reason}" if reason else ""
    notes = []
    for run in runs:
        whole = run.metrics[metric] is not None
        for domain in run.undefined.get(metric, ()) if run.task not in lacking else ():
            of = "" if whole else f" of {run.method}"
            then = "the task's mean leaves it out"
            if not whole:
                then = f"that seed is in no {_joined(summaries, 'or')}{of}"
            notes.append(f"{metric}{of} is undefined at {domain} (task {run.task}){why}; {then}")
    if any(run.round < 0 for run in runs):
        notes.append(f"a seed with a job that diverged is in no {_joined(summaries, 'or')} of its "
                     "method")  # fmt: skip
    return notes


def _joined(names: Sequence[str], last: str = "and") -> str:
    """The names as a list in a sentence."""
    *first, end = names
    return f"{', '.join(first)} {last} {end}" if first else end


def _worse(runs: Sequence[Selected], metric: str, seeds: int) -> list[str]:
    """The methods and domains at which an answer without any input is better, in one line."""
    single = len({run.task for run in runs}) == 1
    counts: dict[str, dict[str, int]] = {}
    for run in runs:
        places = counts.setdefault(run.method, {})
        for domain in run.worse.get(metric, ()):
            # Plans of several tasks may have one target, such as growing ones.
            at = domain if single or run.task == domain else f"{domain} (task {run.task})"
            places[at] = places.get(at, 0) + 1
    lines = [
        f"{method} at "
        + ", ".join(f"{at} ({n} of {seeds} seeds)" if n < seeds else at for at, n in places.items())
        for method, places in counts.items()
        if places
    ]
    return [f"worse than a constant: {'; '.join(lines)}"] if lines else []


def _pair(text: str, mark: str) -> tuple[str, str]:
    return text, mark
