"""What an observer sees from another machine: how the last run stands, and its table.

The request is a document that the person's key signs, with the certificate that the federation's
authority gave: the server answers observers and coordinators, and nobody else. No record, no update
and no model is in the answer.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.federation.kits.kit import Kit
from unseen.federation.kits.signatures import (
    PERSON,
    PERSON_KEY,
    authority_of,
    check_person,
    revoked,
)
from unseen.federation.monitor import RUN, STANDING, content_of
from unseen.signing import check, read, signed

#: Where a person asks.
VIEW = "/unseen/status"
#: Bytes of a request and of an answer, seconds that a request is good for.
MOST, ANSWER, GOOD = 16 * 2**10, 2**22, 120
#: Who may see it, and the files of records that are shown whole.
ROLES, TABLES = ("observer", "coordinator"), ("table.txt", "sites.txt")


def request_of(kit: Path, now: datetime | None = None) -> bytes:
    """Return a person's request, as it is sent.

    Args:
        kit: The person's kit.
        now: The time; None for the clock's.
    """
    certificate = read(kit / PERSON)
    moment = (now or datetime.now(UTC)).isoformat(timespec="seconds")
    content = {"kind": "view", "federation": certificate["federation"], "time": moment}
    return json.dumps(signed({**content, "person": certificate}, kit / PERSON_KEY)).encode()


def view(kit: Path, body: bytes) -> dict[str, Any]:
    """Return what a person may see.

    Args:
        kit: The server's kit.
        body: The request.

    Raises:
        UnseenError: It is not of a person of this federation, or too old.
    """
    try:
        document = json.loads(body)
        person, moment = dict(document["person"]), datetime.fromisoformat(document["time"])
        role, kind, federation = person["role"], document["kind"], document["federation"]
        old = abs(datetime.now(UTC) - moment) > timedelta(seconds=GOOD)
    except (ValueError, KeyError, TypeError):
        raise UnseenError("this is not a request of a person.") from None
    if role not in ROLES:
        raise UnseenError(f"a person of the role {role!r} sees nothing here.")
    check_person(person, authority_of(kit), revoked(kit), role)
    check(document, str(person["key"]), "the request")
    if kind != "view" or federation != person["federation"] or old:
        raise UnseenError("the request is of something else, or too old.")
    out = Path(str(content_of(kit / "state" / RUN).get("out", "")))
    if not out.is_absolute():
        return {"standing": {}, "tables": {}}
    # A model's records lie in its directory, and its table beside them.
    files = {name: folder / name for folder in (out.parent, out) for name in TABLES
             if (folder / name).is_file() and (folder == out or name == TABLES[1])}  # fmt: skip
    tables = {name: file.read_text("utf-8") for name, file in files.items()}
    return {"standing": content_of(out / STANDING), "tables": tables}


def ask(kit: Kit, timeout: float = 20.0) -> Mapping[str, Any]:
    """Return what the server of a person's kit shows to that person.

    Args:
        kit: The person's kit.
        timeout: Seconds to wait.
    """
    context = ssl.create_default_context(cafile=str(kit.folder / "ca.crt"))
    line = http.client.HTTPSConnection(kit.servers[0], kit.port, timeout=timeout, context=context)
    try:
        line.request("POST", VIEW, body=request_of(kit.folder))
        response = line.getresponse()
        content = json.loads(response.read(ANSWER))
    except (OSError, http.client.HTTPException, ValueError) as error:
        what = f"{kit.address} does not answer as a federation's server ({error})."
        raise UnseenError(what) from None
    finally:
        line.close()
    if response.status != 200:
        raise UnseenError(f"the server refused: {content.get('error', response.status)}")
    return dict(content)
