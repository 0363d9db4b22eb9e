"""What rows behind every channel have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from unseen.combine.base import RuleState, Table
from unseen.errors import UnseenError
from unseen.privacy.channel import Ask, Sealed


@dataclass
class SealedRows:
    """Rows of one slot that the server cannot read.

    server: the channel's side that opened them; ask: how sites are asked about them. unread,
    unmultiplied: why there are no rows and no inner products for a rule.
    """

    unread: ClassVar[str]
    unmultiplied: ClassVar[str]
    server: Any
    slot: str
    sealed: tuple[Sealed, ...]
    ask: Ask
    reference: Tensor | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def shape(self) -> tuple[int, int]:
        """[K, P]."""
        return len(self.sealed), self.sealed[0].shape.numel()

    def take(self, order: Tensor) -> Self:
        """The same rows in another order."""
        return replace(self, sealed=tuple(self.sealed[i] for i in order.tolist()))

    def dense(self) -> Tensor:
        """Refused."""
        raise UnseenError(self.unread)

    def gram(self, blocks: Sequence[slice] | None = None) -> Tensor:
        """Refused."""
        raise UnseenError(self.unmultiplied)

    def weigh(
        self,
        rule: Any,
        blocks: Sequence[slice] | None,
        table: Table,
        state: RuleState,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, RuleState]:
        """Refused, where the sites cannot do it either."""
        raise UnseenError(self.unmultiplied)
