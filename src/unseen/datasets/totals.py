"""The sums that clients exchange before training: of a table's columns, and of its labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from unseen.core.client import Client
from unseen.core.exchange import Reply
from unseen.core.metrics import Scale
from unseen.core.turn import Turn
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model
from unseen.datasets import encoding
from unseen.datasets.dataset import DataSet
from unseen.datasets.encoding import FLAT, Schema


@dataclass(frozen=True)
class Totals:
    """`Schema.sums` of the training rows of a table and of labels that are to be standardised.

    Attributes:
        schema: Of the table, None for other data.
        label: What the labels are called, None where they are taken as they are.

    Note:
        Labels count as one more numeric column, so that the same rules hold for them as for
        columns: one sum, one exchange, or one public range.
    """

    schema: Schema | None
    label: str | None

    @classmethod
    def of(cls, data: DataSet) -> Self | None:
        """Return what a data set needs before training; None if it needs nothing."""
        label = data.standardise if data.classes is None else None
        return cls(data.schema, label) if data.schema is not None or label is not None else None

    @cached_property
    def joint(self) -> Schema:
        """The table's columns with the labels as the last."""
        table = self.schema or Schema(())
        labels = () if self.label is None else (self.label,)
        return Schema((*table.columns, *labels), table.categories, table.flags)

    @property
    def size(self) -> int:
        return sum(self.joint.parts)

    @property
    def columns(self) -> tuple[str, ...]:
        """The numeric columns, with the labels as the last."""
        return tuple(self.joint.columns[j] for j in self.joint.numeric)

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """Reply with the statistics of the client's training rows; nothing else is touched."""
        split = client.split("train")
        columns = [] if self.schema is None else [split.x[:]]
        if self.label is not None:
            columns = [x.double() for x in (*columns, split.y[:, None])]
        return Reply(rows={"statistics": self.joint.sums(torch.cat(columns, dim=1))}), memory

    def of_ranges(self, ranges: Mapping[str, tuple[float, float]]) -> Tensor:
        """Return statistics that follow from public ranges alone, see `encoding.of_ranges`."""
        return encoding.of_ranges(self.joint, ranges)

    def of_table(self, statistics: Tensor) -> Tensor | None:
        """Return the table's part of the statistics; None without a table."""
        if self.schema is None or self.label is None:
            return statistics if self.schema is not None else None
        numeric, codes = self._split(statistics)
        return torch.cat([numeric[:, :-1].flatten(), codes])

    def scale(self, statistics: Tensor) -> Scale | None:
        """Return what the labels are standardised by; None where they are taken as they are.

        Returns:
            The mean, and the deviation of the population, 1 where all labels are equal.
        """
        if self.label is None:
            return None
        known, _, total, squares = self._split(statistics)[0][:, -1].tolist()
        mean = total / known
        variance = squares / known - mean * mean
        return Scale(mean, 1.0 if variance <= FLAT * squares / known else variance**0.5)

    def _split(self, statistics: Tensor) -> tuple[Tensor, Tensor]:
        """The numeric part [4, M + 1], the labels last, and the counts of codes."""
        size = self.joint.parts[0]
        return statistics[:size].view(4, -1), statistics[size:]
