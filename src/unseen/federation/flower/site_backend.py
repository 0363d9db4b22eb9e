"""The backend whose clients are sites: an exchange is one question to each of them.

Behind a channel rows leave their site sealed, and questions about them come to it as messages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from unseen.core.client import Client, Memories
from unseen.core.exchange import Exchange, Reply
from unseen.core.replies import find_fault
from unseen.core.round import Backend
from unseen.core.rows import DenseRows
from unseen.core.turn import Turn
from unseen.core.types import Inbox
from unseen.core.vector import Model
from unseen.engine.inprocess import stacked
from unseen.engine.messages import (
    INBOX,
    Parcel,
    Value,
    from_inbox,
    from_turn,
    named,
    size,
    to_reply,
)
from unseen.errors import UnseenError
from unseen.federation.flower.site_messages import KEPT, Judge, Link, Question, Waiting, whys
from unseen.federation.flower.terms import ASK, CARGO, SEALED, STATISTICS, fingerprint
from unseen.privacy import channel, channelled, kinds
from unseen.privacy.channelled import SealedReply
from unseen.results.records import to_line
from unseen.spec.study import StudySpec

MESSAGES = "messages.jsonl"


@dataclass
class Sites(Backend):
    """The backend of one job whose clients are sites.

    Attributes:
        link: The line to them.
        head: What every message of the job says.
        roles: Site -> its role in the task.
        folder: Where the account of messages is written.
        model: The network, as the server has it.
        statistics: Sums by which tables are standardised.
        memories: Empty: each site keeps its own.
        clients: Empty: none is here.
        kind: What is asked of the sites.
    """

    link: Link
    head: Mapping[str, Any]
    roles: Mapping[str, str]
    folder: Path
    model: Model
    statistics: Tensor | None = None
    memories: Memories = field(default_factory=Memories)
    clients: Mapping[str, Client] = field(default_factory=dict)
    kind: str = "exchange"

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        """Send one message to each client; a missing or bad answer becomes a fault."""
        replies = self.replies(exchange, inbox, clients, turn, {}, lambda _, sent: to_reply(sent))
        device = self.model.device
        return [
            replace(reply, rows={slot: row.to(device) for slot, row in reply.rows.items()})
            for reply in replies
        ]

    def replies(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn, more: Parcel,
        opened: Callable[[str, Mapping[str, Value]], Reply],
    ) -> list[Reply]:  # fmt: skip
        """Send the inbox to each client and return their replies.

        Args:
            exchange: What is asked for.
            inbox: The state that is sent.
            clients: To whom.
            turn: Which exchange of which round it is.
            more: What else is sent; it overrides inbox entries of the same name.
            opened: (site, its answer) -> the reply in it.
        """
        sent = {**from_inbox(inbox), **more}
        counted = [name for name in clients if self.roles.get(name) != "target"]
        minimum = min(self.link.limits.minimum, len(counted))
        replies: dict[str, Reply] = {}

        def good(answer: Mapping[str, Value]) -> str | None:
            name = str(answer["site"])
            replies[name] = opened(name, answer)
            return find_fault(replies[name], exchange, inbox)

        questions = self.ask(self.kind, dict.fromkeys(clients, sent), turn, minimum, good)
        faults = {name: q.fault for name, q in questions.items() if q.answer is None}
        if minimum and not exchange.slots and len(faults) == len(questions):
            why = f"no site could evaluate in {turn.exchange}{whys(faults)}."
            raise Waiting(why, remedy=KEPT)
        # A bad answer is left where it is: what is wrong with it is known.
        return [Reply(fault=faults[name]) if name in faults else replies[name] for name in clients]

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> DenseRows:
        """Return the slot's rows as a matrix."""
        return DenseRows(stacked([reply.rows[slot] for reply in replies]), reference)

    def ask(
        self, kind: str, parcels: Mapping[str, Parcel], turn: Turn, minimum: int = 0,
        good: Judge = lambda answer: None,
    ) -> dict[str, Question]:  # fmt: skip
        """Ask the sites within an exchange; every message is accounted for.

        Args:
            kind: What is asked.
            parcels: Site -> what is sent, to which the head of the job is added.
            turn: Which exchange of which round it is.
            minimum: How many good answers are needed.
            good: Returns what is wrong with an answer.
        """
        about = (
            f"{self.head['method']} · {self.head['task']} · seed {self.head['seed']} · round "
            f"{turn.round} · {turn.exchange} · layout {self.head['layout']}"
        )
        self.link.tell(
            round=turn.round, rounds=turn.rounds, exchange=turn.exchange, waiting="",
            **{key: self.head[key] for key in ("method", "task", "seed")},
        )  # fmt: skip
        common: dict[str, Value] = {} if self.statistics is None else {STATISTICS: self.statistics}
        full = {}
        for name, parcel in parcels.items():
            facts, role = self.link.facts.get(name), self.roles.get(name, "source")
            own = {"role": role, "digest": facts.digest if facts else "", "turn": from_turn(turn)}
            full[name] = {**common, **parcel, "head": json.dumps({**self.head, **own})}
        questions = self.link.ask(kind, full, about, minimum, good, str(turn.round))
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / MESSAGES).open("ab") as file:
            for q in questions.values():
                # Bytes are as sent, without names and envelope.
                line = {
                    "round": turn.round, "exchange": turn.exchange, "site": q.site, "kind": kind,
                    "down": size(q.parcel) * q.attempts, "up": q.up,
                    "seconds": round(q.seconds, 3), "fault": "" if q.answer else q.fault,
                }  # fmt: skip
                file.write(to_line(line))
        return questions


