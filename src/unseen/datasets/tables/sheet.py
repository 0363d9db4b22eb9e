"""Csv files: read whole, as columns of text, or row by row; and what their cells mean."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.datasets.tables.dialect import (
    BROKEN,
    Dialect,
    decimal_of,
    decode,
    number,
    open_binary,
    open_text,
    says_separator,
    separator_of,
)
from unseen.datasets.tables.spellings import LARGEST
from unseen.errors import UnseenError, nearest

#: Cells that hold no value, by default; an empty one never does, whatever the option says.
MISSING = ("", "?", "NA", "NaN", ".")
#: How files and data frames spell true and false.
FLAG_WORDS = (("1", "True", "true", "TRUE"), ("0", "False", "false", "FALSE"))


@dataclass(frozen=True)
class Sheet:
    """The cells of a csv file as text.

    Attributes:
        name: The file, as errors name it.
        columns: Column -> its cells, None where missing.
        lines: The line of each row in the file.
        dialect: How the file is written, by the options or as it was detected.
        place: How errors name the place of a row, its line for {}.
    """

    name: str
    columns: dict[str, list[str | None]]
    lines: list[int]
    dialect: Dialect = field(default_factory=lambda: Dialect(",", ".", "utf-8"))
    place: str = "line {}"

    def column(self, name: str) -> list[str | None]:
        """Return the cells of a column; an error suggests the nearest name for an unknown one."""
        if name not in self.columns:
            raise nearest(f"column of {self.name}", name, self.columns)
        return self.columns[name]

    def at(self, line: int) -> str:
        return self.place.format(line)

    def present(self, name: str) -> list[str]:
        return [cell for cell in self.column(name) if cell is not None]

    def plain(self, name: str) -> list[str | None]:
        """Return the cells of a column, its numbers with a decimal point whatever the file has."""
        return [cell if cell is None else self.dialect.plain(cell) for cell in self.column(name)]

    def number(self, cell: str) -> float | None:
        return self.dialect.number(cell)

    def take(self, rows: Sequence[int]) -> Sheet:
        columns = {name: [cells[i] for i in rows] for name, cells in self.columns.items()}
        return replace(self, columns=columns, lines=[self.lines[i] for i in rows])

    def full(self, name: str, role: str) -> list[str]:
        """Return the cells of a column in which none may be missing; role: what it is used for."""
        cells = self.plain(name)
        if gaps := [line for cell, line in zip(cells, self.lines, strict=True) if cell is None]:
            raise UnseenError(
                f"{len(gaps):,} of {len(cells):,} rows of {self.name} have no value in {name!r}, "
                f"the column of the {role}, the first in {self.at(gaps[0])}.",
                remedy="Remove the rows or fill in the values.",
            )
        return [cell for cell in cells if cell is not None]

    def numbers(self, name: str) -> list[float]:
        """Return the cells of a numeric column, NaN where missing."""
        values = []
        for cell, line in zip(self.column(name), self.lines, strict=True):
            value = math.nan if cell is None else self.number(cell)
            if cell is not None and (value is None or not math.isfinite(value)):
                raise WrongNumber(self, name, line, cell)
            if value is not None and abs(value) > LARGEST:
                raise UnseenError(
                    f"{self.at(line)} of {self.name} has {cell!r} in the column {name!r}: squares "
                    f"of numbers above {LARGEST:g} have no place in a float64.",
                    remedy="Write the column in a larger unit, or correct the cell.",
                )
            values.append(math.nan if value is None else value)
        return values


class WrongNumber(UnseenError):
    """A cell of a numeric column that is not a finite number.

    Attributes:
        line: Its line in the file.
        cell: Its text.
    """

    def __init__(self, sheet: Sheet, column: str, line: int, cell: str) -> None:
        comma = " of decimal commas" if sheet.dialect.decimal == "," else ""
        super().__init__(
            f"{sheet.at(line)} of {sheet.name} has {cell!r} in the numeric column "
            f"{column!r}{comma}.",
            remedy="Correct it, or add it to 'missing', or the column to 'categorical'.",
        )
        self.line, self.cell = line, cell


def names_of(value: Sequence[str] | float) -> tuple[str, ...]:
    """Return several names; a lone text or number is one name, not a list of letters."""
    return (str(value),) if isinstance(value, str | int | float) else tuple(map(str, value))


def with_usual(missing: Sequence[str] | float) -> tuple[str, ...]:
    """Return the usual words for a missing value, and further ones behind them."""
    return tuple(dict.fromkeys([*MISSING, *names_of(missing)]))


def blank(missing: Sequence[str] | float) -> Callable[[str], bool]:
    """Return what says whether a cell holds no value: empty, one of these, or equal as a number.

    Example:
        >>> [blank([-9, "?"])(cell) for cell in ("-9", "-9.0", "?", "9", "")]
        [True, True, True, False, True]
    """
    names = {"", *names_of(missing)}
    numbers = {value for name in names if (value := number(name)) is not None} - {math.nan}
    if not any(map(math.isfinite, numbers)):
        return names.__contains__
    return lambda cell: cell in names or number(cell) in numbers


def flag_words(names: Sequence[str]) -> dict[str, int]:
    """Return the code of every spelling of true and false, where the names are of these alone.

    Example:
        >>> flag_words(["False", "True"])["1"], flag_words(["1", "2"])
        (1, {})
    """
    places = [
        next((words for words in FLAG_WORDS if identity(name) in map(identity, words)), ())
        for name in names
    ]
    if not all(places) or len({*places}) < len(names):
        return {}
    return {word: code for code, words in enumerate(places) for word in words}


def codes_of(names: Sequence[str]) -> dict[Any, int]:
    """Return the code of what a cell of each name is equal to, by its `identity`."""
    words = {identity(word): code for word, code in flag_words(names).items()}
    return words | {identity(name): code for code, name in enumerate(names)}


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
    """Read a csv file, unpacked if its name ends in .gz.

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
    try:
        with open_binary(path) as file:
            content = file.read()
        text, encoding = decode(content, dialect.encoding, path)
        separator = dialect.separator or ("," if header else separator_of(text, needs, path))
        rows = [row for row in cells_by_line(io.StringIO(text, newline=""), separator) if row[1]]
    except (*BROKEN, csv.Error) as error:
        raise UnseenError(f"{path} is not a csv file: {error}.") from error
    names = list(header) or (rows.pop(0)[1] if rows else [])
    _check_header(names, path)
    if not rows:
        raise UnseenError(f"{path} has no rows.")
    for line, row in rows:
        if len(row) != len(names):
            raise _wrong_length(path, line, row, names)
    empty = blank(with_usual(missing))
    cells = [
        [None if empty(cell) else cell for cell in column]
        for column in zip(*(row for _, row in rows), strict=True)
    ]
    present = ({cell for cell in column if cell is not None} for column in cells)
    dialect = Dialect(separator, dialect.decimal or decimal_of(present, separator), encoding)
    columns = dict(zip(names, cells, strict=True))
    return Sheet(path.name, columns, [line for line, _ in rows], dialect)


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


