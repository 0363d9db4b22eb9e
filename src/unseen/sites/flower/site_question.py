"""A message of the server as a site reads it, before anything is computed for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from unseen.engine.messages import INBOX, Parcel, Value
from unseen.sites.flower import terms
from unseen.sites.flower.script import STRICT, Agreement, Position
from unseen.sites.flower.terms import PROTOCOL, Refused
from unseen.sites.policy.approvals import Proposal
from unseen.sites.policy.site_ledger import digest_of_parcel
from unseen.studies.settings.study import StudySpec
from unseen.version import __version__

HELLO, SUMS, EXCHANGE = "hello", "statistics", "exchange"
#: What every message has, and beside it what one of each kind may have: names of values, and
#: prefixes that end in a stroke, each with its type.
ENVELOPE = {"kind": str, "protocol": int, "about": str, "head": str}
STATE = {INBOX: Tensor, terms.CARGO: bytes, terms.STATISTICS: Tensor}
CONTENT: Mapping[str, Mapping[str, type]] = {
    HELLO: {},
    SUMS: {INBOX: Tensor},
    EXCHANGE: STATE,
    terms.ASK: {"question": bytes, terms.STATISTICS: Tensor},
    terms.MEASURE: STATE,
    terms.KEEP: {**STATE, "spec": str, "records": str, "tensors": bytes},
}


@dataclass(frozen=True)
class Head:
    """What a message says in words.

    `run` is the run that a site is asked to take part in before it is agreed on, `receipts` those
    of the job's last exchange.
    """

    __pydantic_config__ = STRICT

    study: dict[str, Any]
    signature: dict[str, Any] = field(default_factory=dict)
    run: str = ""
    agreement: Agreement | None = None
    position: Position | None = None
    receipts: list[dict[str, Any]] = field(default_factory=list)


HEAD = TypeAdapter(Head)
#: What of a head does not enter the digest of a message: a coordinator may sign again, and sites
#: check receipts one by one.
SIGNED = ("signature", "receipts")


@dataclass(frozen=True)
class Question:
    """A message, parsed. It computes nothing, and nothing that computes takes it."""

    kind: str
    about: str
    head: Head
    agreed: StudySpec
    parcel: Parcel

    @classmethod
    def read(cls, parcel: Parcel) -> Self:
        """Return the message."""
        if parcel.get("protocol") != PROTOCOL:
            values = f"the server says {parcel.get('protocol')!r}, the site {PROTOCOL!r}"
            raise Refused(f"the protocol does not match: {values}.")
        kind = str(parcel.get("kind"))
        if kind not in CONTENT:
            raise Refused(f"was asked for {kind[:40]!r}; this site knows {', '.join(CONTENT)}.")
        _check_fields(kind, parcel)
        try:
            head = HEAD.validate_json(str(parcel["head"]))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))[:80]
            what = f"the head of the message cannot be read: {first['msg']}"
            raise Refused(f"{what}: {where}." if where else f"{what}.") from None
        if {head.agreement is None, head.position is None} != {kind == HELLO}:
            raise Refused(f"a message of the kind {kind!r} has no such head.")
        if head.receipts and kind != EXCHANGE:
            raise Refused(f"a message of the kind {kind!r} has no receipts.")
        if kind == HELLO and parcel["about"] != HELLO:
            raise Refused("a hello is about nothing else.")
        try:
            study = StudySpec(**head.study)
            question = cls(kind, str(parcel["about"]), head, study, parcel)
            _ = question.proposal.digest, question.payload  # of numbers that JSON can hold
        except (TypeError, ValueError) as error:  # it speaks of the study alone
            raise Refused(f"the study cannot be read: {error}", "study") from None
        return question

    @cached_property
    def proposal(self) -> Proposal:
        return Proposal(self.agreed, self.head.signature)

    @property
    def position(self) -> Position | None:
        """What is asked for; nothing in a hello."""
        return self.head.position

    @property
    def run(self) -> str:
        """The run's number."""
        agreement = self.head.agreement
        return self.head.run if agreement is None else agreement.run

    @cached_property
    def payload(self) -> str:
        """The digest of all that is asked, by which a question is known to be the same again."""
        words = {name: value for name, value in asdict(self.head).items() if name not in SIGNED}
        own: dict[str, Value] = {**self.parcel, "head": json.dumps(words, sort_keys=True)}
        return digest_of_parcel(own)


def payload_of(kind: str, about: str, parcel: Parcel) -> str:
    """Return the digest of a message that the server sends, as the sites that get it find it."""
    envelope: dict[str, Value] = {"kind": kind, "protocol": PROTOCOL, "about": about}
    return Question.read({**envelope, **parcel}).payload


def _check_fields(kind: str, parcel: Parcel) -> None:
    """Refuse a message with a field that its kind has not, or of another type."""
    if missing := [name for name in ENVELOPE if name not in parcel]:
        raise Refused(f"the message lacks {', '.join(missing)}.")
    fields = {**ENVELOPE, **CONTENT[kind]}
    for name, value in parcel.items():
        prefix = next((p for p in fields if p.endswith("/") and name.startswith(p)), name)
        sort = fields.get(prefix)
        if sort is None or not isinstance(value, sort):
            raise Refused(f"a message of the kind {kind!r} has no field {name[:60]!r} like this.")


def match(what: str, server: object, site: object, rule: str = "study") -> None:
    """Refuse a message that says something else than the site finds."""
    if server != site:
        values = f"the server says {server!r}, the site {site!r} (unseen {__version__})"
        raise Refused(f"{what} does not match: {values}.", rule)
