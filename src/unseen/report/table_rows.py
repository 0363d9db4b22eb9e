"""The result table as the page shows it: cells with their marks, and a paper's figures in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from unseen.report.study_report import StudyReport
from unseen.results.comparison import LEVEL
from unseen.results.formats import LEGEND
from unseen.results.published_rows import Printed
from unseen.results.statistics import Cell, mean
from unseen.results.tables import Table


@dataclass(frozen=True)
class Column:
    """A column's name, and the direction in which a first click sorts: the best on top."""

    name: str
    first: str


@dataclass(frozen=True)
class Field:
    """One field of the table.

    Attributes:
        sort: The number that it is sorted by.
        paper: The published figure.
        gap: How far ours is from it.
    """

    value: str
    sort: float | None = None
    error: str = ""
    remark: str = ""
    mark: str = ""
    paper: str = ""
    gap: str = ""


@dataclass(frozen=True)
class Sign:
    """A significant difference: ▲ better, ▼ worse than the reference."""

    mark: str
    why: str


@dataclass(frozen=True)
class TableRow:
    """One method, or one row of a paper that no method of ours makes (kind `paper`)."""

    name: str
    cells: tuple[Field, ...]
    kind: str = ""
    sign: Sign | None = None


@dataclass(frozen=True)
class PageTable:
    """A table ready to be written.

    Attributes:
        turned: The targets as rows, where they are many.
    """

    id: str
    name: str
    caption: str
    header: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    key: str
    notes: tuple[str, ...]
    filter: str = "methods"
    turned: PageTable | None = None


def page_table(part: StudyReport, table: Table, id: str) -> PageTable:
    """Return a metric's table with everything that its fields show."""
    paper = part.paper(table.metric)
    compared = table.comparison
    first = "ascending" if table.lower else "descending"
    header = [Column("method", "ascending"), *(Column(c, first) for c in table.columns)]
    header += [Column(c, "ascending") for c in compared.columns] if compared else []
    rows = [*_methods(part, table, paper), *_others(table, paper, len(header) - 1)]
    key = LEGEND
    if any(row.sign for row in rows):
        key += (
            f"; ▲ ▼: better or worse than {part.reference} with a Holm-corrected p below {LEVEL:g}"
        )
    if any(cell.paper for row in rows for cell in row.cells):
        key += "; paper: the published figure, and below it how far ours is from it"
    first, *others = table.footnotes
    whole = PageTable(id, table.metric, first, tuple(header), tuple(rows), key + ".", tuple(others))
    return _split(whole, table) if table.many else whole


def _split(whole: PageTable, table: Table) -> PageTable:
    """Return the summaries by method, with the targets as rows of a second table."""
    n, end = len(table.tasks), len(table.columns)
    tails = [
        _field(table, cell, table.marked(table.tail).get(i, ""))
        for i, cell in enumerate(table.tail)
    ]
    tails += [Field("")] * (len(whole.rows) - len(tails))
    rows = [
        replace(row, cells=(*row.cells[n:end], tail, *row.cells[end:]))
        for row, tail in zip(whole.rows, tails, strict=True)
    ]
    header = whole.header
    tail = Column(table.tail_name, header[1].first)
    names = [Column(row.name, header[1].first) for row in whole.rows]
    sites = [
        TableRow(task, tuple(row.cells[i] for row in whole.rows))
        for i, task in enumerate(table.tasks)
    ]
    turned = PageTable(
        f"{whole.id}-{table.unit}s", f"{whole.name} by {table.unit}",
        f"{whole.caption}; one row per {table.unit}",
        (Column(table.unit, "ascending"), *names), tuple(sites), whole.key, (), f"{table.unit}s",
    )  # fmt: skip
    return replace(
        whole, header=(header[0], *header[1 + n : 1 + end], tail, *header[1 + end :]),
        rows=tuple(row for row in rows if any(cell.value for cell in row.cells)), turned=turned,
    )  # fmt: skip


def _methods(part: StudyReport, table: Table, paper: Printed) -> Iterator[TableRow]:
    marks = [table.marks(j) for j in range(len(table.columns))]
    for i, (method, cells) in enumerate(zip(table.methods, table.cells, strict=True)):
        label = paper.row_of(method)
        figures = paper.rows[label] if label is not None else {}
        gaps = table.differences.get(label or "", {}).get(method, {})
        fields = []
        for j, (column, cell) in enumerate(zip(table.columns, cells, strict=True)):
            figure = str(figures[column]) if column in figures else ""
            gap = gaps[column].text(1 if table.scale == 100 else 3) if column in gaps else ""
            fields.append(_field(table, cell, marks[j].get(i, ""), figure, gap))
        kind = "ref" if method == part.reference else ""
        fields += _compared(table, method)
        yield TableRow(method, tuple(fields), kind, _sign(table, part.reference, method))


def _field(table: Table, cell: Cell, mark: str, paper: str = "", gap: str = "") -> Field:
    value, error, n = cell.fields()
    if isinstance(value, str):
        text = value or f"{n}/{cell.seeds} seeds"
        return Field(text, paper=paper)
    finished = n + cell.undefined
    remarks = [f"{finished}/{cell.seeds} seeds"] * (finished < cell.seeds)
    remarks += [f"{cell.undefined} undefined"] * bool(cell.undefined)
    spread = "" if error is None else table.shown(error)
    return Field(table.shown(value), value, spread, ", ".join(remarks), mark, paper, gap)


def _compared(table: Table, method: str) -> list[Field]:
    """Rank and p."""
    if table.comparison is None:
        return []
    numbers = (table.comparison.ranks.get(method), table.comparison.p.get(method))
    texts = table.comparison.fields(method)
    return [Field(text, number) for text, number in zip(texts, numbers, strict=True)]


def _sign(table: Table, reference: str | None, method: str) -> Sign | None:
    """Return whether a method differs from the reference, and in which direction."""
    p = table.comparison.p.get(method) if table.comparison else None
    if p is None or p >= LEVEL or reference is None:
        return None
    at = table.columns.index("average")
    ours, theirs = (
        mean(table.cells[table.methods.index(m)][at].values) for m in (method, reference)
    )
    better = (ours < theirs) == table.lower
    word = "better" if better else "worse"
    return Sign("▲" if better else "▼", f"{word} than {reference}, p = {p:.3g} after Holm")


def _others(table: Table, paper: Printed, width: int) -> Iterator[TableRow]:
    """Yield published rows that none of our methods matches."""
    taken = {paper.row_of(method) for method in table.methods}
    for label, figures in paper.rows.items():
        if label in taken or not any(column in figures for column in table.columns):
            continue
        fields = [
            Field(str(figures[c]), float(figures[c].value) / table.scale)
            if c in figures
            else Field("")
            for c in table.columns
        ]
        fields += [Field("")] * (width - len(fields))
        yield TableRow(f"{label} (published)", tuple(fields), "paper")
