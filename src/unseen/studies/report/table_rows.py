"""The result table as the page shows it, with a paper's figures in its cells, and the cards.

Neither claims anything that the significance test does not support.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from unseen.studies.report.study_report import StudyReport, cells_of
from unseen.studies.results.comparison import LEVEL
from unseen.studies.results.published_rows import Printed
from unseen.studies.results.statistics import Cell, mean
from unseen.studies.results.tables import Table


@dataclass(frozen=True)
class Field:
    """One field of the table.

    Attributes:
        value: The number as it is shown.
        sort: The number that it is sorted by.
        error: Its standard error.
        remark: Seeds that are missing or undefined.
        mark: `best` or `second` of its column.
        paper: The published figure.
        gap: How far ours is from it.
    """

    value: str = ""
    sort: float | None = None
    error: str = ""
    remark: str = ""
    mark: str = ""
    paper: str = ""
    gap: str = ""


@dataclass(frozen=True)
class TableRow:
    """One method, or one row of a paper that no method of ours makes.

    Attributes:
        kind: `ref` for the reference, `paper` for a paper's row.
        sign: ▲ or ▼ for a significant difference from the reference, and what it means.
    """

    name: str
    cells: tuple[Field, ...]
    kind: str = ""
    sign: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class PageTable:
    """A table ready to be written.

    Attributes:
        unit: What a row is.
        header: Every further column's name, and how a first click sorts it: the best on top.
    """

    name: str
    caption: str
    unit: str
    header: Sequence[tuple[str, str]]
    rows: Sequence[TableRow]


def page_tables(part: StudyReport, table: Table) -> list[PageTable]:
    """Return a metric's table; of many targets the summaries, then the targets as rows.

    Args:
        part: The study, with the paper's figures and the reference.
        table: Its table of the metric.
    """
    paper = part.paper(table.metric)
    ours = {paper.row_of(method) for method in table.methods}
    others = [
        label
        for label, figures in paper.rows.items()
        if label not in ours and any(name in figures for name in table.columns)
    ]
    names = (*table.columns, *[table.tail_name] * table.many)
    fields = {name: _column(table, name, paper, others) for name in names}
    heads = dict.fromkeys(names, "ascending" if table.lower else "descending")
    if compared := table.comparison:
        numbers = zip(compared.columns, (compared.ranks, compared.p), strict=True)
        for i, (name, column) in enumerate(numbers):
            of_methods = [Field(compared.fields(m)[i], column.get(m)) for m in table.methods]
            fields[name] = of_methods + [Field()] * len(others)
            heads[name] = "ascending"
    names_across = [name for name in fields if not (table.many and name in table.tasks)]
    across = list(zip(*(fields[name] for name in names_across), strict=True))
    rows = [
        TableRow(m, cells, "ref" * (m == part.reference), _sign(table, part.reference, m))
        for m, cells in zip(table.methods, across, strict=False)
    ]
    rows += [
        TableRow(f"{label} (published)", cells, "paper")
        for label, cells in zip(others, across[len(rows) :], strict=True)
    ]
    caption = table.footnotes[0]
    header = [(name, heads[name]) for name in names_across]
    if not table.many:
        return [PageTable(table.metric, caption, "method", header, rows)]
    methods = [row for row in rows if any(cell.value for cell in row.cells)]
    turned = PageTable(
        f"{table.metric} by {table.unit}",
        f"{caption}; one row per {table.unit}",
        table.unit,
        [(row.name, heads["average"]) for row in rows],
        [TableRow(task, tuple(fields[task])) for task in table.tasks],
    )
    return [PageTable(table.metric, caption, "method", header, methods), turned]


def _column(table: Table, name: str, paper: Printed, others: Sequence[str]) -> list[Field]:
    cells, fields = cells_of(table, name), []
    marks = table.marked(list(cells.values()))
    for i, (method, cell) in enumerate(cells.items()):
        label = paper.row_of(method) or ""
        figure = paper.rows.get(label, {}).get(name)
        gap = table.differences.get(label, {}).get(method, {}).get(name)
        printed = "" if figure is None else str(figure)
        away = "" if gap is None else gap.text(1 if table.scale == 100 else 3)
        fields.append(_field(table, cell, marks.get(i, ""), printed, away))
    for label in others:
        figure = paper.rows[label].get(name)
        fields.append(Field(str(figure), float(figure.value) / table.scale) if figure else Field())
    return fields


def _field(table: Table, cell: Cell, mark: str, paper: str, gap: str) -> Field:
    value, error, n = cell.fields()
    if isinstance(value, str):
        return Field(value or f"{n}/{cell.seeds} seeds", paper=paper)
    finished, spread = n + cell.undefined, "" if error is None else table.number_text(error)
    remarks = [f"{finished}/{cell.seeds} seeds"] * (finished < cell.seeds)
    remarks += [f"{cell.undefined} undefined"] * bool(cell.undefined)
    return Field(table.number_text(value), value, spread, ", ".join(remarks), mark, paper, gap)


def _sign(table: Table, reference: str | None, method: str) -> tuple[str, str]:
    p = table.comparison.p.get(method) if table.comparison else None
    if p is None or p >= LEVEL or reference is None:
        return "", ""
    cells = cells_of(table, "average")
    ours, theirs = (mean(cells[m].values) for m in (method, reference))
    sign, word = ("▲", "better") if (ours < theirs) == table.lower else ("▼", "worse")
    return sign, f"{word} than {reference}, p = {p:.3g} after Holm"


def cards(table: Table) -> list[tuple[str, str]]:
    """Return which methods are significantly ahead of the reference, and its average.

    Returns:
        Cards: a figure or a name, and what it is.
    """
    averages = {m: mean(c.values) for m, c in cells_of(table, "average").items() if c.complete}
    if len(averages) < 2:
        return []
    tested = table.comparison
    if tested is None or tested.reference not in averages:
        what = "a reference" if tested is None else f"all runs of {tested.reference}"
        return [("not tested", f"no method may be called best: the test needs {what}")]
    reference, sign = tested.reference, -1 if table.lower else 1
    lead = {m: sign * (x - averages[reference]) for m, x in averages.items()}
    p = {m: tested.p[m] for m in lead if lead[m] > 0 and m in tested.p}
    unit = "\N{NO-BREAK SPACE}%" if table.scale == 100 else ""
    texts = {m: f"{m}: {table.number_text(x)}{unit}" for m, x in averages.items()}
    level = (texts[reference], f"average {table.metric} of the reference")
    leaders = [m for m in p if p[m] < LEVEL]
    if not leaders:
        least = f" (smallest corrected p {_p(min(p.values()))})" if p else ""
        return [("no method", f"is significantly ahead of {reference}{least}"), level]
    first = max(leaders, key=lead.__getitem__)
    why = f"average {table.metric}, significantly ahead of {reference} (corrected p {_p(p[first])})"
    if len(leaders) > 1:
        why += f", as are {len(leaders) - 1} more; these were not tested against each other"
    return [(texts[first], why), level]


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.2g}"
