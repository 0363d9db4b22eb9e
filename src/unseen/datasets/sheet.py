"""Csv files: read whole, as columns of text, or row by row; and what their cells mean."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

import torch
from torch import Tensor

from unseen.datasets.dialect import (
    BROKEN,
    Dialect,
    decimal_of,
    decode,
    number,
    open_binary,
    open_text,
    separator_of,
)
from unseen.errors import UnseenError, nearest

__all__ = ["MISSING", "Sheet", "cells_by_line", "coded", "identity", "number", "read", "stream"]

#: Cells that hold no value, by default.
MISSING = ("", "?", "NA", "NaN")


@dataclass(frozen=True)
class Sheet:
    """The cells of a csv file as text.

    Attributes:
        name: The file, as errors name it.
        columns: Column -> its cells, None where missing.
        lines: The line of each row in the file.
        dialect: How the file is written, by the options or as it was detected.
    """

    name: str
    columns: dict[str, list[str | None]]
    lines: list[int]
    dialect: Dialect = field(default_factory=lambda: Dialect(",", ".", "utf-8"))

    def column(self, name: str) -> list[str | None]:
        """Return the cells of a column; an error suggests the nearest name for an unknown one."""
        if name not in self.columns:
            raise nearest(f"column of {self.name}", name, self.columns)
        return self.columns[name]

    def plain(self, name: str) -> list[str | None]:
        """Return the cells of a column, its numbers with a decimal point whatever the file has."""
        cells = self.column(name)
        if self.dialect.decimal != ",":
            return cells
        return [None if cell is None else self.dialect.plain(cell) for cell in cells]

    def number(self, cell: str) -> float | None:
        """Return the number that a cell spells in this file, or None."""
        return self.dialect.number(cell)

    def take(self, rows: Sequence[int]) -> Sheet:
        """Return the sheet of some of the rows."""
        columns = {name: [cells[i] for i in rows] for name, cells in self.columns.items()}
        return replace(self, columns=columns, lines=[self.lines[i] for i in rows])

    def full(self, name: str, role: str) -> list[str]:
        """Return the cells of a column in which none may be missing; role: what it is used for."""
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
        """Return the cells of a numeric column, NaN where missing."""
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
    """Return a number of rows among all, in words.

    >>> rows_of(57, 9958)
    '57 of 9,958 rows'
    """
    return f"{count:,} of {total:,} rows"


def cells_by_line(
    file: Iterable[str], separator: str, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the cells of every row, without the blanks around cells."""
    reader = csv.reader(file, strict=strict, delimiter=separator)
    for row in reader:
        yield reader.line_num, [cell.strip() for cell in row]


def read(
    path: Path,
    missing: Sequence[str] = MISSING,
    header: Sequence[str] = (),
    dialect: Dialect | None = None,
    needs: Sequence[str] = (),
) -> Sheet:
    """Read a csv file, unpacked if its name ends in .gz.

    Args:
        path: The file.
        missing: Cells that hold no value.
        header: Names of the columns of a file without a header.
        dialect: What is known of how the file is written; the rest is detected where that is safe.
        needs: Columns that must be there, by which the separator is known.
    """
    asked = dialect or Dialect()
    text, encoding = decode(_content(path), asked.encoding, path)
    separator = asked.separator or ("," if header else separator_of(text, needs, path))
    try:
        rows = [row for row in cells_by_line(io.StringIO(text, newline=""), separator) if row[1]]
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
        for column in zip(*(row for _, row in rows), strict=True)
    ]
    distinct = ({cell for cell in column if cell is not None} for column in cells)
    decimal = asked.decimal or decimal_of(distinct, separator)
    columns = dict(zip(names, cells, strict=True))
    written = Dialect(separator, decimal, encoding)
    return Sheet(path.name, columns, [line for line, _ in rows], written)


def _content(path: Path) -> bytes:
    try:
        with open_binary(path) as file:
            return file.read()
    except BROKEN as error:
        raise UnseenError(f"{path} is not a csv file: {error}.") from error


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
                    raise UnseenError(
                        f"line {line} of {path} has {len(row)} cells where "
                        f"{len(header)} were expected: the file is damaged."
                    )
                yield tuple(row[place] for place in places)
    except (*BROKEN, UnicodeDecodeError, csv.Error) as error:
        raise UnseenError(f"{path} is not a csv file in UTF-8: {error}.") from error


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
    """Return the names of the distinct values, sorted, and every cell's code [N] (-1: missing).

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
    """Return a key that cells of one value (3 and 3.0) share, in the order of the values.

    The number is exact, since identifiers may have more digits than a float."""
    value = number(text)
    if value is None or text.lstrip("+-")[0] not in ".0123456789":
        return True, Decimal(0), text
    return False, Decimal(text), ""
