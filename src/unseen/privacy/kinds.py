"""The words of a channel: what its two sides are, what they pass, and what a study can name."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from unseen.core.client import Memories
from unseen.core.disclosure import Undecided
from unseen.core.exchange import Exchange, Method, Reply, Turn
from unseen.core.rows import Rows
from unseen.core.types import Inbox, Memory
from unseen.errors import UnseenError, number
from unseen.privacy.wire import Parts, expect, nonce, unpack

#: site -> question, and site -> answer of those who answered.
Ask = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
#: What a message carries where the server has no model to send: see `unseen.privacy.blind`.
Cargo = Mapping[str, bytes]
Server = Literal["clear", "blind"]
#: The files of keys as kits have them: every site has the first, the server the second; for masks
#: each site has its own key and everybody's public ones.
SECRET, PUBLIC = "ckks.secret", "ckks.public"
PRIVATE, PUBLICS = "masks.private", "masks.public.json"
#: What a sealed state is called in the cargo, and in the ledger.
STATE = "state"
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Sealed:
    """A row that the server holds and cannot read.

    Attributes:
        header: What its message says of it.
        parts: The row itself.
        fault: What its client found wrong with it; only the client could look.
    """

    client: str
    shape: torch.Size
    dtype: torch.dtype
    header: Mapping[str, Any]
    parts: Parts
    fault: str = ""


@dataclass(frozen=True)
class SealedReply:
    """What leaves a site in one exchange.

    Attributes:
        rows: Slot -> the row's message; none in an evaluation.
        state: The sealed state that the site works with, where the server has no newer one.
    """

    scalars: Mapping[str, float | Tensor] = field(default_factory=dict)
    rows: Mapping[str, bytes] = field(default_factory=dict)
    state: bytes = b""


class Site(ABC):
    """A channel's side at one site.

    Attributes:
        blind: Whether the server is blind: the site has the model from the cargo alone, and
            remembers what it knows of the sums from one exchange to the next.
    """

    blind: ClassVar[bool] = False

    def receive(self, inbox: Inbox, cargo: Cargo, turn: Turn) -> Inbox:
        """Return the inbox as this site's local part sees it.

        Args:
            inbox: The entries that travel in the clear.
            cargo: What is sent in the place of the others.
            turn: The exchange that it is for.
        """
        return inbox

    @abstractmethod
    def seal(
        self, exchange: Exchange, reply: Reply, inbox: Inbox, turn: Turn, hello: str
    ) -> dict[str, bytes]:
        """Return a reply's rows as they leave: slot -> message."""

    def state(self) -> bytes:
        """Return the sealed state that goes along with a reply; empty where none is needed."""
        return b""

    def to_memory(self, cargo: Cargo, turn: Turn) -> Memory:
        """Return, in the clear, the state that is in the cargo; nothing if the server has it."""
        return {}

    def from_memory(self, memory: Memory) -> bytes:
        """Return the sealed state of what `to_memory` returned, under this site's key."""
        raise UnseenError("the server has the model itself: no state is sealed for it.")

    @abstractmethod
    def answer(self, question: bytes) -> bytes:
        """Return the answer to a question; a refusal is an answer too."""

    @abstractmethod
    def save(self) -> bytes:
        """Return what a new process must be given to go on within an exchange."""

    @abstractmethod
    def load(self, content: bytes) -> None:
        """Go on from what `save` returned."""


class ServerSide(ABC):
    """A channel's side at the server: it numbers each exchange, and opens what is of it alone.

    Attributes:
        form: In what form rows leave with the replies; empty where none does.
        label: Which exchange messages must be of; before the first, none is.
        undecided: Pairs of clients whose inner product could not be told from 0.
    """

    form: ClassVar[str]

    def __init__(self) -> None:
        self.label: dict[str, Any] = {"round": -1, "exchange": "", "nonce": ""}
        self.undecided: list[Undecided] = []

    def method(self, method: Method) -> Method:
        """Return the method as the server plays it."""
        return method

    def hello(self, exchange: Exchange, turn: Turn) -> str:
        """Begin an exchange: return a fresh number, which every message of it must bear."""
        self.label = {"round": turn.round, "exchange": exchange.name, "nonce": nonce()}
        return json.dumps({"nonce": self.label["nonce"]})

    def opened(self, name: str, messages: Mapping[str, bytes]) -> dict[str, Sealed]:
        """Return the rows of one site's messages, each checked to be of this exchange and site."""
        rows = {}
        for slot, message in messages.items():
            what = f"the row {slot!r} of client {name!r}"
            head, parts = unpack(message, what)
            expect(head, what, kind="row", client=name, slot=slot, **self.label)
            rows[slot] = self.sealed(name, head, parts, what)
        return rows

    @abstractmethod
    def sealed(self, name: str, head: dict[str, Any], parts: Parts, what: str) -> Sealed:
        """Return the row in a message; raise BadReply, which calls it `what`."""

    @abstractmethod
    def rows(self, slot: str, rows: Sequence[Sealed], ask: Ask, device: torch.device = CPU) -> Rows:
        """Return a stack of rows for a rule, whose results lie on the device."""

    # --- of a server that is blind; see `unseen.privacy.blind` ---

    @property
    def stale(self) -> bool:
        """Whether the sites that answer next are to send the state."""
        return False

    def clear(self, inbox: Inbox) -> Inbox:
        """Return the entries that travel in the clear."""
        return inbox

    def cargo(self) -> Cargo:
        """Return what goes out with every message in the place of the other entries."""
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


@dataclass(frozen=True)
class Clear:
    """Everything as it is."""


@dataclass(frozen=True)
class CKKS:
    """Encrypted rows, see `unseen.privacy.ckks`.

    Attributes:
        gram: Inner products for the rules that need them: `exact`, or of a `sketch(m)`, a public
            random projection to m numbers.
    """

    gram: str = "exact"

    def __post_init__(self) -> None:
        if self.gram != "exact" and not self.width:
            raise UnseenError(
                f"ckks(gram) must be 'exact' or 'sketch(m)' with m from 16 to 1048576, such as "
                f"'sketch(4096)'; found {self.gram!r}."
            )

    @property
    def width(self) -> int:
        """m; 0 for exact inner products."""
        match = re.fullmatch(r"sketch\((\d{2,7})\)", self.gram.replace(" ", ""))
        width = int(match[1]) if match else 0
        return width if 16 <= width <= 1 << 20 else 0


@dataclass(frozen=True)
class Masks:
    """Rows under masks that cancel in the sum, see `unseen.privacy.masks`.

    Attributes:
        step: Values are rounded to multiples of 2^-step.
        quorum: Fewest clients of one sum.
    """

    step: int = 40
    quorum: int = 2

    def __post_init__(self) -> None:
        number("masks(step)", self.step, 8, 52, whole=True)
        number("masks(quorum)", self.quorum, 2, whole=True)


Kind = Clear | CKKS | Masks
