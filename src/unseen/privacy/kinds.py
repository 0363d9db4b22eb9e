"""The words of a channel: what its two sides are, what they pass, and what a study can name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from unseen.core.exchange import Exchange, Method, Reply, Turn
from unseen.core.rule import Rows
from unseen.core.types import Inbox
from unseen.errors import UnseenError, number
from unseen.privacy.wire import Parts

#: site -> question, and site -> answer of those who answered.
Ask = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
Server = Literal["clear", "blind"]
#: The files of keys as kits have them: every site has the first, the server the second; for masks
#: each site has a key of its own and everybody's public ones.
SECRET, PUBLIC = "ckks.secret", "ckks.public"
PRIVATE, PUBLICS = "masks.private", "masks.public.json"


@dataclass(frozen=True)
class Sealed:
    """A row that the server holds and cannot read. fault: what its client found wrong with it."""

    client: str
    shape: torch.Size
    dtype: torch.dtype
    header: Mapping[str, Any]
    parts: Parts
    fault: str = ""


class Site(Protocol):
    """A channel's side at one site."""

    def receive(self, inbox: Inbox, turn: Turn, hello: str) -> Inbox:
        """The inbox as this site's local part sees it."""
        ...

    def seal(
        self, exchange: Exchange, reply: Reply, inbox: Inbox, turn: Turn, hello: str
    ) -> dict[str, bytes]:
        """A reply's rows as they leave: slot -> message."""
        ...

    def answer(self, question: bytes) -> bytes:
        """The answer to a question; a refusal is an answer too."""
        ...


class ServerSide(Protocol):
    """A channel's side at the server."""

    def method(self, method: Method) -> Method:
        """The method as the server plays it."""
        ...

    def hello(self, exchange: Exchange, turn: Turn, names: Sequence[str]) -> str:
        """What goes out with an exchange's message, for `Site.receive` and `Site.seal`."""
        ...

    def opened(self, name: str, messages: Mapping[str, bytes]) -> dict[str, Sealed]:
        """The rows of one site's messages, each checked to be of this exchange and context."""
        ...

    def rows(self, slot: str, rows: Sequence[Sealed], ask: Ask) -> Rows:
        """A stack of rows for a rule."""
        ...


@dataclass(frozen=True)
class Clear:
    """Everything as it is."""


@dataclass(frozen=True)
class CKKS:
    """Encrypted rows, see `unseen.privacy.ckks`.

    gram: inner products for the rules that go by them, `exact` or of a `sketch(m)`: a public
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
        found = re.fullmatch(r"sketch\((\d{2,7})\)", self.gram.replace(" ", ""))
        width = int(found[1]) if found else 0
        return width if 16 <= width <= 1 << 20 else 0


@dataclass(frozen=True)
class Masks:
    """Rows under masks that cancel in the sum, see `unseen.privacy.masks`.

    step: values are rounded to multiples of 2^-step. quorum: fewest clients of one sum.
    """

    step: int = 40
    quorum: int = 2

    def __post_init__(self) -> None:
        number("masks(step)", self.step, 8, 52, whole=True)
        number("masks(quorum)", self.quorum, 2, whole=True)


Kind = Clear | CKKS | Masks
