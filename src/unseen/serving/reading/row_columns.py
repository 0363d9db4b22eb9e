"""The columns of files of rows: how a file is written, which it has, which it lacks."""

import csv
import difflib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from unseen.data.tables.dialect import BROKEN, Dialect, dialect_like, open_text
from unseen.data.tables.parquet_rows import is_parquet, opened
from unseen.data.tables.table_files import cells_by_line
from unseen.errors import UnseenError, nearest
from unseen.serving.reading.inputs import Inputs, TableInputs

#: How cells are written that were values before.
PLAIN = Dialect(",", ".")


def fitted(inputs: TableInputs, path: Path) -> TableInputs:
    """Return the inputs as this file is written: what it does not show is as in training."""
    if is_parquet(path):
        return replace(inputs, dialect=PLAIN)
    schema = inputs.schema
    numeric = {schema.columns[j] for j in schema.numeric} | {inputs.label}
    try:
        dialect = dialect_like(path, schema.names, numeric, inputs.dialect)
    except (*BROKEN, csv.Error, UnicodeError):
        return inputs  # reading its rows says what is wrong
    return replace(inputs, dialect=dialect)


def columns_of(inputs: TableInputs, path: Path) -> list[str]:
    """Return the columns of a file of rows; none where it cannot be read, as its rows then say."""
    with suppress(UnseenError, UnicodeError, *BROKEN, csv.Error):
        if is_parquet(path):
            return list(opened(path).schema_arrow.names)
        dialect = fitted(inputs, path).dialect
        with open_text(path, dialect.encoding or "utf-8", "surrogateescape") as file:
            rows = cells_by_line(file, dialect.separator or ",", strict=False)
            return list(next(rows, (0, []))[1])
    return []


def check_copies(inputs: Inputs, paths: Sequence[Path], names: Sequence[str]) -> None:
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
        form = encoding.removesuffix("-sig").upper()
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
