"""What one site is asked within an exchange, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unseen.engine.messages import Parcel, Value, unpack, weight
from unseen.federation.flower.pulls import LARGER, Pulls

if TYPE_CHECKING:
    from flwr.app import Message

#: How often one site is asked in one exchange if it gives no answer.
ATTEMPTS = 3
AWAY = "was not connected"
#: Bytes that an answer may have beside its rows (names, scalars, envelope).
SLACK = 2**20

#: A SuperNode's number, and when it was started: a site that starts again is another node.
Node = tuple[int, str]


@dataclass
class Question:
    """What one site is asked, and what became of it.

    Attributes:
        site: The site's name.
        parcel: What it is sent.
        sent_at: When it was sent last.
        id: Number of the message that has no answer yet; empty if there is none.
        node: Which node got it.
        attempts: How often this node was asked.
        answer: The answer, if it can be used.
        fault: Else why there is none.
        final: Whether the site is not asked again.
        up: Bytes of the answer.
        seconds: How long it took.
        entry: The line of the site's own ledger that its last answer has, as number and hash.
        room: How many bytes the answer may have.
    """

    site: str
    parcel: Parcel
    sent_at: float = 0.0
    id: str = ""
    node: Node = (0, "")
    attempts: int = 0
    answer: dict[str, Value] | None = None
    fault: str = AWAY
    final: bool = False
    up: int = 0
    seconds: float = 0.0
    entry: str = ""
    room: int = SLACK

    @property
    def standing(self) -> str:
        """Why there is no answer yet, as far as that is known here."""
        return "was asked, and its answer has not arrived as a whole" if self.id else self.fault

    def again(self, here: Mapping[str, Node]) -> bool:
        """Return whether the site is to be asked, for the first time or once more."""
        return not self.final and not self.id and self.site in here and self.attempts < ATTEMPTS


@dataclass(frozen=True)
class Arrival:
    """What came of one message.

    Attributes:
        id: Number of the message.
        parcel: Its answer, if it can be read.
        fault: Else why there is none.
        larger: Whether that is since the answer has more bytes than there is room for.
    """

    id: str
    parcel: dict[str, Value] | None
    fault: str
    larger: bool


def arrivals(pulls: Pulls, asked: Mapping[str, tuple[int, Node]]) -> Iterator[Arrival]:
    """Yield the answers so far.

    Args:
        pulls: Those on their way.
        asked: Message -> room for its answer, and the node that it was sent to.
    """
    rooms = {id: room for id, (room, _) in asked.items()}
    for id, message, larger in pulls.arrived(rooms):
        yield _arrival(id, message, larger, *asked[id])


def _arrival(id: str, message: Message, larger: bool, room: int, node: Node) -> Arrival:
    """What came of one: the answer, or Flower's word on why there is none."""
    parcel, fault = None, ""
    try:
        if message.has_error():
            fault = f"no answer: {message.error.reason}"
        elif message.metadata.src_node_id != node[0]:
            fault = "an answer that another node gave in its name"
        elif larger := weight(message.content) > room:
            fault = LARGER.format(room=room)
        else:
            parcel = unpack(message.content)
    except Exception as error:  # whatever a site sends, the others go on
        fault = f"an answer that cannot be read ({type(error).__name__}: {error})"
    return Arrival(id, parcel, fault, larger)