def coded(cells: Sequence[str | None]) -> tuple[tuple[str, ...], Tensor]:
    """Return the names of the distinct values, sorted, and every cell's code [N] (-1: missing).

    Note:
        3, 3.0 and 03 are one value, named by its shortest spelling: sites write the same code in
        different ways. Numbers come first, in their order, then words, in theirs; so a word at one
        site changes nothing about the numbers of another.

    Example:
        >>> coded(["10", "3.0", "3", None])
        (('3', '10'), tensor([ 1,  0,  0, -1]))
    """
    texts = sorted({cell for cell in cells if cell is not None}, key=lambda t: (len(t), t))
    spelling: dict[tuple[bool, Decimal, str], str] = {}
    for text in texts:
        spelling.setdefault(identity(text), text)
    values = sorted(spelling)
    code = {value: i for i, value in enumerate(values)}
    codes: dict[str | None, int] = {text: code[identity(text)] for text in texts}
    names = tuple(spelling[value] for value in values)
    return names, torch.tensor([codes.get(cell, -1) for cell in cells], dtype=torch.int64)


def identity(text: str) -> tuple[bool, Decimal, str]:
    """Return a key that cells of one value (3 and 3.0) share, in the order of the values.

    Note:
        The number is exact, since identifiers may have more digits than a float.
    """
    value = number(text)
    if value is None or text.lstrip("+-")[0] not in ".0123456789":
        return True, Decimal(0), text
    return False, Decimal(text), ""
