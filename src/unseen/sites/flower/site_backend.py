"""The backend whose clients are sites: an exchange is one question to each of them.

Behind a channel rows leave their site sealed, and questions about them come to it as messages.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.core import Backend, Client, DenseRows, Exchange, Inbox, Memories, Model, Reply, Turn
from unseen.core.atomic import write_atomically
from unseen.core.parts import innermost
from unseen.core.record_lines import to_line
from unseen.core.replies import find_fault, row_shapes
from unseen.data.dataset import Totals
from unseen.engine import client_memories, messages
from unseen.engine.messages import Parcel, Value
from unseen.errors import UnseenError
from unseen.methods.exact.sense import Sender, senseless
from unseen.privacy import channel, channelled, kinds, wire
from unseen.sites.control import MESSAGES
from unseen.sites.flower import terms
from unseen.sites.flower.answers import Judge, beyond, reasons, unlike
from unseen.sites.flower.pulls import Question
from unseen.sites.flower.receipts import check_receipt, last_receipts, write_receipts
from unseen.sites.flower.script import Position
from unseen.sites.flower.site_messages import KEPT, Link, Waiting
from unseen.sites.flower.site_question import EXCHANGE, payload_of
from unseen.sites.policy.ledger_check import messages_in
from unseen.studies.settings.study import StudySpec

#: Why a site has no part in an exchange that is played again, as the others have it.
AWAY = "did not answer when this exchange was first played"
#: Of a job: questions about ciphertexts that are asked again as they were.
ASKED = "asked"
#: The most bytes that a number of a row takes: as float64, and through any channel with all that
#: goes along (CKKS takes 40 for a number, and as many for a product's); and the few ciphertexts
#: that the smallest vector needs.
PLAIN, SEALED, CIPHERTEXTS = 8, 96, 2**24


@dataclass
class Sites(Backend):
    """The backend of one job whose clients are sites.

    `head` is what every message of the run says, `position` what every one of the job asks for but
    for round and exchange. Clients and memories are none: the sites keep them. `sealed` says
    whether rows come through a channel.
    """

    link: Link
    head: Mapping[str, Any]
    position: Position
    roles: Mapping[str, str]
    folder: Path
    model: Model
    statistics: Tensor | None = None
    memories: Memories = field(default_factory=Memories)
    clients: Mapping[str, Client] = field(default_factory=dict)
    kind: str = EXCHANGE
    sealed: bool = False

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        """Send one message to each client; a missing or bad answer becomes a fault."""
        question = exchange, inbox, clients, turn
        replies = self.replies(*question, {}, lambda _, answer: messages.to_reply(answer))
        for i, reply in enumerate(replies):
            rows = {slot: row.to(self.model.device) for slot, row in reply.rows.items()}
            replies[i] = replace(reply, rows=rows)
        return replies

    def replies(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn, more: Parcel,
        opened: Callable[[str, Mapping[str, Value]], Reply], visible: Inbox | None = None,
    ) -> list[Reply]:  # fmt: skip
        """Send the inbox to each client and return their replies.

        `more` is sent as well and overrides entries of the inbox. `opened` returns the reply in a
        site's answer; replies must fit `visible`, where some of it does not travel in the clear.
        """
        # What comes through a channel is about all of it.
        entries = inbox if self.sealed else exchange.outgoing(inbox)
        parcel = {**messages.from_inbox(entries), **more}
        visible = inbox if visible is None else visible
        shapes, totals = row_shapes(exchange, visible), exchange.local
        signs = bool(exchange.slots) and self.kind == EXCHANGE
        receipts: dict[str, Any] = {}
        counted = [name for name in clients if self.roles.get(name) != "target"]
        minimum = min(self.link.limits.minimum, len(counted))
        replies: dict[str, Reply] = {}

        def good(answer: Mapping[str, Value]) -> str | None:
            name = str(answer["site"])
            if signs:
                receipts[name] = check_receipt(answer, digest)
            replies[name] = opened(name, answer)
            fault = find_fault(replies[name], shapes)
            fault = fault or beyond(replies[name], self.link.stated.get(name))
            if isinstance(totals, Totals):
                most = self.link.stated.get(name)
                fault = fault or totals.impossible(replies[name].rows["statistics"], most)
            if isinstance(sender := innermost(totals), Sender) and not (self.sealed or fault):
                (row,) = replies[name].rows.values()
                fault = senseless(sender, row, self.link.stated.get(name))
            return fault or unlike(replies[name], exchange)

        if signs:
            about, common = self.envelope(turn, self.kind)
            digest = payload_of(self.kind, about, {**common, **parcel})
        # Sites that answered go on from what it made of their answers, and of nobody else's.
        before = self.answered(turn)
        parcels = {name: parcel for name in clients if not before or name in before}
        questions = self.ask(self.kind, parcels, turn, minimum, good, self.room(shapes, visible))
        faults = {name: q.fault for name, q in questions.items() if q.answer is None}
        faults |= dict.fromkeys(set(clients) - set(parcels), AWAY)
        if minimum and not exchange.slots and len(faults) == len(questions):
            why = f"no site could evaluate in {turn.exchange}{reasons(faults)}."
            raise Waiting(why, remedy=KEPT)
        if isinstance(totals, Totals):
            rows = {n: reply.rows["statistics"] for n, reply in replies.items() if n not in faults}
            faults |= totals.far(rows)
        if signs:
            write_receipts(self.folder, turn.round, turn.order, [*receipts.values()])
        # A bad answer is left where it is: what is wrong with it is known.
        return [Reply(fault=faults[name]) if name in faults else replies[name] for name in clients]

    def envelope(self, turn: Turn, kind: str) -> tuple[str, dict[str, Value]]:
        """Return the subject and the envelope of every message of an exchange."""
        own = replace(self.position, round=turn.round, exchange=turn.exchange)
        about = f"{own.method} · {own.task} · seed {own.seed}"
        about += f" · round {turn.round} · {turn.exchange} · layout {own.layout}"
        head = {**self.head, "position": asdict(own)}
        if kind == EXCHANGE:
            head["receipts"] = last_receipts(self.folder, turn.round, turn.order)
        sums = {} if self.statistics is None else {terms.STATISTICS: self.statistics}
        return about, {**sums, "head": json.dumps(head)}

    def answered(self, turn: Turn) -> set[str]:
        """Return who answered in an exchange that a server which was killed has played before."""
        lines = messages_in(self.folder / MESSAGES)
        here = {"round": turn.round, "exchange": turn.exchange, "kind": self.kind}
        lines = [line for line in lines if all(line.get(k) == v for k, v in here.items())]
        return {line["site"] for line in lines if not line["fault"]}

    def room(self, shapes: Mapping[str, torch.Size], inbox: Inbox) -> int:
        """Return how many bytes the rows of an answer may have.

        A blind server's sites send back the inbox, too, sealed.
        """
        numbers = sum(shape.numel() for shape in shapes.values())
        if not self.sealed:
            return PLAIN * numbers
        numbers += sum(entry.numel() for entry in inbox.values())
        return SEALED * numbers + CIPHERTEXTS

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> DenseRows:
        return DenseRows([reply.rows[slot] for reply in replies], reference)

    def ask(
        self, kind: str, parcels: Mapping[str, Parcel], turn: Turn, minimum: int = 0,
        good: Judge = lambda answer: None, room: int = 0,
    ) -> dict[str, Question]:  # fmt: skip
        """Ask the sites within an exchange; every message is accounted for.

        `good` returns what is wrong with an answer, `room` is how many bytes its rows may have.
        """
        about, common = self.envelope(turn, kind)
        at = {"round": turn.round, "exchange": turn.exchange}
        job = {name: getattr(self.position, name) for name in ("method", "task", "seed")}
        self.link.tell(**at, rounds=turn.rounds, waiting="", **job)
        full = {name: {**common, **parcel} for name, parcel in parcels.items()}
        questions = self.link.ask(kind, full, about, minimum, good, str(turn.round), room)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / MESSAGES).open("ab") as file:
            for q in questions.values():
                # Bytes are as sent, without names and envelope.
                down, fault = messages.size(q.parcel) * q.attempts, "" if q.answer else q.fault
                line = {**at, "site": q.site, "kind": kind, "down": down, "up": q.up}
                line |= {"entry": q.entry} if q.entry else {}
                file.write(to_line({**line, "seconds": round(q.seconds, 3), "fault": fault}))
        return questions


class SealedSites(channelled.Channelled):
    """`Sites` behind a channel; no client and no memory is here."""

    def __init__(self, sites: Sites, serve: channelled.Serve, memories: Memories | None) -> None:
        super().__init__(sites, serve, memories)
        self.sites = sites

    def exchange(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], opened: channelled.Opened
    ) -> list[Reply]:
        clear, cargo = self.server.clear(inbox), self.server.cargo()
        more: dict[str, Value] = {terms.CARGO + n: content for n, content in cargo.items()}

        def unpacked(name: str, parcel: Parcel) -> Reply:
            rows = messages.named(parcel, terms.SEALED, bytes)
            state = messages.named(parcel, terms.CARGO, bytes).get(kinds.STATE, b"")
            scalars = messages.to_reply(parcel).scalars
            return opened(name, channelled.SealedReply(scalars, rows, state))

        return self.sites.replies(exchange, clear, clients, self.turn, more, unpacked, inbox)

    def put(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        parcels = {n: {"question": self._again(n, q)} for n, q in questions.items()}
        room = SEALED * self.sites.model.vector.numel() + CIPHERTEXTS
        asks = self.sites.ask(terms.ASK, parcels, self.turn, room=room)
        answers = {name: (q.answer or {}).get("answer") for name, q in asks.items()}
        return {name: reply for name, reply in answers.items() if isinstance(reply, bytes)}

    def _again(self, name: str, question: bytes) -> bytes:
        """Return a question as it was asked first, if a server that was killed has asked it.

        A site answers one question of a kind at a position, and products are covered by fresh
        random numbers each time. Under masks each site remembers what it opened, instead.
        """
        if not self.server.form:
            return question
        head, _ = wire.unpack(question, "a question")
        round, folder = self.turn.round, self.sites.folder / ASKED
        about = f"{self.turn.exchange}/{head['slot']}/{head['kind']}/{name}"
        path = folder / f"{round}-{client_memories.slug(about)}"
        for old in folder.glob("*"):
            if not old.name.startswith(f"{round}-"):
                old.unlink()
        if not path.is_file():
            write_atomically(path, question)
        return path.read_bytes()

    def to_checkpoint(self) -> Memories:
        """Return what a blind server carries; of the sites nothing."""
        return self.server.save()

    def restore(self) -> None:
        self.server.load(self.saved)


def placed(
    study: StudySpec, sites: Sites, model: Model, clients: Mapping[str, Client],
    memories: Memories | None,
) -> Backend:  # fmt: skip
    """Return the backend of one job, behind the study's channel if it has one."""
    position = replace(sites.position, layout=terms.fingerprint(model))
    sites = replace(sites, model=model, position=position)
    kind = channel.read(study.privacy.channel, study.privacy.server)
    if not kind.hides:
        return sites
    # The SuperLink's home is in the kit that it was started from.
    kit = Path(os.environ.get("FLWR_HOME", "home")).parent
    files = {n: (kit / n).read_bytes() for n in kind.server_files if (kit / n).is_file()}
    for name in kind.server_files:
        if name not in files:
            what = f"privacy.channel = {study.privacy.channel!r} needs {name} in its kit."
            raise UnseenError(what, remedy="Make the kits with ckks = true.")
    return SealedSites(replace(sites, sealed=True), partial(kind.server, files), memories)
