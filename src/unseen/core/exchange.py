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

    Attributes:
        seed: The job's seed.
        round: The round, counted from 0.
        rounds: The number of rounds in all.
        exchange: The exchange's name.
        client: The client's name; empty at the server.
        order: The exchange's position in its round. It does not enter a key.
        roster: The names of all clients of the study, sorted. They do not enter a key.
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
        """This client's row in entries gathered by `Collect`; −1 if it is not on the roster."""
        return self.roster.index(self.client) if self.client in self.roster else -1

    def generator(self, purpose: str) -> torch.Generator:
        """Return a fresh generator keyed by names: no purpose, client or round shares a stream."""
        key = "/".join(map(str, (self.seed, purpose, self.round, self.exchange, self.client)))
        return keyed(key)


def keyed(key: str) -> torch.Generator:
    """Return a CPU generator whose stream depends on the text `key` alone."""
    digest = hashlib.sha256(key.encode()).digest()
    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return generator


@dataclass(frozen=True)
class Reply:
    """All that leaves a client in one exchange.

    Attributes:
        rows: Slot -> row [P].
        scalars: Name -> a number, or [m].
        fault: Why there is nothing; a backend sets it for a client that did not answer.
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

    Attributes:
        combine: The server rule.
        like: The slot of this exchange whose weights are used, in the place of a rule.
        apply: How the result enters the inbox; None: it replaces the entry.
        sends: Whether clients send a value, or its difference from what they received.
        to: The inbox entry that is read and written; None: the slot's own name. What several slots
            make for one entry is added up, and the first of them applies it.
        start: Makes that entry before round 0; None: the model's vector or buffers. For a `Collect`
            rule it makes one client's row.
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

    Attributes:
        name: Its name, which keys its randomness.
        local: What each client does.
        slots: What becomes of the rows; without slots it is an evaluation.
        rounds: (first, every): it runs in rounds first, first + every, ..., and an evaluation also
            in the last one; every = 0 means once.
        who: The round's sample, the whole roster, or participants by name.
    """

    name: str
    local: Local
    slots: Mapping[str, Slot] = field(default_factory=dict)
    rounds: tuple[int, int] = (0, 1)
    who: Literal["sampled", "all"] | tuple[str, ...] = "sampled"


@dataclass(frozen=True)
class Reference:
    """Where a method comes from: one line for readers, a BibTeX entry for their papers."""

    text: str
    bibtex: str


@dataclass(frozen=True)
class Method:
    """A list of exchanges, and how its model predicts.

    Attributes:
        name: Its expression, such as `fedprox(mu=0.1)+ga`.
        exchanges: The exchanges of a round, in order.
        references: Where it comes from.
        predict: (model, inbox, x) -> outputs [N, C].
        gather: Turns the source clients into the training roster, as pooled training does.
        adapt: Changes the network before training.
        shares: What leaves a client beyond the model, in words.
        asks: What data and network must be: "images", "classes", "batchnorm" or "convolutions".
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

    Attributes:
        round: The next round.
        inbox: What goes out: entry -> tensor.
        rules: "exchange/slot" -> {"combine": ..., "apply": ...}, dicts of tensors and numbers.
        seed: The job's seed.
    """

    round: int
    inbox: Inbox
    rules: Mapping[str, Mapping[str, Any]]
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What one exchange leaves for the records.

    Attributes:
        turn: Which exchange it was.
        names: Who took part.
        table: Their scalars.
        weights: Slot -> the rule's weights [k].
        dropped: Client -> why its reply was left out.
        seen: What a `Watch` saw.
    """

    turn: Turn
    names: tuple[str, ...]
    table: Table
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, Any] = field(default_factory=dict)
