"""Everybody trains on from the same model: sites sign what they received, and compare.

A site's answer to an exchange carries a receipt: its signature under the digest of the message. The
next message of the job carries the receipts of that exchange. A site goes on only if enough sites
received the same, itself included, and stops if two of them received different messages. The server
keeps the receipts and passes them on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unseen.core.atomic import write_atomically
from unseen.engine.messages import Value
from unseen.errors import BadReply, UnseenError
from unseen.sites.flower.admitted import Admitted
from unseen.sites.flower.once import digest_at
from unseen.sites.flower.script import Position, before, due_at
from unseen.sites.kits.signatures import (
    MEMBER,
    MEMBER_KEY,
    RECEIPT,
    Document,
    check,
    check_member,
    read,
    revoked,
    signed,
)

RULE = "receipts"
#: The folder of a job in which the server keeps them.
FOLDER = "receipts"


def receipt(asked: Admitted) -> str:
    """Return this site's signature under the message that it answers."""
    kit = asked.site.kit or Path()
    if not (kit / MEMBER).is_file():
        what = f"The kit {kit} has no {MEMBER}, so that this site cannot sign what it received."
        raise UnseenError(what, remedy="Get a kit from the authority: `federation provision`.")
    position, run = asked.position, asked.agreement.run
    statement = {
        "kind": RECEIPT, "job": position.key(run), "round": position.round,
        "exchange": position.exchange, "message": asked.question.payload,
        "site": read(kit / MEMBER),
    }  # fmt: skip
    return json.dumps(signed(statement, kit / MEMBER_KEY))


def breaches(asked: Admitted) -> Iterator[str]:
    """Yield why the sites did not all receive the same message before this one."""
    last = before(asked.runtime, asked.position)
    if last is None:
        if asked.question.head.receipts:
            yield "receipts came before anything was trained"
        return
    round, exchange = last
    position = Position(**{**vars(asked.position), "round": round, "exchange": exchange})
    due = due_at(asked.runtime, asked.whole_task, position)
    assert not isinstance(due, str)
    received = {name: digest for name, digest in _valid(asked, position) if name in due.names}
    own = digest_at(asked, due)
    if own is not None:
        received[asked.site.name] = own
    where = f"round {round + 1}, {exchange}"
    if len(set(received.values())) > 1:
        names = ", ".join(sorted(received))
        yield f"the server sent different messages in {where}; received by {names}"
    least = min(asked.site.policy.least.sites, len(due.names))
    if len(received) < least:
        yield f"{len(received)} of at least {least} sites confirmed what came in {where}"


def _valid(asked: Admitted, position: Position) -> Iterator[tuple[str, str]]:
    """Yield site and digest of each receipt of a position that a site of the federation signed."""
    kit = asked.site.kit or Path()
    revoked_keys, key = revoked(kit), position.key(asked.agreement.run)
    about = {"kind": RECEIPT, "job": key, "round": position.round, "exchange": position.exchange}
    for document in asked.question.head.receipts:
        try:
            name = check_member(kit, document["site"], asked.site.federation, revoked_keys)
            check(document, str(document["site"]["key"]), f"the receipt of {name}")
        except (UnseenError, KeyError, TypeError):
            continue  # it counts for nobody
        if all(document.get(word) == value for word, value in about.items()):
            yield name, str(document.get("message"))


def check_receipt(answer: Mapping[str, Value], payload: str) -> dict[str, Any]:
    """Return the receipt in a site's answer, for the other sites."""
    try:
        document = dict(json.loads(str(answer.get(RECEIPT))))
        check(document, str(document["site"]["key"]), "its receipt")
        own = document["message"], document["site"]["name"]
    except (UnseenError, ValueError, KeyError, TypeError):
        raise BadReply("a receipt of the message that cannot be read") from None
    if own != (payload, answer.get("site")):
        raise BadReply("a receipt of another message than it was sent")
    return document


def write_receipts(folder: Path, round: int, order: int, receipts: Sequence[Document]) -> None:
    """Keep the receipts of an exchange, at the server."""
    content = json.dumps(list(receipts)).encode()
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    write_atomically(folder / FOLDER / f"{round}-{order}.json", content)


def last_receipts(folder: Path, round: int, order: int) -> list[dict[str, Any]]:
    """Return the receipts of the last exchange before a place in a job; see `write_receipts`."""
    places = [tuple(map(int, path.stem.split("-"))) for path in (folder / FOLDER).glob("*.json")]
    earlier = [place for place in places if place < (round, order)]
    if not earlier:
        return []
    last = "-".join(map(str, max(earlier)))
    return list(json.loads((folder / FOLDER / f"{last}.json").read_bytes()))
