"""Everybody trains on from the same model: sites sign what they received, and compare.

A site's answer to an exchange carries a receipt: its signature under the digest of the message. The
next message of the job carries the receipts of that exchange. A site goes on only if enough sites
received the same, itself included, and stops if two of them received different messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.privacy.signing import Document, check, read, signed
from unseen.sites.flower.admitted import Admitted
from unseen.sites.flower.once import digest_at
from unseen.sites.flower.script import Position, before, due_at
from unseen.sites.kits.signatures import MEMBER, MEMBER_KEY, RECEIPT, check_member, revoked

RULE = "receipts"


def receipt(asked: Admitted) -> str:
    """Return this site's signature under the message that it answers."""
    kit = asked.site.kit or Path()
    if not (kit / MEMBER).is_file():
        what = f"The kit {kit} has no {MEMBER}, so that this site cannot sign what it received."
        raise UnseenError(what, remedy="Get a kit from the authority: `federation provision`.")
    return json.dumps(signed(_statement(asked, read(kit / MEMBER)), kit / MEMBER_KEY))


def _statement(asked: Admitted, certificate: Document) -> dict[str, Any]:
    position, run = asked.position, asked.agreement.run
    return {
        "kind": RECEIPT, "job": position.key(run), "round": position.round,
        "exchange": position.exchange, "message": asked.question.payload, "site": certificate,
    }  # fmt: skip


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
