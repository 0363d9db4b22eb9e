"""The words of a channel: what its two sides are, and what they pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

from unseen.core import Inbox, Memories, Memory, Turn
from unseen.core.exchange import Exchange, Method, Reply, Undecided
from unseen.core.replies import NOT_FINITE
from unseen.errors import BadReply, UnseenError
from unseen.privacy import wire

#: What a message carries where the server has no model to send: see `unseen.privacy.blind`.
Cargo = Mapping[str, bytes]
#: The files of keys as kits have them: every site has the first, the server the second; for masks
#: each site has its own key and everybody's public ones.
SECRET, PUBLIC = "ckks.secret", "ckks.public"
PRIVATE, PUBLICS = "masks.private", "masks.public.json"
#: What a sealed state is called in the cargo and the ledger, and a question in errors.
STATE, QUESTION = "state", "the server's question"
#: site -> question, and site -> answer of those who answered.
Ask = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Sealed:
    """A row that the server holds and cannot read.

    `fault` is what its client found wrong with it; only the client could look.
    """

    client: str
    shape: torch.Size
    dtype: torch.dtype
    header: Mapping[str, Any]
    parts: wire.Parts
    fault: str = ""


class Site(ABC):
    """A channel's side at one site. It holds a key, and is never pickled.

    Attributes:
        blind: Whether the server is blind: the site has the model from the cargo alone.
        remembers: Whether it keeps what it knows of the sums from one exchange to the next.
        company: Who takes part in the exchange, where that is known; others are refused.
        fewest: Of fewer rows than these it helps to open no sum.
        expected: Which exchange's sums must be the last in a blind server's state; "" before any
            is; None where this is not known.
        name: The site.
        mark: What every message about rows says of the keys.
        pending: What must be remembered between the messages of one exchange, as plain data.
    """

    blind: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    company: tuple[str, ...] = ()
    fewest = 1
    expected: str | None = None

    def __init__(self, name: str, mark: Mapping[str, str] | None = None) -> None:
        self.name, self.mark = name, mark or {}
        self.pending: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Site({self.name!r})"

    def __reduce__(self) -> Any:
        raise UnseenError("a site's side holds its key and is never pickled.")

    @property
    def label(self) -> Any:
        """The exchange that rows were last sealed for; questions about any other are refused."""
        return self.pending.get("label", {"round": None})

    def receive(self, inbox: Inbox, cargo: Cargo, turn: Turn) -> Inbox:
        """Return the inbox as this site's local part sees it."""
        return inbox

    def seal(self, exchange: Exchange, reply: Reply, inbox: Inbox, turn: Turn) -> dict[str, bytes]:
        """Seal a reply's rows; of a row that is not finite the fault alone leaves."""
        label = {"round": turn.round, "exchange": exchange.name}
        self.pending = {"label": label, **self.start(inbox)}
        messages = {}
        for slot in exchange.row_slots:
            row = reply.rows[slot].detach().cpu()
            head = {"kind": "row", "slot": slot, "client": self.name, **label, **self.mark}
            head |= {"shape": list(row.shape), "dtype": wire.name_of(row.dtype)}
            if bool(torch.isfinite(row).all()):
                messages[slot] = self.message(row, head, exchange, turn)
            else:
                messages[slot] = wire.pack({**head, "fault": NOT_FINITE})
        return messages

    @abstractmethod
    def start(self, inbox: Inbox) -> dict[str, Any]:
        """Return what must be remembered of an exchange that begins."""

    @abstractmethod
    def message(self, row: Tensor, head: dict[str, Any], exchange: Exchange, turn: Turn) -> bytes:
        """Return the message of one finite row [P] on the CPU, with what its header says so far."""

    def state(self) -> bytes:
        """Return the sealed state that goes along with a reply; empty where none is needed."""
        return b""

    def to_memory(self, cargo: Cargo, turn: Turn) -> Memory:
        """Return, in the clear, the state that is in the cargo; nothing if the server has it."""
        return {}

    def from_memory(self, memory: Memory) -> bytes:
        """Return the sealed state of what `to_memory` returned, under this site's key."""
        raise UnseenError("the server has the model itself: no state is sealed for it.")

    def answer(self, question: bytes) -> bytes:
        """Return the answer to a question; a refusal, with the reason, is an answer too."""
        try:
            return self.respond(*wire.unpack(question, QUESTION))
        except UnseenError as error:
            return wire.pack({"kind": "refused", "why": str(error)})
        except (LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            why = f"a question of another form than this channel's ({type(error).__name__})."
            return wire.pack({"kind": "refused", "why": why})

    @abstractmethod
    def respond(self, header: dict[str, Any], parts: wire.Parts) -> bytes:
        """Return the answer to a question, or raise what is wrong with it."""

    def save(self) -> bytes:
        """Return what a new process must be given to go on within an exchange; it stays here."""
        return wire.pack({"pending": wire.encode(self.pending)})

    def load(self, content: bytes) -> None:
        self.pending = wire.decode(wire.unpack(content, "a site's saved state")[0]["pending"])


class ServerSide(ABC):
    """A channel's side at the server: it opens what is of the exchange that it began last.

    Attributes:
        form: In what form rows leave with the replies; empty where none does.
        mark: What every message about rows must say of the keys.
        label: Which exchange messages must be of; before the first, none is.
        undecided: Pairs of clients whose inner product could not be distinguished from 0.
    """

    form: ClassVar[str]
    stack: ClassVar[type[SealedRows[Any]]]

    def __init__(self, mark: Mapping[str, str] | None = None) -> None:
        self.mark = mark or {}
        self.label: dict[str, Any] = {"round": -1, "exchange": ""}
        self.undecided: list[Undecided] = []

    def method(self, method: Method) -> Method:
        """Return the method as the server plays it."""
        return method

    def begin(self, exchange: Exchange, turn: Turn) -> None:
        """Begin an exchange, which every message of it must name."""
        self.label = {"round": turn.round, "exchange": exchange.name}

    def opened(self, name: str, messages: Mapping[str, bytes]) -> dict[str, Sealed]:
        """Return the rows of one site's messages, each checked to be of this exchange and site."""
        rows = {}
        for slot, message in messages.items():
            what, whole = f"the row {slot!r} of client {name!r}", False
            head, parts = wire.unpack(message, what)
            wire.expect(head, what, kind="row", client=name, slot=slot, **self.label, **self.mark)
            kind, fault = wire.type_of(head, what), str(head.get("fault", ""))
            with suppress(KeyError, TypeError, ValueError):
                shape = torch.Size(head["shape"])
                whole = bool(fault) or self.whole(head, parts, shape.numel())
            if not whole:
                raise BadReply(f"{what} does not hold what its header speaks of.")
            rows[slot] = Sealed(name, shape, kind, head, parts, fault)
        return rows

    def whole(self, head: Mapping[str, Any], parts: wire.Parts, size: int) -> bool:
        return True

    def rows(
        self, slot: str, rows: Sequence[Sealed], ask: Ask, device: torch.device = CPU
    ) -> SealedRows[Any]:
        """Return a stack of rows for a rule, whose results lie on the device."""
        return self.stack(self, slot, tuple(rows), ask, device)

    @property
    def stale(self) -> bool:
        """Whether the sites that answer next are to send the state."""
        return False

    def clear(self, inbox: Inbox) -> Inbox:
        """Return the entries that travel in the clear."""
        return inbox

    def cargo(self) -> Cargo:
        """Return what goes out with every message in place of the other entries."""
        return {}

    def take(self, name: str, content: bytes) -> None:
        """Keep the state that a site sealed."""
        raise UnseenError(f"site {name!r} sent a state, and the server has the model itself.")

    def restore(self, content: bytes) -> None:
        """Go on from a sealed state in which all sums are."""
        raise UnseenError("the server has the model itself: no state is carried for the sites.")

    def save(self) -> Memories:
        """Return what a checkpoint must hold of this side."""
        return Memories()

    def load(self, memories: Memories) -> None:  # noqa: B027 (most have nothing to load)
        """Go on from what `save` returned, if it is among the memories."""


Side = TypeVar("Side", bound=ServerSide)


@dataclass
class SealedRows(ABC, Generic[Side]):
    """Rows of one slot that the server cannot read.

    `unread` and `unmultiplied` say why a rule gets no rows, and no inner products. What the clients
    received is not to be had, so `reference` is None.
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

    @property
    def names(self) -> list[str]:
        return [row.client for row in self.sealed]

    @abstractmethod
    def linear(self, weights: Tensor, blocks: Sequence[slice] | None = None) -> Tensor:
        """Return Σ w_i u_i [P], or a stand-in where the server must not read it."""

    def take(self, order: Tensor) -> Self:
        return replace(self, sealed=tuple(self.sealed[i] for i in order.tolist()))

    def dense(self) -> Tensor:
        raise UnseenError(self.unread)

    def gram(self, *asked: Any, **named: Any) -> Any:
        """Refuse; `weigh` too, where the sites cannot do it either."""
        raise UnseenError(self.unmultiplied)

    weigh = gram
