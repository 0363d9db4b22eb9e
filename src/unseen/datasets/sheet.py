"""A csv file as columns of text, and what its cells mean."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

import torch
from torch import Tensor

from unseen.datasets.dialect import Dialect, decimal_of, decode, number, separator_of
from unseen.errors import UnseenError, nearest

__all__ = ["MISSING", "Sheet", "coded", "identity", "number", "read"]

#: Cells that stand for no value, unless told otherwise.
MISSING = ("", "?", "NA", "NaN")


@dataclass(frozen=True)
class Sheet:
    """Cells as text, None where missing: columns by name, and the line of each row in its file.

    dialect: how the file was written, as it was asked for or found.
    """

    name: str
    columns: dict[str, list[str | None]]
    lines: list[int]
    dialect: Dialect = field(default_factory=lambda: Dialect(",", ".", "utf-8"))

    def column(self, name: str) -> list[str | None]:
        """The cells of a column; an unknown name is answered with the nearest right one."""
        if name not in self.columns:
            raise nearest(f"column of {self.name}", name, self.columns)
        return self.columns[name]

    def plain(self, name: str) -> list[str | None]:
        """The cells of a column, its numbers with a decimal point whatever the file has."""
        cells = self.column(name)
        if self.dialect.decimal != ",":
            return cells
        return [None if cell is None else self.dialect.plain(cell) for cell in cells]

    def number(self, cell: str) -> float | None:
        """The number that a cell spells in this file, or None."""
        return number(cell, self.dialect.decimal)

    def take(self, rows: Sequence[int]) -> Sheet:
        """The sheet of some of the rows."""
        columns = {name: [cells[i] for i in rows] for name, cells in self.columns.items()}
        return replace(self, columns=columns, lines=[self.lines[i] for i in rows])

    def full(self, name: str, role: str) -> list[str]:
        """The cells of a column in which none may be missing."""
        cells = self.plain(name)
        gaps = [line for cell, line in zip(cells, self.lines, strict=True) if cell is None]
        if gaps:
            raise UnseenError(
                f"{rows_of(len(gaps), len(cells))} of {self.name} have no value in {name!r}, the "
                f"column of the {role}, the first in line {gaps[0]}: remove the rows or fill in "
                "the values."
            )
        return [cell for cell in cells if cell is not None]

    def numbers(self, name: str) -> list[float]:
        """The cells of a numeric column, NaN where missing."""
        values = [self.number(cell) if cell is not None else math.nan for cell in self.column(name)]
        for value, cell, line in zip(values, self.columns[name], self.lines, strict=True):
            if cell is not None and (value is None or not math.isfinite(value)):
                comma = " of decimal commas" if self.dialect.decimal == "," else ""
                raise UnseenError(
                    f"line {line} of {self.name} has {cell!r} in the numeric column {name!r}"
                    f"{comma}: correct it, add it to the option 'missing', or name the column in "
                    "the option 'categorical'."
                )
        return [math.nan if value is None else value for value in values]


def rows_of(count: int, total: int) -> str:
    """A number of rows among all.

    >>> rows_of(57, 9958)
    '57 of 9,958 rows'
    """
    return f"{count:,} of {total:,} rows"


def read(
    path: Path,
    missing: Sequence[str] = MISSING,
    header: Sequence[str] = (),
    dialect: Dialect | None = None,
    needs: Sequence[str] = (),
) -> Sheet:
    """The sheet of a csv file, unpacked if its name ends in .gz; `header` for a file without.

    dialect: what is known of how it is written; the rest is found where that is safe. needs:
    columns that must be there, by which the separator is known.
    """
    asked = dialect or Dialect()
    text, encoding = decode(_content(path), asked.encoding, path)
    separator = asked.separator or ("," if header else separator_of(text, needs, path))
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except csv.Error as error:
        raise UnseenError(f"{path} is not a csv file: {error}.") from error
    names = list(header) or (rows.pop(0)[1] if rows else [])
    _check_header(names, path)
    if not rows:
        raise UnseenError(f"{path} has no rows.")
    for line, row in rows:
        if len(row) != len(names):
            raise UnseenError(
                f"line {line} of {path} has {len(row)} cells where {len(names)} were expected, "
                f"one for each of {', '.join(names)}."
            )
    empty = set(missing)
    cells = [
        [None if cell in empty else cell for cell in column]
        for column in zip(*(r for _, r in rows), strict=True)
    ]
    known = ({cell for cell in column if cell is not None} for column in cells)
    decimal = asked.decimal or decimal_of(known, separator)
    columns = dict(zip(names, cells, strict=True))
    written = Dialect(separator, decimal, encoding)
    return Sheet(path.name, columns, [line for line, _ in rows], written)


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise UnseenError(f"{path} is not a csv file: {error}.") from error


def _check_header(names: Sequence[str], path: Path) -> None:
    nameless = [i for i, name in enumerate(names, 1) if not name]
    if nameless:
        one = len(nameless) == 1
        at = f"column {nameless[0]}" if one else f"columns {', '.join(map(str, nameless))}"
        raise UnseenError(
            f"{at} of the {len(names)} of {path} {'has' if one else 'have'} no name in the header: "
            "give every column a name, or remove it. (Row numbers that pandas wrote? Write the "
            "file with index=False.)"
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UnseenError(
            f"{path} has more than one column called {' and more than one called '.join(twice)}: "
            "rename or remove all but one."
        )


def coded(cells: Sequence[str | None]) -> tuple[tuple[str, ...], Tensor]:
    """Names of the different values, sorted, and the code of every cell [N] (-1: missing).

    3, 3.0 and 03 are one value, called by its shortest spelling: sites write the same code in
    different ways. Numbers come first, in their order, then words, in theirs; so a word at one
    site changes nothing about the numbers of another.

    >>> coded(["10", "3.0", "3", None])
    (('3', '10'), tensor([ 1,  0,  0, -1]))
    """
    texts = sorted({cell for cell in cells if cell is not None}, key=lambda t: (len(t), t))
    key = {text: identity(text) for text in texts}
    spelling: dict[tuple[bool, Decimal, str], str] = {}
    for text in texts:
        spelling.setdefault(key[text], text)
    values = sorted(spelling)
    code = {value: i for i, value in enumerate(values)}
    codes = [-1 if cell is None else code[key[cell]] for cell in cells]
    return tuple(spelling[value] for value in values), torch.tensor(codes, dtype=torch.int64)


def identity(text: str) -> tuple[bool, Decimal, str]:
    """Equal for cells of one value (3 and 3.0), in the order of values. Identifiers may be longer
    than a float is precise, hence the exact number."""
    value = number(text)
    if value is None or text.lstrip("+-")[0] not in ".0123456789":
        return True, Decimal(0), text
    return False, Decimal(text), ""
