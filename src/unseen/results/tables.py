"""The table of a study: methods × tasks, mean ± standard error over seeds, in several formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from unseen.results import formats, table_layout
from unseen.results.comparison import Comparison
from unseen.results.formats import BEST, PLAIN, SECOND, Rows, decimals, scale_of
from unseen.results.published_rows import Gap
from unseen.results.ranking import Ranking, rank
from unseen.results.selection import Selected
from unseen.results.statistics import Cell, mean

if TYPE_CHECKING:
    from unseen.results.terminal import Terminal

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


def _pair(text: str, mark: str) -> tuple[str, str]:
    return text, mark
