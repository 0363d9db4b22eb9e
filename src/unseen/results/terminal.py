"""A table in a terminal: as wide as that is, and no figure, name or word broken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unseen.results import table_layout
from unseen.results.formats import BEST, PLAIN, SECOND, Rows, line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

#: Lines that the targets may take; more of them stay in files.
LINES = 200
#: A name that takes more than this share of the width is shown by a number.
SHARE = 3
STYLES = {PLAIN: "", BEST: "bold", SECOND: "underline"}


@dataclass(frozen=True)
class Terminal:
    """What rich prints.

    rows: the whole table, shown where it fits; else `summaries`, one row per method, and `turned`,
    one row per target. tail: the note on the percentile, which only the summaries may have.
    """

    title: str
    rows: Rows
    summaries: Rows
    turned: Rows
    notes: Sequence[str]
    tail: Sequence[str]
    legend: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Every line by itself."""
        from rich.text import Text

        tables, notes = self.fitted(options.max_width)
        if self.title:
            yield Text(self.title, "bold")
        for rows in tables:
            yield Text()
            yield from _lines(rows)
        yield Text()
        for note in notes:
            yield Text(note)

    def fitted(self, width: int) -> tuple[list[Rows], list[str]]:
        """The tables that a terminal of this width shows, and the lines under them."""
        from rich.cells import cell_len

        limit = width // SHARE
        rows, summaries, turned = map(_flat, (self.rows, self.summaries, self.turned))
        if table_layout.wide(rows, cell_len) <= width:
            return [rows], [*self.notes[:1], *self.legend, *self.notes[1:]]
        names = table_layout.keys(rows, limit, cell_len)
        told = [f"{number}: {name}" for name, number in names.items()]
        short = table_layout.keyed(rows, names)
        if table_layout.wide(short, cell_len) <= width:
            return [short], [*told, *self.notes[:1], *self.legend, *self.notes[1:]]
        tables = list(table_layout.fitted(table_layout.keyed(summaries, names), width, cell_len))
        sites = list(table_layout.fitted(table_layout.keyed(turned, names), width, cell_len))
        left = ""
        if table_layout.length(sites) > LINES:
            left = f"the {len(turned) - 1} {turned[0][0][0]}s would take more than {LINES} lines "
            left += "here: they are in table.csv and table.md, and in --format csv or markdown"
            sites = []
        under = [*told, *filter(None, [left]), *self.notes[:1], *self.legend]
        return [*tables, *sites], [*under, *self.tail, *self.notes[1:]]


def _flat(rows: Rows) -> Rows:
    return [[(line(text), mark) for text, mark in row] for row in rows]


def _lines(rows: Rows) -> Iterator[Text]:
    """The header, a rule, the body: the first column to the left, the others to the right."""
    from rich.cells import cell_len
    from rich.text import Text

    columns = zip(*rows, strict=True)
    first, *widths = (max(cell_len(text) for text, _ in column) for column in columns)
    for i, row in enumerate(rows):
        name = row[0][0]
        drawn = Text(name + " " * (first - cell_len(name)), no_wrap=True)
        for (text, mark), width in zip(row[1:], widths, strict=True):
            drawn.append(" " * (2 + width - cell_len(text)))
            drawn.append(text, STYLES[mark])
        yield drawn
        if i == 0:
            yield Text("─" * (first + sum(2 + w for w in widths)), no_wrap=True)
