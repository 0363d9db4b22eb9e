"""A channel over Flower: rows leave their site sealed, questions come to the sites as messages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from unseen.core.client import Client, Memories
from unseen.core.disclosure import Disclosure, Undecided
from unseen.core.exchange import Exchange, Method, Reply, Turn
from unseen.core.round import Backend
from unseen.core.rule import Rows
from unseen.core.types import Inbox
from unseen.engine.messages import INBOX, Parcel, Value, from_reply, to_reply
from unseen.errors import BadReply, UnseenError
from unseen.privacy import blind_messages, channel, kinds
from unseen.spec.study import Privacy
from unseen.study.watcher import FINAL, save_tensors, tensors_of

if TYPE_CHECKING:
    from unseen.core.vector import Model
    from unseen.federation.flower.desk import Desk
    from unseen.federation.flower.site_backend import Sites

SEALED, CARGO, SIDE, ASK = "sealed/", "carried/", "channel", "channel"
#: What a sealed state is called in the ledger.
STATE = "state"
FILES = (kinds.SECRET, kinds.PRIVATE, kinds.PUBLICS)


def site(desk: Desk, memories: Memories) -> Any:
    """The channel's side at a site, made of the kit's files; None where all goes in the clear."""
    privacy = desk.study.privacy
    kind = channel.read(privacy.channel, privacy.server)
    if isinstance(kind, kinds.Clear):
        return None
    kit = desk.site.kit or Path()
    files = {name: (kit / name).read_bytes() for name in FILES if (kit / name).is_file()}
    try:
        if isinstance(kind, kinds.CKKS) and privacy.server == "blind":
            own = files[kinds.SECRET]
            return blind_messages.Site(desk.method, desk.site.name, own, kind, desk.job)
        return channel.site(kind, "clear", desk.method, desk.site.name, files, memories)
    except KeyError as error:
        raise UnseenError(
            f"the kit of {desk.site.name!r} has no {error} for the channel."
        ) from None


def received(side: Any, desk: Desk, inbox: Inbox, turn: Turn) -> Inbox:
    """The inbox as this site's local part sees it."""
    if not isinstance(side, blind_messages.Site):
        desk.forget()
        found: Inbox = side.receive(inbox, turn, str(desk.parcel["hello"]))
        return found
    if (kept := desk.kept(SIDE)) is not None:  # what it knows of the sums that come now
        side.load(kept)
    cargo = {
        key.removeprefix(CARGO): value
        for key, value in desk.parcel.items()
        if key.startswith(CARGO) and isinstance(value, bytes)
    }
    entries = side.unload(inbox, cargo, turn)
    return {name: entry.to(desk.model.device) for name, entry in entries.items()}


def leaving(
    side: Any, desk: Desk, asked: Exchange, reply: Reply, inbox: Inbox, turn: Turn
) -> dict[str, Value]:
    """All that leaves the site: scalars as they are, rows and state sealed."""
    parcel = from_reply(Reply(scalars=reply.scalars))
    if isinstance(side, blind_messages.Site) and side.wanted:
        parcel[CARGO + blind_messages.STATE] = side.state()
    if isinstance(side, blind_messages.Site) and not asked.slots and turn.round == turn.rounds - 1:
        notes = {key: str(desk.head[key]) for key in ("run", "method", "task", "seed", "model")}
        trained = tensors_of(desk.model, inbox["model"], inbox["buffers"])
        save_tensors(desk.folder / FINAL, trained, notes)  # nobody else has it
    if asked.slots:
        messages = side.seal(asked, reply, inbox, turn, str(desk.parcel["hello"]))
        desk.keep(SIDE, side.save())
        parcel |= {SEALED + slot: row for slot, row in messages.items()}
    return parcel


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
class SealedSites(Backend):
    """`Sites` behind a channel. files: the server's, which are public; kept: its memories of an
    earlier start."""

    sites: Sites
    privacy: Privacy
    files: Mapping[str, bytes]
    kept: Memories | None = None
    side: Any = None
    turn: Turn = field(default_factory=lambda: Turn(0, 0, 1))
    out: list[Disclosure] = field(default_factory=list)
    model: Model = field(init=False)
    clients: Mapping[str, Client] = field(init=False)
    memories: Memories = field(init=False)

    def __post_init__(self) -> None:
        self.model, self.clients = self.sites.model, self.sites.clients
        self.memories = self.sites.memories

    def to_checkpoint(self) -> Memories:
        """What a blind server carries; of the sites nothing."""
        if isinstance(self.side, blind_messages.Server):
            return self.side.save()
        return self.memories

    def carries_channel(self) -> bool:
        """Yes."""
        return True

    def played(self, method: Method) -> Method:
        """The method as the server plays it."""
        kind = channel.read(self.privacy.channel, self.privacy.server)
        names = sorted(self.sites.roles)
        if isinstance(kind, kinds.CKKS) and self.privacy.server == "blind":
            self.side = blind_messages.Server(method, self.files[kinds.PUBLIC], kind)
            self.side.load(self.kept)
        else:
            self.side = channel.serving(kind, "clear", method, names, self.files)
        return self.side.method(method)  # type: ignore[no-any-return]

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        """As `Sites`; rows come sealed, and to a blind server the model too."""
        self.turn, self.out = turn, []
        more: dict[str, Value] = {"hello": self.side.hello(exchange, turn, clients)}
        wanted = False
        if isinstance(self.side, blind_messages.Server):
            wanted = self.side.stale
            clear = blind_messages.without_stand_ins(inbox)
            more |= {INBOX + name: "sealed" for name in inbox.keys() - clear.keys()}
            more |= {CARGO + name: content for name, content in self.side.cargo().items()}

        def opened(name: str, told: Mapping[str, Value]) -> Reply:
            reply = to_reply(told)
            if wanted:
                self._state(name, told.get(CARGO + blind_messages.STATE))
            if not exchange.slots:
                return reply
            rows = {
                key.removeprefix(SEALED): value
                for key, value in told.items()
                if key.startswith(SEALED) and isinstance(value, bytes)
            }
            if how := channel.form(self.side):
                self.out += [Disclosure(name, s, how, len(row)) for s, row in rows.items()]
            return Reply(self.side.opened(name, rows), reply.scalars)

        return self.sites.replies(exchange, inbox, clients, turn, more, opened)

    def _state(self, name: str, content: Value | None) -> None:
        if not isinstance(content, bytes):
            raise BadReply(f"site {name!r} sent no sealed state beside its answer.")
        self.side.take(name, content)
        self.out.append(Disclosure(name, STATE, "encrypted", len(content)))

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
                    self.out.append(Disclosure(name, label, how, len(found)))
        return answers

    def disclosed(self) -> list[Disclosure]:
        """What left each client since the last exchange began."""
        return list(self.out)

    def undecided(self) -> list[Undecided]:
        """Pairs whose inner product could not be told from 0, since the last call."""
        found = list(getattr(self.side, "undecided", ()))
        if found:
            self.side.undecided.clear()
        return found


def server_files() -> dict[str, bytes]:
    """The public files of the kit that the SuperLink was started from."""
    home = os.environ.get("FLWR_HOME")
    path = Path(home).parent / kinds.PUBLIC if home else Path(kinds.PUBLIC)
    return {kinds.PUBLIC: path.read_bytes()} if path.is_file() else {}
