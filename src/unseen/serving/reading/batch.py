"""Images or rows that were read together, and what is known of each."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.data.tables.column_texts import Texts


@dataclass(frozen=True)
class Item:
    """One image or row: where it is from, and either its input or why there is none.

    Attributes:
        source: The file.
        line: A row's line in the file; of a Parquet file its place, from 1.
        x: The input.
        error: Why there is no input.
        parts: Folders and name of an image below the path that was asked for.
        cells: A row's cells, by column.
        unseen: Categories that no training site had, where they are accepted.
        size: Width and height of an image's file.
        unusual: What is far from training, and how far, by the name of the column or of the image's
            statistic.
    """

    source: str
    line: int | None = None
    x: Tensor | None = None
    error: str | None = None
    parts: tuple[str, ...] = ()
    cells: Mapping[str, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    unusual: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        at = f", line {self.line}" if self.line is not None else ""
        return f"{self.source}{at}: {self.error}"


@dataclass(frozen=True, eq=False)
class RowCells(Mapping[str, str]):
    """The cells of one row, by column; "" where one is missing."""

    columns: Mapping[str, Texts]
    row: int

    def __getitem__(self, name: str) -> str:
        return self.columns[name][self.row]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True, eq=False)
class Batch(Sequence[Item]):
    """Images or rows that were read together; an `Item` is made of one when it is asked for.

    Attributes:
        sources: The file of each [N].
        lines: The line of each [N].
        x: The inputs of those without an error, in their order [M, ...].
        errors: Place -> why there is no input.
        columns: Of rows of one file: column -> the cells of all.
        bare: Rows of a file that have no cells.
        unseen: Place -> categories that no training site had.
        unusual: Place -> what is far from training.
        items: The items, if they came one by one.
    """

    sources: Sequence[str]
    lines: Sequence[int | None]
    x: Tensor | None = None
    errors: Mapping[int, str] = field(default_factory=dict)
    columns: Mapping[str, Texts] = field(default_factory=dict)
    bare: Collection[int] = ()
    unseen: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    unusual: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    items: Sequence[Item] = ()

    @classmethod
    def of(cls, items: Sequence[Item]) -> Self:
        """Return items that came one by one as a batch."""
        inputs = [item.x for item in items if item.x is not None]
        return cls(
            [item.source for item in items],
            [item.line for item in items],
            torch.stack(inputs) if inputs else None,
            {i: item.error or "" for i, item in enumerate(items) if item.x is None},
            unseen={i: item.unseen for i, item in enumerate(items) if item.unseen},
            unusual={i: item.unusual for i, item in enumerate(items) if item.unusual},
            items=items,
        )

    @cached_property
    def usable(self) -> NDArray[np.int64]:
        """The places of those that have an input [M]."""
        return np.delete(np.arange(len(self)), [*self.errors])

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The row of `x` of each place [N], -1 where it has none."""
        rows = np.full(len(self), -1)
        rows[self.usable] = np.arange(len(self.usable))
        return rows

    @property
    def faults(self) -> list[Item]:
        """What has no input, in its order."""
        return [self[place] for place in sorted(self.errors)]

    @property
    def inputs(self) -> Tensor | None:
        """What the model takes of `x`: bytes as numbers in [0, 1]."""
        bytes_ = self.x is not None and self.x.dtype == torch.uint8
        return self.x.float().div_(255) if self.x is not None and bytes_ else self.x

    def refused(self, errors: Mapping[int, str]) -> Self:
        """Return the batch without the inputs of some places, for these reasons."""
        if not errors or self.x is None:
            return self
        stay = ~np.isin(self.usable, [*errors])
        x = self.x[torch.from_numpy(stay)] if stay.any() else None
        return replace(self, x=x, errors={**self.errors, **errors})

    def cells(self, place: int) -> Mapping[str, str]:
        """Return a row's cells by column; none of images, and of rows that are at fault."""
        if self.items:
            return self.items[place].cells
        return {} if place in self.bare else RowCells(self.columns, place)

    def texts(self, column: str) -> list[str | None]:
        """Return the cells of a column, None of those that have no cells."""
        if column not in self.columns:
            return [self.cells(place).get(column) for place in range(len(self))]
        cells: list[str | None] = [*self.columns[column]]
        for place in self.bare:
            cells[place] = None
        return cells

    def __len__(self) -> int:
        return len(self.sources)

    @overload
    def __getitem__(self, place: int) -> Item: ...
    @overload
    def __getitem__(self, place: slice) -> list[Item]: ...
    def __getitem__(self, place: int | slice) -> Item | list[Item]:
        if isinstance(place, slice):
            return [self[i] for i in range(len(self))[place]]
        row = int(self.rows[place])
        x = self.x[row] if self.x is not None and row >= 0 else None
        error, unusual = self.errors.get(place), self.unusual.get(place, {})
        if self.items:
            own = self.unseen.get(place, ())
            return replace(self.items[place], x=x, error=error, unseen=own, unusual=unusual)
        return Item(
            self.sources[place], self.lines[place], x, error, cells=self.cells(place),
            unseen=self.unseen.get(place, ()), unusual=unusual,
        )  # fmt: skip


def stacked(items: Sequence[Item]) -> Tensor | None:
    """Return the inputs of those items that have one, as one batch; bytes as numbers in [0, 1]."""
    return (items if isinstance(items, Batch) else Batch.of(items)).inputs
