"""Columns of Arrow and Parquet files, as texts."""

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from unseen.data.tables.cells import Cells
from unseen.errors import UnseenError

#: How every Parquet file begins.
MAGIC = b"PAR1"
#: Kinds of bytes that are no text.
_BINARY = (
    pyarrow.types.is_binary, pyarrow.types.is_large_binary, pyarrow.types.is_binary_view,
    pyarrow.types.is_fixed_size_binary,
)  # fmt: skip


def is_parquet(path: Path) -> bool:
    """Return whether a file says at its start that it is a Parquet file, whatever its name."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def opened(path: Path) -> Any:
    """Return a Parquet file; an error says why it cannot be read."""
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise UnseenError(f"the Parquet file cannot be read: {error}") from None


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
    return {n: cells_of_column(path, n, table.column(n)) for n in table.column_names}


def cells_of_column(where: Path | str, name: str, column: Any) -> Cells:
    """Return a column of Arrow, each value as a csv file has it.

    Args:
        where: The file, as errors name it.
        name: The column.
        column: An array, or a chunked one.
    """
    kinds = pyarrow.types
    if kinds.is_dictionary(column.type):
        chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
        column = pyarrow.chunked_array([_plain(c.dictionary).take(c.indices) for c in chunks])
    if kinds.is_nested(column.type) or any(kind(column.type) for kind in _BINARY):
        raise UnseenError(
            f"the column {name!r} of {where} holds {column.type}, which is no text and no number.",
            remedy="Leave it out of the file, or write it as several columns.",
        )
    encoded = _plain(column).dictionary_encode()
    if isinstance(encoded, pyarrow.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
        encoded = encoded.chunk(0) if isinstance(encoded, pyarrow.ChunkedArray) else encoded
    values = _texts(encoded.dictionary).dictionary_encode()
    places = values.indices.take(encoded.indices)
    return Cells.encoded(pyarrow.DictionaryArray.from_arrays(places, values.dictionary))


def cells_of_any(column: Any) -> Cells:
    """Return a column of Arrow likewise; lists, records and bytes as Python writes them."""
    try:
        return cells_of_column("", "", column)
    except UnseenError:
        return Cells.of([plain_cell(value).strip() for value in column.to_pylist()])


def _plain(values: Any) -> Any:
    """Return texts of every kind as those of one kind, and all else as it is."""
    kinds = pyarrow.types
    other = kinds.is_string_view(values.type) or kinds.is_large_string(values.type)
    return values.cast(pyarrow.string()) if other else values


def _texts(values: Any) -> Any:
    """Return different values as texts without the blanks around them, null where empty."""
    if pyarrow.types.is_integer(values.type):
        return values.cast(pyarrow.string())
    if pyarrow.types.is_string(values.type):
        texts = pyarrow.compute.utf8_trim_whitespace(values)
        return pyarrow.compute.if_else(pyarrow.compute.equal(texts, ""), None, texts)
    own = [*values.to_numpy(zero_copy_only=False)] if _is_short(values.type) else values.to_pylist()
    texts = [plain_cell(value).strip() for value in own]
    return pyarrow.array([text or None for text in texts], pyarrow.string())


def _is_short(kind: Any) -> bool:
    """Whether numbers have fewer digits than a float64 shows of them: 0.1 and not 0.1000000015."""
    return bool(pyarrow.types.is_float32(kind) or pyarrow.types.is_float16(kind))


def plain_cell(value: object, missing: str = "") -> str:
    """Return a value as a csv file with commas and decimal points has it.

    Example:
        >>> plain_cell(True), plain_cell(1.5), plain_cell(None)
        ('1', '1.5', '')
    """
    if value is None or value != value:
        return missing
    return str(int(value) if isinstance(value, bool) else value)
