"""Columns of words in a data frame, as the codes of categories that were learned from another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unseen.data.tables.cells import Cells, identity
from unseen.data.tables.frames import NAME, arrow_of, categorical_of, is_frame
from unseen.data.tables.parquet_rows import cells_of_column
from unseen.data.tables.sheet import MISSING, codes_of

#: The category of a word that no row had in training.
UNSEEN = "(unseen)"
Levels = Mapping[str, tuple[str, ...]]


def levels_of(frame: Any) -> dict[str, tuple[str, ...]]:
    """Return the categories of each column of words, and `UNSEEN`; none of other data.

    Example:
        >>> import pyarrow
        >>> levels_of(pyarrow.table({"age": [61, 40], "sex": ["m", "f"]}))
        {'sex': ('f', 'm', '(unseen)')}
    """
    if not is_frame(frame):
        return {}
    table = arrow_of(frame)
    names = categorical_of(table, set(), {})
    return {name: (*_cells(table, name).levels[0], UNSEEN) for name in names}


def coded_frame(frame: Any, levels: Levels) -> Any:
    """Return a data frame of pandas or polars with codes in place of words, NaN where missing."""
    if not levels or not is_frame(frame):
        return frame
    table = arrow_of(frame)
    lacking = [name for name in levels if name not in table.column_names]
    if lacking:
        return frame  # scikit-learn says which
    codes = {name: _codes(_cells(table, name), own) for name, own in levels.items()}
    if hasattr(frame, "assign"):
        return frame.assign(**codes)
    series = type(frame[frame.columns[0]])
    return frame.with_columns([series(name, own) for name, own in codes.items()])


def _cells(table: Any, name: str) -> Cells:
    return cells_of_column(NAME, name, table.column(name)).without(MISSING)


def _codes(cells: Cells, names: tuple[str, ...]) -> NDArray[np.float64]:
    places = codes_of(names[:-1])
    codes: list[float] = [places.get(identity(text), len(names) - 1) for text in cells.texts]
    every: NDArray[np.float64] = np.array([*codes, np.nan], dtype=np.float64)
    return every[cells.codes]
