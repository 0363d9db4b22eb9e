"""Parquet files: rows, column -> value; and whole columns as texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from unseen.datasets.tables.cells import Cells
from unseen.errors import UnseenError

#: How every Parquet file begins.
MAGIC = b"PAR1"
#: How many rows are in memory at once.
GROUP = 1000


def is_parquet(path: Path) -> bool:
    """Return whether a file says at its start that it is a Parquet file, whatever its name."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def columns_and_rows(path: Path) -> tuple[list[str], Iterator[dict[str, Any]]]:
    """Return the columns of a Parquet file, and its rows, of which few are in memory at once.

    Raises:
        UnseenError: The file cannot be read.
    """
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise _unreadable(error) from None
    return list(file.schema_arrow.names), _rows(file)


def cells_of(path: Path) -> dict[str, Cells]:
    """Return the columns of a Parquet file, each value as a csv file has it.

    Raises:
        UnseenError: The file cannot be read, or a column holds lists, records or bytes.
    """
    try:
        file = pyarrow.parquet.ParquetFile(path)
        if twice := {n for n in file.schema_arrow.names if file.schema_arrow.names.count(n) > 1}:
            raise UnseenError(
                f"{path} has more than one column called {min(twice)}:",
                remedy="rename or remove all but one.",
            )
        table = file.read()
    except (OSError, ValueError) as error:
        if isinstance(error, UnseenError):
            raise
        raise UnseenError(f"{path} is no Parquet file that can be read: {error}") from None
    if not len(table):
        raise UnseenError(f"{path} has no rows.")
    return {name: _cells(path, name, table.column(name)) for name in table.column_names}


def _cells(path: Path, name: str, column: Any) -> Cells:
    kinds = pyarrow.types
    if kinds.is_nested(column.type) or kinds.is_binary(column.type):
        raise UnseenError(
            f"the column {name!r} of {path} holds {column.type}, which is no text and no number.",
            remedy="Leave it out of the file, or write it as several columns.",
        )
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    encoded = column.combine_chunks().dictionary_encode()
    encoded = encoded.chunk(0) if isinstance(encoded, pyarrow.ChunkedArray) else encoded
    texts = [plain_cell(value).strip() for value in encoded.dictionary.to_pylist()]
    values = pyarrow.array([text or None for text in texts], pyarrow.string()).dictionary_encode()
    places = values.indices.take(encoded.indices)
    return Cells.encoded(pyarrow.DictionaryArray.from_arrays(places, values.dictionary))


def plain_cell(value: object, missing: str = "") -> str:
    """Return a value as a csv file with commas and decimal points has it.

    Example:
        >>> plain_cell(True), plain_cell(1.5), plain_cell(None)
        ('1', '1.5', '')
    """
    if value is None or value != value:
        return missing
    return str(int(value) if isinstance(value, bool) else value)


def _rows(file: Any) -> Iterator[dict[str, Any]]:
    with file:
        try:
            for batch in file.iter_batches(GROUP):
                yield from batch.to_pylist()
        except (OSError, ValueError) as error:
            raise _unreadable(error) from None


def _unreadable(error: Exception) -> UnseenError:
    return UnseenError(f"the Parquet file cannot be read: {error}")
