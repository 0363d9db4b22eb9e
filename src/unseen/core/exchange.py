"""The words of a round, as data: replies, slots, exchanges, methods, states and turns.

A round is one or more exchanges. In each exchange every client turns what it received into named
vectors and a few scalars, and the server turns each stack of replies into what goes out next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from unseen.core.types import Inbox, Memory, Table

if TYPE_CHECKING:
    from torch import nn

    from unseen.core.apply import Apply
    from unseen.core.client import Client
    from unseen.core.rule import Combine
    from unseen.core.vector import Model


@dataclass(frozen=True)
class Turn:
    """Which exchange of which round this is, and for whom; the source of all randomness.

    order: the exchange's position in its round. roster: all clients of the study, sorted. Neither
    enters a key.
    """

    seed: int
    round: int
    rounds: int
    exchange: str = ""
    client: str = ""
    order: int = 0
    roster: tuple[str, ...] = ()

    @property
    def index(self) -> int:
        """This client's row of what rules collect; −1 for who is not of the roster."""
        return self.roster.index(self.client) if self.client in self.roster else -1

    def generator(self, purpose: str) -> torch.Generator:
        """A fresh generator keyed by names: purposes, clients and rounds never share a stream."""
        key = "/".join(map(str, (self.seed, purpose, self.round, self.exchange, self.client)))
        return keyed(key)


def keyed(key: str) -> torch.Generator:
    """A CPU generator whose stream depends on the text `key` alone."""
    digest = hashlib.sha256(key.encode()).digest()
    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return generator


@dataclass(frozen=True)
class Reply:
    """All that leaves a client in one exchange: rows by slot, and scalars (a number or [m]).

    fault: why there is nothing, put there by a backend for a client that did not answer.
    """

    rows: Mapping[str, Tensor] = field(default_factory=dict)
    scalars: Mapping[str, float | Tensor] = field(default_factory=dict)
    fault: str = ""


class Local(Protocol):
    """What a client does in one exchange: (model, inbox, client, memory, turn) -> (reply, memory).

    The reply has a row for every slot of the exchange. What was trained is named as it is bound,
    `{"model": model.vector, "buffers": model.buffers}`, and not copied: the caller takes the
    difference from what was received in place, after the outermost local, where the slot asks for
    it. Every other row goes as it is.
    """

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]: ...


@dataclass(frozen=True)
class Slot:
    """What becomes of one named stack of replies.

    combine: the server rule; like: share the weights of another slot of this exchange instead.
    apply: how the result enters the inbox (default: in the old one's place). sends: each client's
    value, or its difference from what it received. to: the inbox entry that is read and written
    (default: the slot's own name); what several slots made for one entry is added up, and the
    first of them applies it. start: makes that entry before round 0 (default: the model's vector
    or buffers); for a `Collect` rule it makes one client's row.
    """

    combine: Combine | None = None
    like: str | None = None
    apply: Apply | None = None
    sends: Literal["difference", "value"] = "difference"
    to: str | None = None
    start: Callable[[Model], Tensor] | None = None

    def row_shape(self, entry: Tensor) -> torch.Size:
        """The shape of one reply's row, for the inbox entry that this slot writes."""
        return self.combine.row_shape(entry) if self.combine is not None else entry.shape


@dataclass(frozen=True)
class Exchange:
    """One message to the clients and their replies.

    slots: none makes it an evaluation. rounds: (first, every) — it runs in rounds first,
    first + every, ..., and an evaluation also in the last one; every = 0 means once.
    who: the round's sample, all of the roster, or these participants by name.
    """

    name: str
    local: Local
    slots: Mapping[str, Slot] = field(default_factory=dict)
    rounds: tuple[int, int] = (0, 1)
    who: Literal["sampled", "all"] | tuple[str, ...] = "sampled"


@dataclass(frozen=True)
class Reference:
    """Where a method comes from: one line for people, a BibTeX entry for their papers."""

    text: str
    bibtex: str


@dataclass(frozen=True)
class Method:
    """A list of exchanges and how its model predicts.

    predict: (model, inbox, x) -> outputs [N, C]. gather: turns the source clients into the
    training roster (pooled training does). adapt: changes the network before training. shares:
    what leaves a client beyond the model. asks: what there must be, "images", "classes",
    "batchnorm" or "convolutions" (a network with such layers).
    """

    name: str
    exchanges: tuple[Exchange, ...]
    references: tuple[Reference, ...]
    predict: Callable[[Model, Inbox, Tensor], Tensor]
    gather: Callable[[Mapping[str, Client]], Mapping[str, Client]] | None = None
    adapt: Callable[[nn.Module], nn.Module] | None = None
    shares: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()


@dataclass(frozen=True)
class State:
    """All that the server carries from one round to the next.

    rules: "exchange/slot" -> {"combine": ..., "apply": ...}, plain dicts of tensors and numbers.
    """

    round: int
    inbox: Inbox
    rules: Mapping[str, Mapping[str, Any]]
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What one exchange left for the records: who took part, their scalars, the rule's weights,
    and what a `Watch` saw."""

    turn: Turn
    names: tuple[str, ...]
    table: Table
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, Any] = field(default_factory=dict)
