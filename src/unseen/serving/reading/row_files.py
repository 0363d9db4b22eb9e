"""Files of rows: their columns in blocks of many rows, and which rows have none."""

import csv
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import pyarrow

from unseen.data.tables.column_texts import Texts
from unseen.data.tables.dialect import BROKEN, Dialect, dialect_like, open_text
from unseen.data.tables.parquet_rows import is_parquet, opened
from unseen.data.tables.table_files import cells_by_line, plain_columns
from unseen.errors import UnseenError, nearest
from unseen.serving.reading.inputs import Inputs, TableInputs

#: How cells are written that were values before.
PLAIN = Dialect(",", ".")
#: What keeps a file from being read further.
CUT = (*BROKEN, csv.Error)
T = TypeVar("T")


@dataclass(frozen=True)
class Block:
    """Rows that were read together.

    Attributes:
        columns: Column -> the cells of all rows.
        lines: The line of each row; None where a fault is of the whole file.
        faults: Row -> why it has no cells, or why the file ends there.
    """

    columns: Mapping[str, Texts] = field(default_factory=dict)
    lines: Sequence[int | None] = ()
    faults: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def fault(cls, line: int | None, why: str) -> "Block":
        return cls(lines=[line], faults={0: why})


def blocks_of(inputs: TableInputs, path: Path, rows: int) -> Iterator[Block]:
    """Yield the rows of a csv or Parquet file, as many at a time; faulty ones spoil no others.

    Args:
        inputs: What the model takes, as this file is written (`fitted`).
        path: The file.
        rows: Rows that are in memory at once.
    """
    empty = True
    needs = inputs.schema.names
    parts = _of_parquet if is_parquet(path) else _of_csv
    for block in parts(path, needs, inputs.dialect, rows):
        empty = empty and not block.lines
        yield block
    if empty:
        yield Block.fault(None, "has no rows")


def _of_csv(path: Path, needs: Sequence[str], dialect: Dialect, rows: int) -> Iterator[Block]:
    if not path.is_file():
        yield Block.fault(None, "is not a csv file; the model takes the rows of one")
        return
    encoding, separator = dialect.encoding or "utf-8", dialect.separator or ","
    line = 1
    try:
        # What cannot be decoded is kept as surrogates: one bad row leaves the others readable.
        with open_text(path, encoding, "surrogateescape") as file:
            line, header = next(cells_by_line(file, separator, strict=False), (1, []))
            if fault := header_fault(header, needs, encoding):
                yield Block.fault(None, f"{fault}; none of its rows is used")
                return
            reader = _Rows(header, separator, encoding, rows, line)
            for block in reader.blocks(file):
                line = reader.last
                yield block
    except CUT as error:
        yield Block.fault(line if line > 1 else None, f"cannot be read further: {error}")


@dataclass
class _Rows:
    """Reads blocks of a csv file, below its header.

    Attributes:
        header: The columns.
        separator: What separates cells.
        encoding: In which the file is read.
        rows: How many rows become a block.
        last: The last line that was read.
    """

    header: Sequence[str]
    separator: str
    encoding: str
    rows: int
    last: int

    def blocks(self, file: Iterator[str]) -> Iterator[Block]:
        """Yield the rows of all lines; raises what keeps the rest from being read."""
        for lines in some_of(file, self.rows):
            block = self._plain("".join(lines))
            yield from [block] if block else self._others(lines, file)

    def _plain(self, text: str) -> Block | None:
        """Return whole lines as columns; None where cells hold ends of lines, or rows differ."""
        if text.count('"') % 2 or has_surrogate(text):
            return None
        names = [str(j) for j in range(len(self.header))]
        read = plain_columns(text.encode(), text, self.separator, names)
        if read is None:
            return None
        columns = {n: Texts(own) for n, own in zip(self.header, read.columns, strict=True)}
        before, self.last = self.last, self.last + len(read.lines)
        return Block(columns, range(before + 1, self.last + 1))

    def _others(self, lines: list[str], file: Iterator[str]) -> Iterator[Block]:
        """Yield these lines row by row; where they have quotes, all lines behind them as well."""
        quoted, before = any('"' in line for line in lines), self.last
        parts = chain(lines, file) if quoted else iter(lines)
        for some in some_of(cells_by_line(parts, self.separator, strict=False), self.rows):
            self.last = before + some[-1][0]
            if rows := [(before + line, row) for line, row in some if row]:
                yield self._block(rows)

    def _block(self, rows: Sequence[tuple[int, list[str]]]) -> Block:
        faults = dict[int, str]()
        for place, (_, row) in enumerate(rows):
            if len(row) != len(self.header):
                faults[place] = f"has {len(row)} cells where {len(self.header)} were expected"
            elif has_surrogate("".join(row)):
                faults[place] = f"holds bytes that are not {_spelt(self.encoding)}"
        none = [None] * len(self.header)
        sound = [none if place in faults else row for place, (_, row) in enumerate(rows)]
        columns = (Texts(pyarrow.array(own, pyarrow.string())) for own in zip(*sound, strict=True))
        return Block(dict(zip(self.header, columns, strict=False)), [n for n, _ in rows], faults)


