"""The table of a study: methods × tasks, mean ± standard error over seeds, in several formats."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from unseen.studies.results import formats
from unseen.studies.results.comparison import Comparison
from unseen.studies.results.formats import BEST, PLAIN, SECOND, Rows, decimals, scale_of
from unseen.studies.results.metric_name import MetricName
from unseen.studies.results.published_rows import Gap
from unseen.studies.results.selection import Selected, less_is_better
from unseen.studies.results.statistics import Cell, Ranking, mean, rank

T = TypeVar("T")
Summary = Callable[[Sequence[float]], float]
#: With fewer tasks a tenth of them is less than one, and the percentile next to the worst.
FEW = 10


@dataclass(frozen=True)
class Table:
    """Rows are methods, columns tasks and their summaries; `cells[row][column]`.

    Attributes:
        metric: What the table shows.
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
        tail: Each method's tenth percentile over tasks, next to the worst where tasks are many.
        unit: What a task is, in a word.
        counted: The tasks that summaries and ranks are over.
    """

    metric: str
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
    tail: tuple[Cell, ...] = ()
    unit: str = "target"
    counted: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        return ": ".join(filter(None, [self.title, *self.notes[:1]]))

    @property
    def lower(self) -> bool:
        """Whether less of the metric is better."""
        return less_is_better(self.metric)

    @property
    def scale(self) -> int:
        """The unit of what is shown over that of the cells: accuracies are shown in percent."""
        return scale_of(self.metric)

    def number_text(self, value: float) -> str:
        """Return a number as the table shows it.

        Returns:
            Accuracies in percent with one decimal, everything else with three, or fewer where the
            table's numbers are large, as those in a label's own unit may be.
        """
        return f"{self.scale * value:z.{self.places}f}"

    @cached_property
    def places(self) -> int:
        means = [mean(c.values) for row in self.cells for c in row if c.applies and c.values]
        return decimals(self.metric, max(map(abs, means), default=0.0))

    @property
    def many(self) -> bool:
        """Whether the tasks are too many for columns of a document."""
        return len(self.tasks) > formats.LIMIT

    @property
    def tail_name(self) -> str:
        return "90th percentile" if self.lower else "10th percentile"

    def marks(self, column: int) -> dict[int, str]:
        return self.marked([row[column] for row in self.cells])

    def marked(self, column: Sequence[Cell]) -> dict[int, str]:
        """Return row -> best or second best, by the numbers as shown; equal ones share the mark.

        Args:
            column: One cell per method.
        """
        complete = ((i, cell) for i, cell in enumerate(column) if cell.complete)
        values = {i: float(self.number_text(mean(cell.values))) for i, cell in complete}
        levels = sorted(set(values.values()), reverse=not self.lower)
        ordered = len(values) > 1 and MetricName.parse(self.metric).best is None
        names = dict(zip(levels, (BEST, SECOND), strict=False)) if ordered else {}
        return {i: names.get(x, PLAIN) for i, x in values.items()}

    def ranking(self) -> Ranking:
        """Rank the methods that have every number by their means at each task."""
        places = [self.tasks.index(task) for task in self.counted or self.tasks]
        rows = [[row[i] for i in places] for row in self.cells]
        pairs = zip(self.methods, rows, strict=True)
        complete = ((m, row) for m, row in pairs if all(cell.complete for cell in row))
        # Rounded: equal means may differ in their last bits.
        means = {m: [round(mean(cell.values), 12) for cell in row] for m, row in complete}
        return rank(means, self.lower)

    def _cells(self, tail: bool) -> list[tuple[Cell, ...]]:
        """Return each method's cells, with its percentile if that is shown."""
        tails = [(x,) for x in self.tail] if tail else [()] * len(self.methods)
        return [(*row, *more) for row, more in zip(self.cells, tails, strict=True)]

    def rows(self, cell: Callable[[str, str], T], tail: bool = False) -> list[list[T]]:
        """Return the header and a row per method.

        Args:
            cell: Makes a field of a text and its mark.
            tail: Whether the percentile follows the other summaries.
        """
        cells = self._cells(tail)
        marks = [self.marked(column) for column in zip(*cells, strict=True)]
        further = self.comparison.columns if self.comparison else ()
        columns = (*self.columns, *[self.tail_name] * tail, *further)
        rows = [[cell(name, PLAIN) for name in ("method", *columns)]]
        for i, (method, row) in enumerate(zip(self.methods, cells, strict=True)):
            texts = (c.text(self.number_text) for c in row)
            fields = (cell(t, m.get(i, PLAIN)) for t, m in zip(texts, marks, strict=True))
            compared = self.comparison.fields(method) if self.comparison else ()
            rows.append([cell(method, PLAIN), *fields, *(cell(t, PLAIN) for t in compared)])
        below = {}
        for label, figures in self.published.items():
            below[f"{label} (published)"] = figures
            for method, gaps in self.differences.get(label, {}).items():
                below[f"{method} − published"] = {c: g.text(self.places) for c, g in gaps.items()}
        for label, figures in below.items():
            texts = (figures.get(column, "") for column in columns)
            rows.append([cell(label, PLAIN), *(cell(t, PLAIN) for t in texts)])
        return rows

    @property
    def parts(self) -> tuple[Rows, Rows]:
        """The summaries by method, and the tasks as rows, shown where tasks are too many."""
        return formats.parts(self.rows(_pair, bool(self.tail)), len(self.tasks), self.unit)

    @property
    def legend(self) -> list[str]:
        marks = any(mark for j in range(len(self.columns)) for mark in self.marks(j).values())
        return [formats.LEGEND] * marks

    @property
    def tail_note(self) -> str:
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
        """Return the grids of a document: one, or the summaries and then a few methods each."""
        if not self.many:
            return [self.rows(_pair)]
        summaries, turned = self.parts
        return [summaries, *formats.blocks(turned)]

    def __str__(self) -> str:
        return formats.plain(self.title, self._grids(), self.footnotes)

    def to_markdown(self) -> str:
        """Return a table as GitHub reads it: the best mean bold, the second best underlined."""
        return formats.markdown(self.title, self._grids(), [*self.footnotes, *self.legend])

    def to_latex(self) -> str:
        """Return a table for booktabs: the best mean bold, the second best underlined."""
        notes = [*self.footnotes[1:], *self.legend]
        return formats.latex(self.caption, self._grids(), notes, self.unit)

    def to_rich(self) -> formats.Terminal:
        """Return a table for a terminal, as wide as that is, with the notes below it."""
        tail = [self.tail_note] * bool(self.tail)
        rows = self.rows(_pair)
        return formats.Terminal(self.title, rows, *self.parts, self.notes, tail, self.legend)

    def to_notes(self) -> str:
        """Return the title and the notes, which csv has no place for, a line each."""
        return "".join(f"{text}\n" for text in (self.title, *self.footnotes) if text)

    def to_csv(self) -> str:
        """Return the raw numbers of every cell: mean, standard error, bootstrap interval, seeds.

        Returns:
            A row per method, with five columns per task, however many tasks there are. A mean is
            `n/a` where a method does not apply, and empty where it is undefined or no seed is
            finished.
        """
        fields = ("mean", "se", "low", "high", "n")
        columns = (*self.columns, *[self.tail_name] * self.many)
        header = ["method", *(f"{c} {part}" for c in columns for part in fields)]
        rows: list[list[object]] = []
        for method, row in zip(self.methods, self._cells(self.many), strict=True):
            compared = self.comparison.raw_fields(method) if self.comparison else []
            rows.append([method, *(f for c in row for f in c.raw_fields()), *compared])
        header += self.comparison.raw_columns if self.comparison else []
        return formats.comma_separated([header, *rows])

    def runs_csv(self) -> str:
        """Return a row per finished job: the round that was selected, the target's raw number."""
        header = ("method", "task", "seed", "round", self.metric)
        rows = ((r.method, r.task, r.seed, r.round, r.metrics[self.metric]) for r in self.runs)
        return formats.comma_separated([header, *rows])


def _pair(text: str, mark: str) -> tuple[str, str]:
    return text, mark
