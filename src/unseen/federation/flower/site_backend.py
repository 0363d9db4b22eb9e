"""The backend whose clients are sites: an exchange is one question to each of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from unseen.core.client import Client, Memories
from unseen.core.exchange import Exchange, Reply, Turn
from unseen.core.replies import find_fault
from unseen.core.round import Backend
from unseen.core.rows import DenseRows
from unseen.core.types import Inbox
from unseen.core.vector import Model
from unseen.engine.inprocess import stacked
from unseen.engine.messages import Parcel, Value, from_inbox, from_turn, size, to_reply
from unseen.federation.flower.protocol import STATISTICS, fingerprint
from unseen.federation.flower.site_messages import KEPT, Link, Question, Waiting, whys
from unseen.results.records import to_line

MESSAGES = "messages.jsonl"


@dataclass
class Sites(Backend):
    """The backend of one job whose clients are sites.

    Attributes:
        head: What every message of the job says.
        roles: Site -> its role in the task.
        folder: Where the account of messages is written.
        statistics: Sums by which tables are standardised.
        memories: Empty: each site keeps its own.
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

    @classmethod
    def place(
        cls, link: Link, head: Mapping[str, Any], roles: Mapping[str, str], folder: Path,
        statistics: Tensor | None, model: Model, clients: Mapping[str, Client],
        memories: Memories | None,
    ) -> Sites:  # fmt: skip
        """Return the backend as `unseen.study.job` makes it, the first five bound beforehand."""
        head = {**head, "layout": fingerprint(model)}
        return cls(link, head, roles, folder, model, statistics)

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

        questions = self._ask(self.kind, dict.fromkeys(clients, sent), turn, minimum, good)
        if minimum and not exchange.slots and not any(q.answer for q in questions.values()):
            faults = whys({name: q.fault for name, q in questions.items()})
            raise Waiting(f"no site could evaluate in {turn.exchange}{faults}. {KEPT}")
        # A bad answer is left where it is: what is wrong with it is known.
        return [
            replies[name]
            if questions[name].answer is not None
            else Reply(fault=questions[name].fault)
            for name in clients
        ]

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> DenseRows:
        """Return the slot's rows as a matrix."""
        return DenseRows(stacked([reply.rows[slot] for reply in replies]), reference)

    def ask(self, kind: str, parcels: Mapping[str, Parcel], turn: Turn) -> dict[str, Parcel]:
        """Ask the sites something else within an exchange; leave out those that do not answer."""
        questions = self._ask(kind, parcels, turn, 0, lambda answer: None)
        return {name: q.answer for name, q in questions.items() if q.answer is not None}

    def _ask(
        self,
        kind: str,
        parcels: Mapping[str, Parcel],
        turn: Turn,
        minimum: int,
        good: Callable[[Mapping[str, Value]], str | None],
    ) -> dict[str, Question]:
        about = (
            f"{self.head['method']} · {self.head['task']} · seed {self.head['seed']} · round "
            f"{turn.round} · {turn.exchange} · layout {self.head['layout']}"
        )
        self.link.tell(
            round=turn.round, rounds=turn.rounds, exchange=turn.exchange, waiting="",
            **{key: self.head[key] for key in ("method", "task", "seed")},
        )  # fmt: skip
        common: dict[str, Value] = {} if self.statistics is None else {STATISTICS: self.statistics}
        full = {
            name: {**common, **parcel, "head": json.dumps(self._head(name, from_turn(turn)))}
            for name, parcel in parcels.items()
        }
        questions = self.link.ask(kind, full, about, minimum, good, str(turn.round))
        self._account(kind, turn, questions.values())
        return questions

    def _head(self, name: str, turn: Mapping[str, Any]) -> dict[str, Any]:
        facts = self.link.facts.get(name)
        part = {"role": self.roles.get(name, "source"), "digest": facts.digest if facts else ""}
        return {**self.head, **part, "turn": turn}

    def _account(self, kind: str, turn: Turn, questions: Iterable[Question]) -> None:
        """One line per message: bytes as sent, without names and envelope, and seconds."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / MESSAGES).open("ab") as file:
            for q in questions:
                line = {
                    "round": turn.round, "exchange": turn.exchange, "site": q.site, "kind": kind,
                    "down": size(q.parcel) * q.attempts, "up": q.up,
                    "seconds": round(q.seconds, 3), "fault": "" if q.answer else q.fault,
                }  # fmt: skip
                file.write(to_line(line))
