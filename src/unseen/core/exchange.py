"""The words of a round, as data: replies, slots, exchanges, methods, states and turns.

In an exchange every client turns what it received into named vectors and a few scalars, and the
server turns each stack of replies into what goes out next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from unseen.core.turn import Turn, View
from unseen.core.types import Inbox, Memory, Table
from unseen.errors import UnseenError

if TYPE_CHECKING:
    from torch import nn

    from unseen.core.apply import Apply
    from unseen.core.client import Client
    from unseen.core.row_codes import Code
    from unseen.core.rule import Combine
    from unseen.core.vector import Model

#: What a method asks for that reads one label per example, or outputs that are a row for each.
ONE_LABEL = "one label per example"
#: What a method asks for whose labels are of pixels.
MASKS = "masks"
#: The entries of an inbox that every model has.
SHARED = ("model", "buffers")


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

    Args:
        model: The model, bound to what was received.
        inbox: All that was received.
        client: Whose data it is.
        memory: What the client remembers.
        turn: Which exchange it is.

    Returns:
        The reply, with a row for every slot of the exchange, and the new memory. What was trained
        is named as it is bound, `{"model": model.vector, "buffers": model.buffers}`, and not
        copied: the caller takes the difference from what was received in place, after the
        outermost local, where the slot asks for it. Every other row goes as it is.
    """

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]: ...


@dataclass(frozen=True)
class Slot:
    """What becomes of one named stack of replies.

    Attributes:
        combine: The server rule.
        like: The slot of this exchange whose weights are used, instead of a rule.
        apply: How the result enters the inbox; None: it replaces the entry.
        sends: Whether clients send a value, or its difference from what they received.
        to: The inbox entry that is read and written; None: the slot's own name. What several slots
            make for one entry is added up, and the first of them applies it.
        start: Makes that entry before round 0; None: the model's vector or buffers. For a `Collect`
            rule it makes one client's row.
        part: The numbers [begin, end) of the entry that the slot reads and writes; None: all.
        follows: The slot of this exchange whose new value is what is applied, instead of
            replies: an average of what the server made.
        view: Whose scalars and clients the rule sees, where several federations share an exchange.
        memory: The name of what rule and step remember, where slots of several exchanges share it.
        code: How the clients compress their rows; None: they do not.
    """

    combine: Combine | None = None
    like: str | None = None
    apply: Apply | None = None
    sends: Literal["difference", "value"] = "difference"
    to: str | None = None
    start: Callable[[Model], Tensor] | None = None
    part: tuple[int, int] | None = None
    follows: str | None = None
    view: View | None = None
    memory: str | None = None
    code: Code | None = None

    def entry(self, inbox: Inbox, name: str) -> Tensor:
        """Return what the slot `name` reads and writes of the inbox."""
        to = self.to or name
        if to not in inbox:
            raise UnseenError(
                f"the slot {name!r} writes the inbox entry {to!r}, which nothing makes; there are "
                f"{', '.join(sorted(inbox))}.",
                remedy="Give the slot a start, which makes the entry before round 0: "
                "Slot(..., start=lambda model: torch.zeros(3)).",
            )
        whole = inbox[to]
        return whole if self.part is None else whole[slice(*self.part)]

    def row_shape(self, entry: Tensor) -> torch.Size:
        """Return the shape of one reply's row, for the inbox entry that this slot writes."""
        return self.combine.row_shape(entry) if self.combine is not None else entry.shape

    def row_bytes(self, entry: Tensor) -> int:
        """Return the bytes of one reply's row on a wire, for the inbox entry that it is about."""
        numbers = self.row_shape(entry).numel()
        return numbers * entry.element_size() if self.code is None else self.code.bytes(numbers)


@dataclass(frozen=True)
class Exchange:
    """One message to the clients and their replies.

    Attributes:
        name: Its name, which keys its randomness.
        local: What each client does.
        slots: What becomes of the rows; without slots it is an evaluation.
        rounds: (first, every): it runs in rounds first, first + every, ..., and an evaluation also
            in the last one; every = 0 means once; first = −1 is the last round.
        who: The round's sample, the whole roster, or participants by name.
        until: The round before which it ends; None: it goes on.
        reads: The parts [begin, end) of the model that its local reads; None: all of it.
        keys: How the names of the entries end that its local reads beside the model and its
            buffers; None: it may read all.
    """

    name: str
    local: Local
    slots: Mapping[str, Slot] = field(default_factory=dict)
    rounds: tuple[int, int] = (0, 1)
    who: Literal["sampled", "all"] | tuple[str, ...] = "sampled"
    until: int | None = None
    reads: tuple[tuple[int, int], ...] | None = None
    keys: tuple[str, ...] | None = None

    def outgoing(self, inbox: Inbox) -> dict[str, Tensor]:
        """Return what clients are sent: the entries that the local reads, those parts of the model.

        The parts lie one after the other in the entry "model".
        """
        ends = ("",) if self.keys is None else self.keys
        entries = {n: e for n, e in inbox.items() if n in SHARED or n.endswith(ends)}
        if self.reads is not None and "model" in entries:
            parts = [entries["model"][slice(*part)] for part in self.reads]
            entries["model"] = torch.cat([entries["model"][:0], *parts])
        return entries

    def incoming(self, entries: Inbox, size: int) -> dict[str, Tensor]:
        """Return the inbox that `outgoing` was made of, with 0 where nothing came.

        Args:
            entries: What `outgoing` returned.
            size: Of the whole model, P.
        """
        if self.reads is None or "model" not in entries:
            return dict(entries)
        parts = entries["model"]
        lengths = [end - begin for begin, end in self.reads]
        if parts.shape != (sum(lengths),):
            return dict(entries)  # whoever checks the model's shape says what came
        whole = parts.new_zeros(size)
        for place, part in zip(self.reads, parts.split(lengths), strict=True):
            whole[slice(*place)] = part
        return {**entries, "model": whole}

    @property
    def row_slots(self) -> dict[str, Slot]:
        """The slots that clients send a row for."""
        return {name: slot for name, slot in self.slots.items() if slot.follows is None}

    def memory(self, slot: str) -> str:
        """Return the name of what a slot's rule and step remember."""
        return self.slots[slot].memory or f"{self.name}/{slot}"


