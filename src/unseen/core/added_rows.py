"""Rows that are added up as the clients answer, so that memory does not grow with clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, cast

import torch
from torch import Tensor

from unseen.core.exchange import Exchange, Reply
from unseen.core.parts import able
from unseen.core.replies import find_fault, row_shapes
from unseen.core.row_codes import width
from unseen.core.rows import Columns, Draws, Mixing, RuleState, WithState
from unseen.core.types import Inbox, Table
from unseen.errors import BadReply, UnseenError


@dataclass
class Total:
    """The sum of a slot's rows so far [P], and of how many clients it is."""

    vector: Tensor
    count: int = 0

    def add(self, row: Tensor) -> "Added":
        """Add a row, and return what stands for it in the reply."""
        self.vector.add_(row)
        self.count += 1
        return Added(row.shape, self, width(row))


@dataclass(frozen=True)
class Added:
    """What stands for a row [P] that is in a total already.

    Attributes:
        shape: The row's shape.
        total: The total that it was added to.
        bytes: The row's size on a wire.
    """

    shape: torch.Size
    total: Total
    bytes: int


def totals(exchange: Exchange, inbox: Inbox) -> dict[str, Total]:
    """Return slot -> an empty total, of an exchange whose rows any order of adding sums alike."""
    slots = exchange.row_slots
    plain = all(s.combine is not None and s.combine.adds and s.view is None for s in slots.values())
    if not (slots and plain and able(exchange.local, "adds_exactly")):
        return {}
    shapes = row_shapes(exchange, inbox)
    return {name: Total(torch.zeros(shape, dtype=torch.float64)) for name, shape in shapes.items()}


def add(reply: Reply, to: Mapping[str, Total], exchange: Exchange, inbox: Inbox) -> Reply:
    """Return a reply whose rows are in the totals, unless the round has to refuse it."""
    if not to or find_fault(reply, row_shapes(exchange, inbox)):
        return reply
    rows = {name: total.add(reply.rows[name]) for name, total in to.items()}
    return replace(reply, rows=cast("Mapping[str, Tensor]", rows))


class AddedRows:
    """Rows of which only the sum is left.

    Args:
        rows: What stands for each of them.
    """

    reference: Tensor | None = None

    def __init__(self, rows: Sequence[Added]) -> None:
        self.rows, self.total = rows, rows[0].total
        if self.total.count != len(rows):
            raise BadReply(
                f"a sum over {self.total.count} clients was asked for {len(rows)} of them: their "
                "scalars differ in name or shape.",
                remedy="Let every client report the same scalars.",
            )

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.rows[0].shape[0]

    def linear(self, weights: Tensor, blocks: Columns = None) -> Tensor:
        if not bool((weights == 1).all()):
            self._refuse()
        return self.total.vector

    def take(self, order: Tensor) -> "AddedRows":
        return AddedRows([self.rows[i] for i in order.tolist()])

    def gram(self, blocks: Columns = None) -> Tensor:
        self._refuse()

    def dense(self) -> Tensor:
        self._refuse()

    def weigh(
        self, rule: Mixing, blocks: Columns, table: Table, state: RuleState, generator: Draws
    ) -> WithState:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnseenError(
            "these rows were added up as the clients answered: only their sum is left."
        )
