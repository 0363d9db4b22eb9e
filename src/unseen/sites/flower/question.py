"""What one site is asked within an exchange, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unseen.engine.messages import Parcel, Value
from unseen.sites.flower.pulls import Node

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
