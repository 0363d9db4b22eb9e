"""Named columns of a csv file, row by row: for files of which most is not needed."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from unseen.errors import UnseenError, nearest


def rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The cells of the named columns, in that order, of each row in the order of the file.

    path: a csv file in UTF-8 with a header, unpacked on the way if its name ends in .gz. Cells
    are text without the blanks around them. Only one row is in memory at a time. Raises
    UnseenError for a column that is not there, a row that is too short and a damaged file.
    """
    try:
        with _text(path) as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            for name in columns:
                if name not in header:
                    raise nearest(f"column of {path}", name, header)
            places = [header.index(name) for name in columns]
            for row in reader:
                if len(row) != len(header):
                    raise UnseenError(
                        f"line {reader.line_num} of {path} has {len(row)} cells where "
                        f"{len(header)} were expected: the file is damaged."
                    )
                yield tuple(row[place].strip() for place in places)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise UnseenError(f"{path} is not a csv file in UTF-8: {error}.") from error


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    else:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
