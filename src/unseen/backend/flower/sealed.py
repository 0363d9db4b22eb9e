"""A channel over Flower: rows leave their site sealed, questions come to the sites as messages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from unseen.backend.flower.wire import Parcel, Value, to_reply
from unseen.client import Memories
from unseen.combine.base import Rows
from unseen.errors import UnseenError
from unseen.exchange import Exchange, Inbox, Method, Reply, Turn
from unseen.privacy import channel
from unseen.study.spec import Privacy

if TYPE_CHECKING:
    from unseen.backend.flower.desk import Desk
    from unseen.backend.flower.server import Sites
    from unseen.vector import Model

SEALED, SIDE, ASK = "sealed/", "channel", "channel"
FILES = (channel.SECRET, channel.PRIVATE, channel.PUBLICS)


def refused(privacy: Privacy) -> None:
    """Refuse what needs more than one question and answer per site."""
    if privacy.server == "blind":
        raise UnseenError(
            "privacy.server = 'blind' does not run over real sites yet: the server would have to "
            "send what it does not hold. Take server = 'clear', or run the study in process."
        )


def site(desk: Desk, memories: Memories) -> Any:
    """The channel's side at a site, made of the kit's files; None where all goes in the clear."""
    privacy = desk.study.privacy
    kind = channel.read(privacy.channel, privacy.server)
    if isinstance(kind, channel.Clear):
        return None
    kit = desk.site.kit or Path()
    files = {name: (kit / name).read_bytes() for name in FILES if (kit / name).is_file()}
    try:
        return channel.site(kind, privacy.server, desk.method, desk.site.name, files, memories)
    except KeyError as error:
        raise UnseenError(
            f"the kit of {desk.site.name!r} has no {error} for the channel."
        ) from None


def answer(parcel: Parcel, desk: Desk) -> dict[str, Value]:
    """A site's answer to a question about the rows that it sealed last."""
    side, kept, question = site(desk, Memories()), desk.kept(SIDE), parcel["question"]
    if side is None or kept is None or not isinstance(question, bytes):
        raise UnseenError("there are no sealed rows here to be asked about.")
    side.load(kept)
    told = side.answer(question)
    desk.keep(SIDE, side.save())
    return {"answer": told}


@dataclass
class SealedSites:
    """`Sites` behind a channel. files: the server's, which are public."""

    sites: Sites
    privacy: Privacy
    files: Mapping[str, bytes]
    side: Any = None
    turn: Turn = field(default_factory=lambda: Turn(0, 0, 1))
    out: list[channel.Left] = field(default_factory=list)

    @property
    def memories(self) -> Memories:
        """None here."""
        return self.sites.memories

    @property
    def model(self) -> Model:
        """The study's network."""
        return self.sites.model

    def method(self, method: Method) -> Method:
        """The method as the server plays it."""
        kind = channel.read(self.privacy.channel, self.privacy.server)
        names = sorted(self.sites.roles)
        self.side = channel.serving(kind, self.privacy.server, method, names, self.files)
        return self.side.method(method)  # type: ignore[no-any-return]

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        """As `Sites`; rows come sealed."""
        self.turn, self.out = turn, []
        hello = self.side.hello(exchange, turn, clients)

        def opened(name: str, told: Mapping[str, Value]) -> Reply:
            reply = to_reply(told)
            if not exchange.slots:
                return reply
            rows = {
                key.removeprefix(SEALED): value
                for key, value in told.items()
                if key.startswith(SEALED) and isinstance(value, bytes)
            }
            if how := channel.form(self.side):
                self.out += [channel.Left(name, s, how, len(row)) for s, row in rows.items()]
            return Reply(self.side.opened(name, rows), reply.scalars)

        return self.sites.replies(exchange, inbox, clients, turn, {"hello": hello}, opened)

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> Rows:
        """One slot's rows, about which the sites are asked."""
        sealed: list[Any] = [reply.rows[slot] for reply in replies]
        rows: Any = self.side.rows(slot, sealed, self.ask)
        if reference is not None:
            rows.device = reference.device
        stack: Rows = rows
        return stack

    def ask(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        """The answers of the sites that give one."""
        parcels = {name: {"question": question} for name, question in questions.items()}
        told = self.sites.ask(ASK, parcels, self.turn)
        answers = {}
        for name, parcel in told.items():
            found = parcel.get("answer")
            if isinstance(found, bytes):
                answers[name] = found
                label, how = channel.answered(found)
                if how:
                    self.out.append(channel.Left(name, label, how, len(found)))
        return answers

    def left(self) -> list[channel.Left]:
        """What left each client since the last exchange began."""
        return list(self.out)

    def undecided(self) -> list[channel.Undecided]:
        """Pairs whose inner product could not be told from 0, since the last call."""
        found = list(getattr(self.side, "undecided", ()))
        if found:
            self.side.undecided.clear()
        return found


def server_files() -> dict[str, bytes]:
    """The public files of the kit that the SuperLink was started from."""
    home = os.environ.get("FLWR_HOME")
    path = Path(home).parent / channel.PUBLIC if home else Path(channel.PUBLIC)
    return {channel.PUBLIC: path.read_bytes()} if path.is_file() else {}
