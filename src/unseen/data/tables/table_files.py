"""Files of tables: csv and Parquet, read whole as columns of text, or row by row."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv

from unseen.data.entry import below
from unseen.data.tables.cells import Cells, decimal_of, trimmed
from unseen.data.tables.dialect import (
    BROKEN,
    Dialect,
    decode,
    open_binary,
    open_text,
    says_separator,
    separator_of,
)
from unseen.data.tables.frames import as_frame
from unseen.data.tables.parquet_rows import cells_of, is_parquet
from unseen.data.tables.sheet import MISSING, Sheet, with_usual
from unseen.errors import UnseenError, nearest

#: Options of `load` that say how the file is read; the others say what its columns are.
READING = ("missing", "separator", "decimal", "encoding")
#: How errors name a row of a file that has no lines.
ROW = "row {}"
#: Bytes of a file that become texts at once: the fewer parts, the fewer words are compared.
PART = 1 << 24


def cells_by_line(
    file: Iterable[str], separator: str, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the cells of every row, without the blanks around cells.

    A first line that says the separator (`sep=;`), as Excel reads it, is not a row.
    """
    reader = csv.reader(file, strict=strict, delimiter=separator)
    for row in reader:
        if reader.line_num > 1 or not says_separator(row, separator):
            yield reader.line_num, [cell.strip() for cell in row]


def read(
    path: Path,
    needs: Sequence[str] = (),
    missing: Sequence[str] = MISSING,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    header: Sequence[str] = (),
) -> Sheet:
    """Read a csv file, unpacked if its name ends in .gz, or a Parquet file.

    Args:
        path: The file.
        needs: Columns that it must have, by which the separator is known.
        missing: Cells that hold no value besides empty ones.
        separator: What separates cells; this and the next two are detected by default, where that
            is safe (`dialect`).
        decimal: The decimal sign.
        encoding: The encoding of the file.
        header: Names of the columns of a file without a header.
    """
    dialect = Dialect(separator, decimal, encoding)
    words = with_usual(missing)
    if is_parquet(path):
        by_name = {name.strip(): cells.without(words) for name, cells in cells_of(path).items()}
        return Sheet(path.name, by_name, range(1, 1 + len(next(iter(by_name.values())))), place=ROW)
    try:
        with open_binary(path) as file:
            content = file.read()
        text, encoding = decode(content, dialect.encoding, path)
        separator = dialect.separator or ("," if header else separator_of(text, needs, path))
        plain = plain_columns(content, text, separator, header)
        names, cells, lines = (
            _row_by_row(text, separator, header, path)
            if plain is None
            else (plain.names, map(trimmed, plain.columns), plain.lines)
        )
    except (*BROKEN, csv.Error) as error:
        raise UnseenError(f"{path} is not a csv file: {error}.") from error
    del content, text, plain
    columns = [column.without(words) for column in cells]
    sign = dialect.decimal or decimal_of(columns, separator)
    columns = [cells if sign == "." else replace(cells, decimal=sign) for cells in columns]
    named = dict(zip(names, columns, strict=True))
    del cells
    pyarrow.default_memory_pool().release_unused()
    return Sheet(path.name, named, lines, Dialect(separator, sign, encoding))


Read = tuple[Sequence[str], Iterable[Cells], Sequence[int]]


@dataclass(frozen=True)
class Columns:
    """The columns of a plainly written file: names, arrays of texts, and the line of each row."""

    names: Sequence[str]
    columns: Sequence[Any]
    lines: range


def plain_columns(
    content: bytes, text: str, separator: str, header: Sequence[str]
) -> Columns | None:
    """Return the columns of a plainly written file; None of any other.

    In a plain file each line is a row, and quotes stand around whole cells alone.
    """
    end = len(text.rstrip("\r\n"))
    first, sep = text[: text.find("\n", 0, end) + 1], re.escape(separator)
    lines_end = "\r" not in text or text.count("\r") == text.count("\r\n")
    if not lines_end or not first.strip() or not separator.isascii() or separator in '"\r\n':
        return None
    names, skipped = list(header), 0
    if not header:
        row = [cell.strip() for cell in next(csv.reader([first], delimiter=separator))]
        if says_separator(row, separator) or len(row) < 2 or first.count('"') % 2:
            return None
        names, skipped = row, 1
    odd = re.compile(f'[^{sep}\r\n]"[^{sep}\r\n"]|[{sep}\n]""[^{sep}\r\n]')
    if not all(names) or len({*names}) < len(names) or ('"' in text and odd.search(text)):
        return None
    rows = text.count("\n", 0, end) + 1 - skipped
    ours = len(content) - len(codecs.BOM_UTF8) * content.startswith(codecs.BOM_UTF8)
    is_utf_8 = text.isascii() and ours == len(text)
    buffer = pyarrow.py_buffer(content[-ours:] if is_utf_8 else text.encode())
    try:
        table = pyarrow.csv.read_csv(
            pyarrow.BufferReader(buffer),
            pyarrow.csv.ReadOptions(column_names=names, skip_rows=skipped, block_size=PART),
            pyarrow.csv.ParseOptions(delimiter=separator),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False
            ),
        )
    except pyarrow.ArrowInvalid:
        return None  # a row too short, among others: the slow way says in which line
    if len(table) != rows or not rows:
        return None
    columns = [column.combine_chunks() for column in table.columns]
    return Columns(names, columns, range(1 + skipped, 1 + skipped + rows))


