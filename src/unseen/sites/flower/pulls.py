"""What each site is asked, and its answer, fetched apart so that half of one costs nobody else.

Flower's Grid fetches all answers in one call, which waits minutes for the rest of one whose sender
has stopped. Here each has a thread of its own, and no more bytes than its question leaves room for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unseen.engine.messages import Parcel, Value, unpack, weight

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

#: How long a look waits for answers that are being fetched, in seconds.
WAIT = 0.5
#: Said of an answer of which no more is fetched.
LARGER = "an answer larger than the {room:,} bytes that its question leaves room for"
#: A SuperNode's number, and when it was started: a site that starts again is another node.
Node = tuple[int, str]
_THREAD = threading.local()
#: How often one site is asked in one exchange if it gives no answer.
ATTEMPTS = 3
AWAY = "was not connected"
#: Bytes that an answer may have beside its rows (names, scalars, envelope).
SLACK = 2**20


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

    `fault` is why there is no parcel, `larger` that the answer has more bytes than there is room
    for.
    """

    id: str
    parcel: dict[str, Value] | None
    fault: str
    larger: bool


@dataclass
class Pull:
    """One answer on its way.

    It may have `room` bytes; of a `larger` one no more is fetched.
    """

    room: int
    thread: threading.Thread | None = None
    messages: list[Message] = field(default_factory=list)
    error: Exception | None = None
    larger: bool = False

    def run(self, grid: Grid, id: str) -> None:
        _THREAD.pull = self
        try:
            self.messages = list(grid.pull_messages([id]))
        except Exception as error:
            self.error = error


class Pulls:
    """The answers that are on their way."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.running: dict[str, Pull] = {}

    def arrived(self, asked: Mapping[str, tuple[int, Node]]) -> Iterator[Arrival]:
        """Yield what came of the messages whose answers are here."""
        for id, (room, _) in asked.items():
            if id not in self.running:
                pull = self.running[id] = Pull(room)
                # A daemon: one that waits for a dead sender does not keep the run from ending.
                pull.thread = threading.Thread(target=pull.run, args=(self.grid, id), daemon=True)
                pull.thread.start()
        until = time.monotonic() + WAIT
        for id in asked:  # an answer to anything else waits for who asked for it
            pull = self.running[id]
            assert pull.thread is not None
            pull.thread.join(max(0.0, until - time.monotonic()))
            if pull.thread.is_alive():
                continue
            del self.running[id]
            if pull.error is not None:
                raise pull.error
            yield from (_arrival(id, m, pull.larger, *asked[id]) for m in pull.messages)


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


def counted(make: Callable[..., Callable[[str], bytes]], stop: type[Exception]) -> Any:
    """Return Flower's maker of functions that fetch one piece of a message, with an end."""

    def make_counted(*arguments: Any, **named: Any) -> Callable[[str], bytes]:
        pull, lock = make(*arguments, **named), threading.Lock()
        answer: Pull | None = getattr(_THREAD, "pull", None)
        size = 0

        def pull_counted(id: str) -> bytes:
            nonlocal size
            content = pull(id)
            with lock:
                size += len(content)
            if answer is not None and size > answer.room:
                answer.larger = True
                raise stop(id, LARGER.format(room=answer.room))
            return content

        return pull_counted

    return make_counted
