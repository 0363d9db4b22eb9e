"""A channel over Flower: rows leave their site sealed, questions come to the sites as messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unseen.core.client import Client, Memories
from unseen.core.exchange import Exchange, Reply, Turn
from unseen.core.types import Inbox
from unseen.core.vector import Model
from unseen.engine.messages import INBOX, Parcel, Value, from_reply, named, to_reply
from unseen.errors import UnseenError
from unseen.privacy import channel, channelled, kinds
from unseen.privacy.kinds import SealedReply
from unseen.study.watcher import FINAL, save_tensors, tensors_of

if TYPE_CHECKING:
    from unseen.federation.flower.desk import Desk
    from unseen.federation.flower.site_backend import Sites

SEALED, CARGO, SIDE, ASK = "sealed/", "carried/", "channel", "channel"
FILES = (kinds.SECRET, kinds.PRIVATE, kinds.PUBLICS)


def site_side(desk: Desk) -> kinds.Site | None:
    """Return the channel's side at a site, made of the kit's files; None on a clear channel."""
    privacy, kit = desk.study.privacy, desk.site.kit or Path()
    kind = channel.read(privacy.channel, privacy.server)
    if isinstance(kind, kinds.Clear):
        return None
    files = {name: (kit / name).read_bytes() for name in FILES if (kit / name).is_file()}
    try:
        return channel.site_side(kind, privacy.server, desk.method, desk.site.name, files, desk.job)
    except KeyError as error:
        raise UnseenError(
            f"the kit of {desk.site.name!r} has no {error} for the channel."
        ) from None


def receive(side: kinds.Site, desk: Desk, inbox: Inbox, turn: Turn) -> Inbox:
    """Return the inbox as this site's local part sees it."""
    if not side.blind:
        desk.forget()
    elif (saved := desk.kept(SIDE)) is not None:  # what it knows of the sums that come now
        side.load(saved)
    entries = side.receive(inbox, named(desk.parcel, CARGO, bytes), turn)
    return {name: entry.to(desk.model.device) for name, entry in entries.items()}


def leave(
    side: kinds.Site, desk: Desk, exchange: Exchange, reply: Reply, inbox: Inbox, turn: Turn
) -> dict[str, Value]:
    """Return all that leaves the site: scalars as they are, rows and state sealed."""
    if side.blind and not exchange.slots and turn.round == turn.rounds - 1:
        notes = {key: str(desk.head[key]) for key in ("run", "method", "task", "seed", "model")}
        trained = tensors_of(desk.model, inbox["model"], inbox["buffers"])
        save_tensors(desk.folder / FINAL, trained, notes)  # nobody else has it
    hello = str(desk.parcel["hello"])
    sealed = channelled.leave(side, exchange, reply, inbox, turn, hello)
    if exchange.slots:
        desk.keep(SIDE, side.save())
    parcel = from_reply(Reply(scalars=sealed.scalars))
    if sealed.state:
        parcel[CARGO + kinds.STATE] = sealed.state
    return parcel | {SEALED + slot: row for slot, row in sealed.rows.items()}


def answer(parcel: Parcel, desk: Desk) -> dict[str, Value]:
    """Return a site's answer to a question about the rows that it sealed last."""
    side, saved, question = site_side(desk), desk.kept(SIDE), parcel["question"]
    if side is None or saved is None or not isinstance(question, bytes):
        raise UnseenError("no question is answered before rows were sealed here.")
    side.load(saved)
    reply = side.answer(question)
    desk.keep(SIDE, side.save())
    return {"answer": reply}


@dataclass
class SealedSites:
    """`Sites` as a channel's transport."""

    sites: Sites

    @property
    def model(self) -> Model:
        """The server's network."""
        return self.sites.model

    @property
    def clients(self) -> Mapping[str, Client]:
        """None is here."""
        return self.sites.clients

    @property
    def memories(self) -> Memories:
        """None are here."""
        return self.sites.memories

    def exchange(
        self,
        exchange: Exchange,
        inbox: Inbox,
        mail: channelled.Mail,
        clients: Sequence[str],
        turn: Turn,
        opened: Callable[[str, SealedReply], Reply],
    ) -> list[Reply]:
        """Send the mail to each client, and return what is opened of their answers."""
        more: dict[str, Value] = {"hello": mail.hello}
        more |= {INBOX + name: "sealed" for name in inbox.keys() - mail.inbox.keys()}
        more |= {CARGO + name: content for name, content in mail.cargo.items()}

        def unpacked(name: str, parcel: Parcel) -> Reply:
            rows = named(parcel, SEALED, bytes)
            state = named(parcel, CARGO, bytes).get(kinds.STATE, b"")
            return opened(name, SealedReply(to_reply(parcel).scalars, rows, state))

        return self.sites.replies(exchange, inbox, clients, turn, more, unpacked)

    def ask(self, questions: Mapping[str, bytes], turn: Turn) -> dict[str, bytes]:
        """Return the answers of the sites that give one."""
        parcels = {name: {"question": question} for name, question in questions.items()}
        replies = self.sites.ask(ASK, parcels, turn)
        answers = {name: parcel.get("answer") for name, parcel in replies.items()}
        return {name: reply for name, reply in answers.items() if isinstance(reply, bytes)}

    def save(self, server: kinds.ServerSide, turn: Turn) -> Memories:
        """Return what a blind server carries; of the sites nothing."""
        return server.save()

    def load(self, server: kinds.ServerSide, memories: Memories) -> None:
        """Let a blind server go on from what it carried."""
        server.load(memories)


def server_files() -> dict[str, bytes]:
    """Return the public files of the kit that the SuperLink was started from."""
    home = os.environ.get("FLWR_HOME")
    path = Path(home).parent / kinds.PUBLIC if home else Path(kinds.PUBLIC)
    return {kinds.PUBLIC: path.read_bytes()} if path.is_file() else {}
