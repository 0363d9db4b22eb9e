"""One answer for one position: the same question gets the same answer, any other is refused.

The memory is the site's ledger, whose lines say at which position of which job an answer left, and
to which question. The answers themselves are kept until the next round.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unseen.core.atomic import write_atomically
from unseen.engine.messages import Value
from unseen.privacy import kinds, wire
from unseen.sites.flower import terms
from unseen.sites.flower.admitted import Admitted
from unseen.sites.flower.script import Due
from unseen.sites.flower.site_question import EXCHANGE, SUMS
from unseen.sites.flower.terms import Refused
from unseen.sites.policy.site_ledger import Line, digest_of_parcel

RULE = "once"
#: Of a job's state: the folder of the answers of its last round.
ANSWERS = "answers"
#: What comes before the first round, and after the last.
FIRST, LAST = -1, 2**31
#: Name -> what a line of the ledger says of a question's position.
AT, PAYLOAD, STATISTICS = "at", "payload", "sums"


@dataclass(frozen=True, order=True)
class Place:
    """A position within a job, in the order in which a run comes to them.

    `part` is which question of a channel it is, within the exchange; "" for the exchange itself.
    """

    round: int
    order: int
    part: str = ""

    def __str__(self) -> str:
        return f"{self.round}/{self.order}/{self.part}"

    @property
    def file(self) -> str:
        return f"{self.round}-{self.order}-{self.part}"


def place_of(asked: Admitted) -> Place:
    """Return the position of a question within its job."""
    if asked.kind == SUMS:
        return Place(FIRST, 0)
    if asked.kind in (terms.MEASURE, terms.KEEP):
        return Place(LAST, int(asked.kind == terms.KEEP))
    turn = asked.due.turn
    return Place(turn.round, turn.order, _part(asked) if asked.kind == terms.ASK else "")


def _part(asked: Admitted) -> str:
    """Which question of a channel it is: its kind and slot."""
    question = asked.parcel["question"]
    assert isinstance(question, bytes)
    head, _ = wire.unpack(question, kinds.QUESTION)
    text = json.dumps([str(head.get("kind")), str(head.get("slot"))])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def said_of(asked: Admitted) -> dict[str, str]:
    """Return what the ledger says of the position of an answer."""
    key = asked.position.key(asked.agreement.run)
    own = {AT: f"{key}/{place_of(asked)}", PAYLOAD: asked.question.payload}
    sums = asked.parcel.get(terms.STATISTICS)
    return own | ({STATISTICS: digest_of_parcel({"": sums})} if sums is not None else {})


def digest_at(asked: Admitted, due: Due) -> str | None:
    """Return the digest of the message that this site answered at another position of the job."""
    key = asked.position.key(asked.agreement.run)
    at = f"{key}/{Place(due.turn.round, due.turn.order)}"
    here = (line for line in asked.lines if _is_of(line, asked.proposal.digest, key))
    return next((str(line[PAYLOAD]) for line in here if line[AT] == at), None)


def check_new(asked: Admitted) -> None:
    """Refuse another question than the one that was answered at a position, before its data."""
    position, key = asked.position, asked.position.key(asked.agreement.run)
    here = {"kind": asked.kind, "round": position.round, "exchange": position.exchange}
    for line in asked.lines:
        used = _is_of(line, asked.proposal.digest, key) and asked.kind != terms.ASK
        used = used and all(line.get(name) == value for name, value in here.items())
        if used and line[PAYLOAD] != asked.question.payload:
            where = f"round {position.round + 1}, {position.exchange}"
            raise Refused(f"another question was answered at this position: {where}.", RULE)


def before(asked: Admitted) -> dict[str, Value] | None:
    """Return the answer that left before to the same question; None where none did."""
    own, key = said_of(asked), asked.position.key(asked.agreement.run)
    used = [line for line in asked.lines if _is_of(line, asked.proposal.digest, key)]
    here, masked = place_of(asked), _masked(asked)
    sums = {line[STATISTICS] for line in used if STATISTICS in line}
    if STATISTICS in own and sums - {own[STATISTICS]}:
        raise Refused("other sums standardised this job's columns before.", RULE)
    whole = [place for place in map(_place, used) if not place.part]
    last = max(whole, default=None)
    if asked.kind == terms.ASK:
        sealed = Place(here.round, here.order) in whole
        if last is None or not sealed or last.round != here.round:
            raise Refused("no row was sealed here in this round for that exchange.", RULE)
        if masked:
            return None  # its side remembers what it helped to open
    same = [line for line in used if line[AT] == own[AT]]
    if any(line[PAYLOAD] != own[PAYLOAD] for line in same):
        where = f"round {here.round + 1}, " if here.round not in (FIRST, LAST) else ""
        what = f"{where}{asked.position.exchange or asked.kind}"
        raise Refused(f"another question was answered at this position: {what}.", RULE)
    if same and last is not None and FIRST < here.round < last.round:
        raise Refused("this job is past that round: its answers are gone.", RULE)
    if same and masked:
        return None  # the same rows, sealed again
    if same:
        return _stored_answer(asked, here)
    if last is not None and not here.part and here < last:
        raise Refused("this job is past that position: positions only go forward.", RULE)
    return None


def _masked(asked: Admitted) -> bool:
    """Return whether an answer is of rows under masks, which this site's side remembers."""
    sealing = asked.kind in (EXCHANGE, terms.ASK) and bool(asked.exchange.slots)
    return sealing and asked.channel.masked


def _is_of(line: Line, study: str, key: str) -> bool:
    of_job = line.get("study") == study and str(line.get(AT, "")).startswith(f"{key}/")
    return of_job and "rule" not in line


def _place(line: Mapping[str, Any]) -> Place:
    _, round, order, part = str(line[AT]).split("/")
    return Place(int(round), int(order), part)


def _stored_answer(asked: Admitted, place: Place) -> dict[str, Value] | None:
    """Return an answer from the disk. One that was lost is made again, but for decrypted ones."""
    path = asked.folder / ANSWERS / place.file
    if path.is_file():
        head, parts = wire.unpack(path.read_bytes(), "an answer that is kept")
        content = dict(zip(head["bytes"], map(bytes, parts), strict=True))
        return {**wire.decode(head["others"]), **content}
    if asked.kind == terms.ASK:
        raise Refused("this question was answered before, and the answer is not here.", RULE)
    return None


def keep(asked: Admitted, answer: Mapping[str, Value]) -> None:
    """Keep an answer for the same question again, and forget those of earlier rounds."""
    if _masked(asked):
        return
    place, folder = place_of(asked), asked.folder / ANSWERS
    for path in folder.glob("*"):
        if not path.name.startswith((f"{place.round}-", f"{FIRST}-")):
            path.unlink()
    content = {name: value for name, value in answer.items() if isinstance(value, bytes)}
    others = {name: value for name, value in answer.items() if name not in content}
    head = {"bytes": [*content], "others": wire.encode(others)}
    write_atomically(folder / place.file, wire.pack(head, [*content.values()]))
