"""What the rows of every channel that seals have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

from unseen.core.rows import Mixing, RuleState
from unseen.core.types import Table
from unseen.errors import UnseenError
from unseen.privacy.kinds import CPU, Ask, Sealed, ServerSide

Side = TypeVar("Side", bound=ServerSide)


@dataclass
class SealedRows(Generic[Side]):
    """Rows of one slot that the server cannot read.

    Attributes:
        unread, unmultiplied: Why there are no rows, and no inner products, for a rule.
        server: The channel's side that opened them.
        ask: How sites are asked about them.
        device: Where results lie.
    """

    unread: ClassVar[str]
    unmultiplied: ClassVar[str]
    server: Side
    slot: str
    sealed: tuple[Sealed, ...]
    ask: Ask
    device: torch.device = CPU
    reference: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """[K, P]."""
        return len(self.sealed), self.sealed[0].shape.numel()

    def take(self, order: Tensor) -> Self:
        """Return the same rows in another order."""
        return replace(self, sealed=tuple(self.sealed[i] for i in order.tolist()))

    def dense(self) -> Tensor:
        """Refuse."""
        raise UnseenError(self.unread)

    def gram(self, blocks: Sequence[slice] | None = None) -> Tensor:
        """Refuse."""
        raise UnseenError(self.unmultiplied)

    def weigh(
        self,
        rule: Mixing,
        blocks: Sequence[slice] | None,
        table: Table,
        state: RuleState,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, RuleState]:
        """Refuse, where the sites cannot do it either."""
        raise UnseenError(self.unmultiplied)
