"""Rows of a Parquet file: column -> value."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError, optional

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
        UnseenError: pyarrow is not installed, or the file cannot be read.
    """
    parquet = optional("pyarrow.parquet", "a Parquet file needs", "parquet", "save its rows as csv")
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise _unreadable(error) from None
    return list(file.schema_arrow.names), _rows(file)


def _rows(file: Any) -> Iterator[dict[str, Any]]:
    with file:
        try:
            for batch in file.iter_batches(GROUP):
                yield from batch.to_pylist()
        except (OSError, ValueError) as error:
            raise _unreadable(error) from None


def _unreadable(error: Exception) -> UnseenError:
    return UnseenError(f"the Parquet file cannot be read: {error}")
