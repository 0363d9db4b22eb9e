"""A column of new rows as a file has it, whose kind is known from training."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, overload

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from unseen.data.tables.cells import Cells, numeric, trimmed
from unseen.data.tables.parquet_rows import cells_of_any


@dataclass(frozen=True, eq=False)
class Texts(Sequence[str]):
    """The cells of a column, "" where one is missing.

    Attributes:
        arrow: The values [N], an array of texts or of what a Parquet file holds.
    """

    arrow: Any

    @classmethod
    def of(cls, cells: Sequence[str | None]) -> Self:
        """Return the cells of a list; half of a character, which JSON may hold, becomes `?`."""
        try:
            return cls(pyarrow.array(cells, pyarrow.string()))
        except UnicodeEncodeError:
            plain = [cell and cell.encode("utf-8", "replace").decode() for cell in cells]
            return cls(pyarrow.array(plain, pyarrow.string()))

    @cached_property
    def cells(self) -> Cells:
        """The same cells, every different text once."""
        if pyarrow.types.is_string(self.arrow.type):
            return trimmed(self.arrow)
        return cells_of_any(self.arrow)

    def __len__(self) -> int:
        return len(self.arrow)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [cell or "" for cell in self.cells[place]]
        return self.cells[place] or ""

    def __iter__(self) -> Iterator[str]:
        return (cell or "" for cell in self.cells)

    def floats(self, missing: Collection[str], decimal: str | None) -> NDArray[np.float64] | None:
        """Return the number of each cell [N], NaN where missing; None if a cell is a word.

        Args:
            missing: Cells that hold no value besides empty ones.
            decimal: The decimal sign.

        Example:
            >>> texts = Texts(pyarrow.array(["1.5", "NA", "", "-9.0"]))
            >>> texts.floats(["NA", "-9"], ".").tolist(), texts.floats([], ".")
            ([1.5, nan, nan, nan], None)
        """
        compute, values = pyarrow.compute, self.arrow
        kinds = pyarrow.types
        if kinds.is_string(values.type):
            words = pyarrow.array(["", *missing], pyarrow.string())
            values = compute.if_else(compute.is_in(values, words), None, values)
            if decimal == "," and compute.any(compute.match_substring(values, ".")).as_py():
                return None
            values = compute.replace_substring(values, ",", ".") if decimal == "," else values
            try:
                values = compute.cast(values, pyarrow.float64())
            except pyarrow.ArrowInvalid:
                return None
            if not compute.all(compute.is_finite(values), min_count=0).as_py():
                return None
        elif not (kinds.is_float64(values.type) or kinds.is_integer(values.type)):
            return None
        numbers = values.to_numpy(zero_copy_only=False).astype(np.float64)
        if np.isinf(numbers).any():
            return None
        blanks = numeric(missing)
        return np.where(np.isin(numbers, [*blanks]), np.nan, numbers) if blanks else numbers
