"""What servers' sides and their rows have in common, behind every channel that seals."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from unseen.core.exchange import Exchange, Method, Turn
from unseen.core.rule import RuleState
from unseen.core.types import Table
from unseen.errors import UnseenError
from unseen.privacy.kinds import Ask, Sealed
from unseen.privacy.wire import Parts, expect, nonce, unpack


class Opening(ABC):
    """A server's side up to the rows: it numbers each exchange, and opens what is of it alone."""

    def __init__(self) -> None:
        #: Which exchange messages must be of; before the first, none is.
        self.label: dict[str, Any] = {"round": -1, "exchange": "", "nonce": ""}

    def method(self, method: Method) -> Method:
        """The method as it is."""
        return method

    def hello(self, exchange: Exchange, turn: Turn, names: Sequence[str]) -> str:
        """A fresh number, which every message of this exchange must bear."""
        self.label = {"round": turn.round, "exchange": exchange.name, "nonce": nonce()}
        return json.dumps({"nonce": self.label["nonce"]})

    def opened(self, name: str, messages: Mapping[str, bytes]) -> dict[str, Sealed]:
        """The messages as rows, each of this exchange and of this client."""
        found = {}
        for slot, message in messages.items():
            what = f"the row {slot!r} of client {name!r}"
            head, parts = unpack(message, what)
            expect(head, what, kind="row", client=name, slot=slot, **self.label)
            found[slot] = self.sealed(name, head, parts, what)
        return found

    @abstractmethod
    def sealed(self, name: str, head: dict[str, Any], parts: Parts, what: str) -> Sealed:
        """The row in a message; what: how errors call it. Raises BadReply."""


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
