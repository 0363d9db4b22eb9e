"""A csv file as columns of text, and what its cells mean."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

import torch
from torch import Tensor

from unseen.errors import UnseenError, nearest

#: Cells that stand for no value, unless told otherwise.
MISSING = ("", "?", "NA", "NaN")


@dataclass(frozen=True)
class Sheet:
    """Cells as text, None where missing: columns by name, and the line of each row in its file."""

    name: str
    columns: dict[str, list[str | None]]
    lines: list[int]

    def column(self, name: str) -> list[str | None]:
        """The cells of a column; an unknown name is answered with the nearest right one."""
        if name not in self.columns:
            raise nearest(f"column of {self.name}", name, self.columns)
        return self.columns[name]

    def full(self, name: str, role: str) -> list[str]:
        """The cells of a column in which none may be missing."""
        cells = self.column(name)
        for cell, line in zip(cells, self.lines, strict=True):
            if cell is None:
                raise UnseenError(
                    f"line {line} of {self.name} has no value in {name!r}, the column of the "
                    f"{role}: remove the row or fill in the value."
                )
        return [cell for cell in cells if cell is not None]

    def numbers(self, name: str) -> list[float]:
        """The cells of a numeric column, NaN where missing."""
        values = [number(cell) if cell is not None else math.nan for cell in self.column(name)]
        for value, cell, line in zip(values, self.columns[name], self.lines, strict=True):
            if cell is not None and (value is None or not math.isfinite(value)):
                raise UnseenError(
                    f"line {line} of {self.name} has {cell!r} in the numeric column {name!r}: "
                    "correct it, add it to the option 'missing', or name the column in the option "
                    "'categorical'."
                )
        return [math.nan if value is None else value for value in values]


def read(path: Path, missing: Sequence[str] = MISSING, header: Sequence[str] = ()) -> Sheet:
    """The sheet of a csv file, unpacked if its name ends in .gz; `header` for a file without."""
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise UnseenError(f"{path} is no csv file in UTF-8: {error}.") from error
    names = list(header) or (rows.pop(0)[1] if rows else [])
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not rows:
        fault = f"more than one column called {', '.join(twice)}" if twice else "no rows"
        raise UnseenError(f"{path} has {fault}.")
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
    return Sheet(path.name, dict(zip(names, cells, strict=True)), [line for line, _ in rows])


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


def number(text: str) -> float | None:
    """The number that a cell spells, or None."""
    try:
        return float(text)
    except ValueError:
        return None


def identity(text: str) -> tuple[bool, Decimal, str]:
    """Equal for cells of one value (3 and 3.0), in the order of values. Identifiers may be longer
    than a float is precise, hence the exact number."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        return True, Decimal(0), text
    return (False, value, "") if value.is_finite() else (True, Decimal(0), text)