def _row_by_row(text: str, separator: str, header: Sequence[str], path: Path) -> Read:
    rows = [row for row in cells_by_line(io.StringIO(text, newline=""), separator) if row[1]]
    names = list(header) or (rows.pop(0)[1] if rows else [])
    _check_header(names, path)
    if not rows:
        raise UnseenError(f"{path} has no rows.")
    for line, row in rows:
        if len(row) != len(names):
            raise _wrong_length(path, line, row, names)
    cells = map(Cells.of, zip(*(row for _, row in rows), strict=True))
    return names, cells, [line for line, _ in rows]


def stream(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield some columns of a csv file row by row: for large files of which most is not needed.

    Args:
        path: A csv file in UTF-8 with commas and a header, unpacked if its name ends in .gz.
        columns: Names of the columns, in the order in which their cells are yielded.

    Raises:
        UnseenError: A column is missing, a row is too short or too long, or the file is damaged.
    """
    try:
        with open_text(path, "utf-8-sig") as file:
            rows = cells_by_line(file, ",")
            _, header = next(rows, (0, []))
            for name in columns:
                if name not in header:
                    raise nearest(f"column of {path}", name, header)
            places = [header.index(name) for name in columns]
            for line, row in rows:
                if len(row) != len(header):
                    raise _wrong_length(path, line, row, header)
                yield tuple(row[place] for place in places)
    except (*BROKEN, UnicodeDecodeError, csv.Error) as error:
        raise UnseenError(f"{path} is not a csv file in UTF-8: {error}.") from error


def _wrong_length(path: Path, line: int, row: Sequence[str], header: Sequence[str]) -> UnseenError:
    return UnseenError(
        f"line {line} of {path} has {len(row)} cells where {len(header)} were expected, one for "
        f"each of {', '.join(header)}."
    )


def _check_header(names: Sequence[str], path: Path) -> None:
    nameless = [str(i) for i, name in enumerate(names, 1) if not name]
    if nameless:
        plural = "s" if len(nameless) > 1 else ""
        raise UnseenError(
            f"{path} has no name in its first line for column{plural} {', '.join(nameless)}.",
            remedy="Name or remove them. (Row numbers that pandas wrote? Write index=False. A "
            "title above the header? Remove it.)",
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UnseenError(
            f"{path} has more than one column called {' and more than one called '.join(twice)}:",
            remedy="rename or remove all but one.",
        )


#: The sheets that were read, inside `reading_once`.
_READ: ContextVar[dict[str, Sheet] | None] = ContextVar("sheets", default=None)


@contextmanager
def reading_once() -> Iterator[None]:
    """Read each file once as long as this lasts, however often it is loaded."""
    token = _READ.set({} if _READ.get() is None else _READ.get())
    try:
        yield
    finally:
        _READ.reset(token)


def sheet_of(
    data_dir: str | Path | None,
    path: str | Path,
    needs: Sequence[str] = (),
    reading: Mapping[str, Any] | None = None,
) -> Sheet:
    """Read a table's file, or the one that a data frame was written to.

    Args:
        data_dir: The data folder.
        path: The file.
        needs: Columns that it must have.
        reading: Options of `READING`.
    """
    file = below(data_dir, path, "table")
    options = {"missing": MISSING} | {k: v for k, v in (reading or {}).items() if v is not None}
    sheets, key = _READ.get(), repr((str(file), sorted(options.items())))
    if sheets is not None and key in sheets:
        return sheets[key]
    sheet = replace(as_frame(read(file, needs, **options), file), whole=True)
    if sheets is not None:
        sheets[key] = sheet
    return sheet