def some_of(parts: Iterator[T], count: int) -> Iterator[list[T]]:
    """Yield the parts of a file in lists; what keeps others from being read is raised behind."""
    error: Exception | None = None
    while error is None:
        some = list[T]()
        try:
            for part in islice(parts, count):
                some.append(part)
        except CUT as caught:
            error = caught
        if some:
            yield some
        elif error is None:
            return
    raise error


def _of_parquet(path: Path, needs: Sequence[str], _: Dialect, rows: int) -> Iterator[Block]:
    line = 0
    try:
        with opened(path) as file:
            names = list(file.schema_arrow.names)
            if fault := header_fault(names, needs):
                yield Block.fault(None, f"{fault}; none of its rows is used")
                return
            for batch in file.iter_batches(rows):
                columns = {n: Texts(own) for n, own in zip(names, batch.columns, strict=True)}
                yield Block(columns, range(line + 1, line + 1 + len(batch)))
                line += len(batch)
    except (UnseenError, OSError, ValueError) as error:
        why = str(error)
        if not isinstance(error, UnseenError):
            why = f"the Parquet file cannot be read: {error}"
        yield Block.fault(line + 1 if line else None, why)


def fitted(inputs: TableInputs, path: Path) -> TableInputs:
    """Return the inputs as this file is written: what it does not show is as in training."""
    if is_parquet(path):
        return replace(inputs, dialect=PLAIN)
    schema = inputs.schema
    numeric = {schema.columns[j] for j in schema.numeric} | {inputs.label}
    try:
        dialect = dialect_like(path, schema.names, numeric, inputs.dialect)
    except (*CUT, UnicodeError):
        return inputs  # reading its rows says what is wrong
    return replace(inputs, dialect=dialect)


def columns_of(inputs: TableInputs, path: Path) -> list[str]:
    """Return the columns of a file of rows; none where it cannot be read, as its rows then say."""
    with suppress(UnseenError, UnicodeError, *CUT):
        if is_parquet(path):
            return list(opened(path).schema_arrow.names)
        dialect = fitted(inputs, path).dialect
        with open_text(path, dialect.encoding or "utf-8", "surrogateescape") as file:
            rows = cells_by_line(file, dialect.separator or ",", strict=False)
            return list(next(rows, (0, []))[1])
    return []


def check_copies(inputs: Inputs, paths: Iterable[Path], names: Sequence[str]) -> None:
    """Refuse a column to copy that a file does not have.

    Args:
        inputs: What the model takes.
        paths: The files.
        names: The columns to copy.
    """
    if not names:
        return
    if not isinstance(inputs, TableInputs):
        raise UnseenError("--keep copies columns of a csv file; this model takes images.")
    for path in paths:
        header = columns_of(inputs, path)
        if header_fault(header, inputs.schema.names):
            continue  # none of its rows is used, and they say so
        for name in names:
            if name not in header:
                raise nearest(f"column of {path} (for --keep)", name, header)


def header_fault(header: Sequence[str], columns: Sequence[str], encoding: str = "utf-8") -> str:
    """Return why no row below these columns can be used, or "".

    Args:
        header: The file's columns; bytes that are not of the encoding as surrogates.
        columns: The model's.
        encoding: In which the file was read.
    """
    if twice := sorted({name for name in header if header.count(name) > 1}):
        names = " and more than one called ".join(map(repr, twice))
        return f"has more than one column called {names}"
    if not header:
        return "is not a csv file: it has no header"
    if any("\x00" in name for name in header):
        return "is not a csv file"
    if foreign := [name for name in header if has_surrogate(name)]:
        form = _spelt(encoding)
        byte = next(ord(c) - 0xDC00 for c in foreign[0] if has_surrogate(c))
        return f"is not {form}: its header holds the byte 0x{byte:02x}; save it as {form}"
    if missing := [name for name in columns if name not in header]:
        close = difflib.get_close_matches(missing[0], header, n=1)
        hint = f" (is {missing[0]!r} called {close[0]!r} there?)" if close else ""
        what = f"column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        return f"lacks the {what}{hint}"
    return ""


def has_surrogate(text: str) -> bool:
    """Return whether a text holds bytes that are not of its encoding."""
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)


def _spelt(encoding: str) -> str:
    return encoding.removesuffix("-sig").upper()