class SealedSites:
    """`Sites` as a channel's transport; no client and no memory is here."""

    def __init__(self, sites: Sites) -> None:
        self.backend = sites

    def exchange(self, mail: channelled.Mail, opened: channelled.Opened) -> list[Reply]:
        """Send the mail to each client, and return what is opened of their answers."""
        more: dict[str, Value] = {"hello": mail.hello}
        more |= {INBOX + name: "sealed" for name in mail.inbox.keys() - mail.clear.keys()}
        more |= {CARGO + name: content for name, content in mail.cargo.items()}

        def unpacked(name: str, parcel: Parcel) -> Reply:
            rows = named(parcel, SEALED, bytes)
            state = named(parcel, CARGO, bytes).get(kinds.STATE, b"")
            return opened(name, SealedReply(to_reply(parcel).scalars, rows, state))

        sent = mail.exchange, mail.inbox, mail.clients, mail.turn
        return self.backend.replies(*sent, more, unpacked)

    def ask(self, questions: Mapping[str, bytes], turn: Turn) -> dict[str, bytes]:
        """Return the answers of the sites that give one."""
        parcels = {name: {"question": question} for name, question in questions.items()}
        asked = self.backend.ask(ASK, parcels, turn)
        answers = {name: (q.answer or {}).get("answer") for name, q in asked.items()}
        return {name: reply for name, reply in answers.items() if isinstance(reply, bytes)}

    def save(self, server: kinds.ServerSide, turn: Turn) -> Memories:
        """Return what a blind server carries; of the sites nothing."""
        return server.save()

    def load(self, server: kinds.ServerSide, memories: Memories) -> None:
        """Let a blind server go on from what it carried."""
        server.load(memories)


def placed(
    study: StudySpec, sites: Sites, model: Model, clients: Mapping[str, Client],
    memories: Memories | None,
) -> Backend:  # fmt: skip
    """Return the backend of one job, behind the study's channel if it has one.

    Args:
        study: The study.
        sites: The job's sites, which are asked of no model yet.
        model: The network, as the server has it.
        clients: Stand-ins for the sites.
        memories: What a checkpoint held.
    """
    sites = replace(sites, model=model, head={**sites.head, "layout": fingerprint(model)})
    text, server = study.privacy.channel, study.privacy.server
    if text == "clear":
        return sites
    # The SuperLink's home is in the kit that it was started from.
    public = Path(os.environ.get("FLWR_HOME", "home")).parent / kinds.PUBLIC
    files = {kinds.PUBLIC: public.read_bytes()} if public.is_file() else {}
    if not files and text.startswith("ckks"):
        raise UnseenError(
            f"privacy.channel = {text!r} needs {kinds.PUBLIC} in the server's kit.",
            remedy="Make the kits with ckks = true.",
        )
    serve = partial(channel.server_side, channel.read(text, server), server, files)
    return channelled.Channelled(SealedSites(sites), serve, memories)
