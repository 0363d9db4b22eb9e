"""The result table as the page shows it: cells with their marks, and a paper's figures in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from unseen.report.study_report import Part
from unseen.results.comparison import LEVEL
from unseen.results.formats import LEGEND
from unseen.results.published_rows import Printed
from unseen.results.statistics import Cell, mean
from unseen.results.tables import Table


@dataclass(frozen=True)
class Column:
    """A column's name, and the direction in which a first click sorts: the best above."""

    name: str
    first: str


@dataclass(frozen=True)
class Shown:
    """One field. sort: the number it is sorted by; paper, gap: the published figure and how far
    ours is from it."""

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
class RowShown:
    """One method, or one row of a paper that no method of ours makes (kind `paper`)."""

    name: str
    cells: tuple[Shown, ...]
    kind: str = ""
    sign: Sign | None = None


@dataclass(frozen=True)
class TableShown:
    """A table ready to be written down. turned: the targets as rows, where they are many."""

    id: str
    name: str
    caption: str
    header: tuple[Column, ...]
    rows: tuple[RowShown, ...]
    key: str
    notes: tuple[str, ...]
    filter: str = "methods"
    turned: TableShown | None = None


def shown(part: Part, made: Table, id: str) -> TableShown:
    """A metric's table with everything that stands in its fields."""
    paper = part.paper(made.metric)
    compared = made.comparison
    first = "ascending" if made.lower else "descending"
    header = [Column("method", "ascending"), *(Column(c, first) for c in made.columns)]
    header += [Column(c, "ascending") for c in compared.columns] if compared else []
    rows = [*_methods(part, made, paper), *_others(made, paper, len(header) - 1)]
    key = LEGEND
    if any(row.sign for row in rows):
        key += (
            f"; ▲ ▼: better or worse than {part.reference} with a Holm-corrected p below {LEVEL:g}"
        )
    if any(cell.paper for row in rows for cell in row.cells):
        key += "; paper: the published figure, and below it how far ours is from it"
    first, *others = made.footnotes
    whole = TableShown(
        id,
        made.metric,
        first,
        tuple(header),
        tuple(rows),
        key + ".",
        tuple(others),
    )
    return _split(whole, made) if made.many else whole


def _split(whole: TableShown, made: Table) -> TableShown:
    """The summaries by method, and the targets as rows with methods as columns."""
    n, end = len(made.tasks), len(made.columns)
    tails = [
        _field(made, cell, made.marked(made.tail).get(i, "")) for i, cell in enumerate(made.tail)
    ]
    tails += [Shown("")] * (len(whole.rows) - len(tails))
    rows = [
        replace(row, cells=(*row.cells[n:end], tail, *row.cells[end:]))
        for row, tail in zip(whole.rows, tails, strict=True)
    ]
    header = whole.header
    tail = Column(made.tail_name, header[1].first)
    names = [Column(row.name, header[1].first) for row in whole.rows]
    sites = [
        RowShown(task, tuple(row.cells[i] for row in whole.rows))
        for i, task in enumerate(made.tasks)
    ]
    turned = TableShown(
        f"{whole.id}-{made.unit}s", f"{whole.name} by {made.unit}",
        f"{whole.caption}; one row per {made.unit}",
        (Column(made.unit, "ascending"), *names), tuple(sites), whole.key, (), f"{made.unit}s",
    )  # fmt: skip
    return replace(
        whole, header=(header[0], *header[1 + n : 1 + end], tail, *header[1 + end :]),
        rows=tuple(row for row in rows if any(cell.value for cell in row.cells)), turned=turned,
    )  # fmt: skip


def _methods(part: Part, made: Table, paper: Printed) -> Iterator[RowShown]:
    marks = [made.marks(j) for j in range(len(made.columns))]
    for i, (method, cells) in enumerate(zip(made.methods, made.cells, strict=True)):
        label = paper.row_of(method)
        figures = paper.rows[label] if label is not None else {}
        gaps = made.differences.get(label or "", {}).get(method, {})
        fields = []
        for j, (column, cell) in enumerate(zip(made.columns, cells, strict=True)):
            figure = str(figures[column]) if column in figures else ""
            gap = gaps[column].text(1 if made.scale == 100 else 3) if column in gaps else ""
            fields.append(_field(made, cell, marks[j].get(i, ""), figure, gap))
        kind = "ref" if method == part.reference else ""
        fields += _compared(made, method)
        yield RowShown(method, tuple(fields), kind, _sign(made, part.reference, method))


def _field(made: Table, cell: Cell, mark: str, paper: str = "", gap: str = "") -> Shown:
    value, error, n = cell.fields()
    if isinstance(value, str):
        text = value or f"{n}/{cell.seeds} seeds"
        return Shown(text, paper=paper)
    finished = n + cell.undefined
    remarks = [f"{finished}/{cell.seeds} seeds"] * (finished < cell.seeds)
    remarks += [f"{cell.undefined} undefined"] * bool(cell.undefined)
    shown = "" if error is None else made.shown(error)
    return Shown(made.shown(value), value, shown, ", ".join(remarks), mark, paper, gap)


def _compared(made: Table, method: str) -> list[Shown]:
    """Rank and p."""
    if made.comparison is None:
        return []
    numbers = (made.comparison.ranks.get(method), made.comparison.p.get(method))
    texts = made.comparison.fields(method)
    return [Shown(text, number) for text, number in zip(texts, numbers, strict=True)]


def _sign(made: Table, reference: str | None, method: str) -> Sign | None:
    """Whether a method differs from the reference, and to which side."""
    p = made.comparison.p.get(method) if made.comparison else None
    if p is None or p >= LEVEL or reference is None:
        return None
    at = made.columns.index("average")
    ours, theirs = (mean(made.cells[made.methods.index(m)][at].values) for m in (method, reference))
    better = (ours < theirs) == made.lower
    word = "better" if better else "worse"
    return Sign("▲" if better else "▼", f"{word} than {reference}, p = {p:.3g} after Holm")


def _others(made: Table, paper: Printed, width: int) -> Iterator[RowShown]:
    """Published rows that none of our methods makes."""
    taken = {paper.row_of(method) for method in made.methods}
    for label, figures in paper.rows.items():
        if label in taken or not any(column in figures for column in made.columns):
            continue
        fields = [
            Shown(str(figures[c]), float(figures[c].value) / made.scale)
            if c in figures
            else Shown("")
            for c in made.columns
        ]
        fields += [Shown("")] * (width - len(fields))
        yield RowShown(f"{label} (published)", tuple(fields), "paper")
