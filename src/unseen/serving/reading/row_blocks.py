"""Files of rows, read in blocks: the columns of many rows at once, and the rows that have none."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from unseen.data.tables.cells import Cells
from unseen.data.tables.dialect import BROKEN, Dialect, open_text
from unseen.data.tables.parquet_rows import cells_of_any, opened
from unseen.data.tables.table_files import cells_by_line, plain_rows
from unseen.errors import UnseenError
from unseen.serving.reading.row_columns import has_surrogate, header_fault

#: Rows of a file that are in memory at once.
ROWS = 8192
T = TypeVar("T")


@dataclass(frozen=True)
class Block:
    """Rows that were read together.

    Attributes:
        columns: Column -> its cells.
        lines: The line of each row.
        faults: Line -> why the row there, or the file from there on, has no cells; None as a line
            speaks of the whole file.
    """

    columns: Mapping[str, Cells] = field(default_factory=dict)
    lines: Sequence[int] = ()
    faults: Sequence[tuple[int | None, str]] = ()


@dataclass(frozen=True, eq=False)
class RowCells(Mapping[str, str]):
    """The cells of one row of a block, by column; "" where one is missing."""

    columns: Mapping[str, Cells]
    row: int

    def __getitem__(self, name: str) -> str:
        return self.columns[name][self.row] or ""

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


def of_csv(path: Path, needs: Sequence[str], dialect: Dialect) -> Iterator[Block]:
    """Yield the rows of a csv file; rows that are not read leave the others readable.

    Args:
        path: The file.
        needs: The columns that the model reads.
        dialect: How the file is written.
    """
    if not path.is_file():
        yield Block(faults=[(None, "is not a csv file; the model takes the rows of one")])
        return
    encoding, separator = dialect.encoding or "utf-8", dialect.separator or ","
    line, empty = 1, True
    try:
        # What cannot be decoded is kept as surrogates: one bad row leaves the others readable.
        with open_text(path, encoding, "surrogateescape") as file:
            line, header = next(cells_by_line(file, separator, strict=False), (1, []))
            if fault := header_fault(header, needs, encoding):
                yield Block(faults=[(None, f"{fault}; none of its rows is used")])
                return
            rows = _Rows(header, separator, encoding, line)
            for block in rows.blocks(file):
                empty = empty and not block.lines and not block.faults
                line = rows.last
                yield block
            if empty:
                yield Block(faults=[(None, "has no rows")])
    except (*BROKEN, csv.Error) as error:
        why = f"cannot be read further: {error}"
        yield Block(faults=[(line if line > 1 else None, why)])


def some_of(parts: Iterator[T]) -> tuple[list[T], Exception | None]:
    """Return the next parts of a file, and what kept others from being read."""
    some = list[T]()
    try:
        for part in islice(parts, ROWS):
            some.append(part)
    except (*BROKEN, csv.Error) as error:
        return some, error
    return some, None


@dataclass
class _Rows:
    """Reads blocks of a csv file, below its header.

    Attributes:
        header: The columns.
        separator: What separates cells.
        encoding: In which the file is read.
        last: The last line that was read.
    """

    header: Sequence[str]
    separator: str
    encoding: str
    last: int

    def blocks(self, file: Iterator[str]) -> Iterator[Block]:
        """Yield the rows of all lines; raises what keeps the rest from being read."""
        while True:
            lines, error = some_of(file)
            if lines:
                block = self._plain("".join(lines))
                yield from [block] if block else self._others(lines, file)
            if error is not None:
                raise error
            if not lines:
                return

    def _plain(self, text: str) -> Block | None:
        """Return whole lines as columns; None where cells hold ends of lines, or rows differ."""
        if text.count('"') % 2 or (not text.isascii() and has_surrogate(text)):
            return None
        names = [str(j) for j in range(len(self.header))]
        read = plain_rows(text.encode(), text, self.separator, names)
        if read is None:
            return None
        _, columns, lines = read
        before, self.last = self.last, self.last + len(lines)
        return Block(dict(zip(self.header, columns, strict=True)), range(before + 1, self.last + 1))

    def _others(self, lines: list[str], file: Iterator[str]) -> Iterator[Block]:
        """Yield these lines row by row; where they have quotes, all lines behind them as well."""
        quoted, before = any('"' in line for line in lines), self.last
        parts = chain(lines, file) if quoted else iter(lines)
        rows = cells_by_line(parts, self.separator, strict=False)
        error = None
        while error is None:
            some, error = some_of(rows)
            if not some:
                break
            self.last = before + some[-1][0]
            yield self._block([(before + at, cells) for at, cells in some])
        if error is not None:
            raise error

    def _block(self, rows: Sequence[tuple[int, list[str]]]) -> Block:
        good, faults = list[tuple[int, list[str]]](), list[tuple[int | None, str]]()
        for line, cells in rows:
            if len(cells) == len(self.header) and not has_surrogate("".join(cells)):
                good.append((line, cells))
            elif len(cells) == len(self.header):
                form = self.encoding.removesuffix("-sig").upper()
                faults.append((line, f"holds bytes that are not {form}"))
            elif cells:
                fault = f"has {len(cells)} cells where {len(self.header)} were expected"
                faults.append((line, fault))
        columns = map(Cells.of, zip(*(cells for _, cells in good), strict=True))
        by_name = dict(zip(self.header, columns, strict=True)) if good else {}
        return Block(by_name, [line for line, _ in good], faults)


def of_parquet(path: Path, needs: Sequence[str]) -> Iterator[Block]:
    """Yield the rows of a Parquet file, each value as a csv file has it; lines count from 1."""
    line = 0
    try:
        with opened(path) as file:
            names = list(file.schema_arrow.names)
            if fault := header_fault(names, needs):
                yield Block(faults=[(None, f"{fault}; none of its rows is used")])
                return
            for batch in file.iter_batches(ROWS):
                columns = {n: cells_of_any(c) for n, c in zip(names, batch.columns, strict=True)}
                yield Block(columns, range(line + 1, line + 1 + len(batch)))
                line += len(batch)
        if not line:
            yield Block(faults=[(None, "has no rows")])
    except (UnseenError, OSError, ValueError) as error:
        why = str(error)
        if not isinstance(error, UnseenError):
            why = f"the Parquet file cannot be read: {error}"
        yield Block(faults=[(line + 1 if line else None, why)])
