"""What each site is asked, and its answer, fetched apart so that half of one costs nobody else.

Flower's Grid fetches all answers in one call, which waits minutes for the rest of one whose sender
has stopped. Here each has a thread of its own, and no more bytes than its question leaves room for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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

    `id` is the number of the message that has no answer yet, `attempts` how often this node was
    asked. A `final` one is not asked again. `entry` is the line of the site's own ledger that its
    last answer has, as number and hash; the answer may have `room` bytes.
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


@dataclass
class Pull:
    """An answer on its way, and what came of it.

    It may have `room` bytes; of a `larger` one no more is fetched. `fault` is why there is no
    parcel, and `error` what Flower raised, where the server is gone.
    """

    room: int
    id: str = ""
    node: Node = (0, "")
    parcel: dict[str, Value] | None = None
    fault: str = ""
    larger: bool = False
    here: bool = False
    error: Exception | None = None

    def run(self, grid: Grid) -> None:
        _THREAD.pull = self
        try:
            for message in list(grid.pull_messages([self.id])):
                self.here = True
                self.read(message)
        except Exception as error:
            self.error = error

    def read(self, message: Message) -> None:
        """Take the answer out of a message, or Flower's word on why there is none."""
        try:
            if message.has_error():
                self.fault = f"no answer: {message.error.reason}"
            elif message.metadata.src_node_id != self.node[0]:
                self.fault = "an answer that another node gave in its name"
            elif weight(message.content) > self.room:
                self.fault, self.larger = LARGER.format(room=self.room), True
            else:
                self.parcel = unpack(message.content)
        except Exception as error:  # whatever a site sends, the others go on
            self.fault = f"an answer that cannot be read ({type(error).__name__}: {error})"


class Pulls:
    """The answers that are on their way."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.running: dict[str, tuple[Pull, threading.Thread]] = {}

    def arrived(self, asked: Mapping[str, tuple[int, Node]]) -> Iterator[Pull]:
        """Yield what came of the messages whose answers are here."""
        for id, (room, node) in asked.items():
            if id not in self.running:
                pull = Pull(room, id, node)
                # A daemon: one that waits for a dead sender does not keep the run from ending.
                thread = threading.Thread(target=pull.run, args=(self.grid,), daemon=True)
                self.running[id] = pull, thread
                thread.start()
        until = time.monotonic() + WAIT
        for id in asked:  # an answer to anything else waits for who asked for it
            pull, thread = self.running[id]
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                continue
            del self.running[id]
            if pull.error is not None:
                raise pull.error
            if pull.here:
                yield pull


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
