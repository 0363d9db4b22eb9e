"""Receipts at the server, which passes on to each site what the others signed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unseen.core.atomic import write_atomically
from unseen.engine.messages import Value
from unseen.errors import BadReply, UnseenError
from unseen.privacy.signing import Document, check
from unseen.sites.kits.signatures import RECEIPT

#: The folder of a job in which the server keeps them.
FOLDER = "receipts"


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