@dataclass(frozen=True)
class Reference:
    """Where a method comes from: one line for readers, a BibTeX entry for their papers."""

    text: str
    bibtex: str


@dataclass(frozen=True)
class Blueprint:
    """What a method may build the network that it trains of.

    Attributes:
        network: The study's network with its first weights.
        shape: The shape of one input.
        outputs: The columns of its output.
        another: m -> the study's network with the first weights of the m-th other seed.
        classes: The number of classes; None where numbers are predicted.
        rounds: The study's rounds.
        clients: The number of clients that train.
        frozen: Whether inputs are features that the frozen part of a network made of images.
    """

    network: nn.Module
    shape: tuple[int, ...]
    outputs: int
    another: Callable[[int], nn.Module]
    classes: int | None
    rounds: int
    clients: int
    frozen: bool = False


def fits_all(blueprint: Blueprint) -> str:
    """Return that a method serves these data: no reason against it."""
    return ""


def nothing_left_out(blueprint: Blueprint) -> Mapping[str, str]:
    """Return that no member of a method is left out."""
    return {}


@dataclass(frozen=True)
class Method:
    """A list of exchanges, and how its model predicts.

    Attributes:
        name: Its expression, such as `fedprox(mu=0.1)+ga`.
        exchanges: The exchanges of a round, in order.
        references: Where it comes from.
        predict: (model, inbox, x) -> outputs [N, C].
        gather: Turns the source clients into the training roster, as pooled training does.
        adapt: Makes the network that is trained of what the study would build.
        sized: (method, model, blueprint) -> the method, completed where it depends on the network,
            on the study's rounds or on the number of clients.
        rounds: How many rounds it takes, where it ends by itself; None: as many as the study says.
        cycle: Rounds that make one step of it, at whose end it is evaluated.
        shares: What leaves a client beyond the model, in words.
        asks: What data and network must be: "images", "classes", "batchnorm", "convolutions" or
            `ONE_LABEL`, which masks are not, or `MASKS`.
        fits: What it fits in place of the study's network, without steps on batches, such as "a
            random forest"; "" where it trains that network.
        unfit: Why it cannot serve data of a blueprint, as a reason that its name comes before; ""
            where it can.
        left_out: Its members that cannot serve data of a blueprint, and that it goes without ->
            why.
    """

    name: str
    exchanges: tuple[Exchange, ...]
    references: tuple[Reference, ...]
    predict: Callable[[Model, Inbox, Tensor], Tensor]
    gather: Callable[[Mapping[str, Client]], Mapping[str, Client]] | None = None
    adapt: Callable[[Blueprint], nn.Module] | None = None
    sized: Callable[[Method, Model, Blueprint], Method] | None = None
    rounds: int | None = None
    cycle: int = 1
    shares: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    fits: str = ""
    unfit: Callable[[Blueprint], str] = fits_all
    left_out: Callable[[Blueprint], Mapping[str, str]] = nothing_left_out

    def completed(self, model: Model, blueprint: Blueprint) -> Method:
        """Return the method as it is for its network, which can be played."""
        if self.sized is None:
            return self
        return replace(self.sized(self, model, blueprint), sized=None)


@dataclass(frozen=True)
class State:
    """All that the server carries from one round to the next.

    Attributes:
        round: The next round.
        inbox: What goes out: entry -> tensor.
        rules: `Exchange.memory` -> {"combine": ..., "apply": ...}, dicts of tensors and numbers.
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
        notes: What a `Watch` saw.
    """

    turn: Turn
    names: tuple[str, ...]
    table: Table
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


class Disclosure(NamedTuple):
    """Something that left a client.

    Attributes:
        client: Whose it is.
        slot: The slot, or the scalar.
        form: `plain`, `masked`, `encrypted`, or `noised` before it was one of these
            (`noised+masked`).
        bytes: As sent, without the envelope of the message.
    """

    client: str
    slot: str
    form: str
    bytes: int


class Undecided(NamedTuple):
    """Two clients whose encrypted inner product is too near 0 for its sign to be known."""

    round: int
    exchange: str
    slot: str
    first: str
    second: str
