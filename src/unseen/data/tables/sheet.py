"""Csv files: read whole, as columns of text, or row by row; and what their cells mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.data.tables.cells import Cells, identity
from unseen.data.tables.dialect import (
    Dialect,
)
from unseen.data.tables.spellings import LARGEST
from unseen.errors import UnseenError, nearest

#: Cells that hold no value, by default; an empty one never does, whatever the option says.
MISSING = ("", "?", "NA", "NaN", ".")
#: How files and data frames spell true and false.
FLAG_WORDS = (("1", "True", "true", "TRUE"), ("0", "False", "false", "FALSE"))


@dataclass(frozen=True)
class Sheet:
    """The cells of a table.

    Attributes:
        name: The file, as errors name it.
        columns: Column -> its cells.
        lines: The line of each row in the file.
        dialect: How the file is written, by the options or as it was detected.
        place: How errors name the place of a row, its line for {}.
        whole: Whether the rows are those of all sites, and not of one site alone.
    """

    name: str
    columns: Mapping[str, Cells]
    lines: Sequence[int]
    dialect: Dialect = field(default_factory=lambda: Dialect(",", ".", "utf-8"))
    place: str = "line {}"
    whole: bool = False

    def column(self, name: str) -> Cells:
        """Return the cells of a column; an error suggests the nearest name for an unknown one."""
        if name not in self.columns:
            raise nearest(f"column of {self.name}", name, self.columns)
        return self.columns[name]

    def at(self, line: int) -> str:
        return self.place.format(line)

    def at_row(self, row: int) -> str:
        return self.at(self.lines[row])

    def number(self, cell: str) -> float | None:
        return self.dialect.number(cell)

    def take(self, rows: Sequence[int] | NDArray[Any]) -> Sheet:
        columns = {name: cells.take(rows) for name, cells in self.columns.items()}
        return replace(self, columns=columns, lines=[self.lines[i] for i in rows])

    def full(self, name: str, role: str) -> Cells:
        """Return the cells of a column in which none may be missing; role: what it is used for."""
        cells = self.column(name)
        if gaps := len(cells) - cells.present:
            raise UnfitCells(
                f"{gaps:,} of {len(cells):,} rows of {self.name} have no value in {name!r}, the "
                f"column of the {role}, the first in {self.at_row(int(cells.missing.argmax()))}.",
                remedy="Remove the rows or fill in the values.",
            )
        return cells

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return the cells of a numeric column, NaN where missing."""
        cells = self.column(name)
        unfit = ~np.isfinite(cells.values)
        if not (unfit | (np.abs(cells.values) > LARGEST)).any():
            return cells.numbers
        row = cells.first_row(unfit | (np.abs(cells.values) > LARGEST))
        line, cell = self.lines[row], str(cells[row])
        if unfit[cells.codes[row]]:
            raise WrongNumber(self, name, line, cell)
        raise UnfitCells(
            f"{self.at(line)} of {self.name} has {cell!r} in the column {name!r}: squares "
            f"of numbers above {LARGEST:g} have no place in a float64.",
            remedy="Write the column in a larger unit, or correct the cell.",
        )


class UnfitCells(UnseenError):
    """What cells hold, and not the options, is why a study does not take a table."""


class WrongNumber(UnfitCells):
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


def joined(sheets: Sequence[Sheet]) -> dict[str, Cells]:
    """Return the columns of the first sheet, with the rows of all."""
    return {
        name: Cells.of([cell for sheet in sheets for cell in sheet.columns[name]])
        for name in sheets[0].columns
    }


def coded(cells: Sequence[str | None]) -> tuple[tuple[str, ...], Tensor]:
    """Return the names of the different values, sorted, and every cell's code [N] (-1: missing).

    See `Cells.levels`.

    Example:
        >>> coded(["10", "3.0", "3", None])
        (('3', '10'), tensor([ 1,  0,  0, -1]))
    """
    names, codes = (cells if isinstance(cells, Cells) else Cells.of(cells)).levels
    return names, torch.from_numpy(codes)
