"""What a site can learn of the server before it joins, and the names of what can be wrong."""

import http.client
import json
import socket
import ssl
import time
import tomllib
from base64 import b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from unseen.errors import UnseenError
from unseen.sites.kits.certificates import signature
from unseen.sites.kits.kit import Kit
from unseen.sites.templates import source
from unseen.version import __version__

#: Where a site asks before it joins; a body is counted and thrown away.
PROBE = "/unseen/probe"
#: Seconds within which a server that began lets in the sites whose keys it has.
LETTING_IN = 20.0
#: Headers of a signed request, as Flower's own.
KEY, SIGNATURE, STAMP = "flwr-public-key", "flwr-signature", "flwr-timestamp"


@dataclass(frozen=True)
class Answer:
    """The result of asking the server.

    `trouble` is a table of troubles.toml, empty if it answered; `check` the doctor's check that it
    belongs to; `date` the server's clock, in seconds since 1970.
    """

    trouble: str = ""
    text: str = ""
    check: str = "port"
    remedy: str = ""
    content: dict[str, Any] = field(default_factory=dict)
    date: float = 0.0
    seconds: float = 0.0
    certificate: bytes = b""


def ask(kit: Kit, size: int = 0, timeout: float = 10.0) -> Answer:
    """Ask the server's probe, in a request signed with the kit's key."""
    start, certificate, where = time.monotonic(), b"", (kit.servers[0], kit.port)
    context = ssl.create_default_context(cafile=str(kit.folder / "ca.crt"))
    connection = http.client.HTTPSConnection(*where, timeout=timeout, context=context)
    try:
        connection.connect()
        if isinstance(connection.sock, ssl.SSLSocket):
            certificate = connection.sock.getpeercert(binary_form=True) or b""
        connection.request("POST", PROBE, body=bytes(size), headers=signed(kit))
        response = connection.getresponse()
        body = response.read(2**20)
        if response.status != 200:
            why = f"{response.status} {response.reason} to {size:,}"
            return _failed(kit, "foreign", "status", why)
        content = json.loads(body)
        date = float(content["time"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        return _failed(kit, *_named(error))
    finally:
        connection.close()
    seconds = time.monotonic() - start
    return Answer(content=content, date=date, seconds=seconds, certificate=certificate)


def _failed(kit: Kit, trouble: str, words: str, why: object) -> Answer:
    table: dict[str, str] = tomllib.loads(source("troubles.toml"))[trouble]
    text = table[words].format(where=kit.address, host=kit.servers[0], why=why)
    return Answer(trouble, text, table["check"], table["remedy"])


def _named(error: Exception) -> tuple[str, str, object]:
    """What went wrong: a table of troubles.toml, its words for it, and the system's reason."""
    match error:
        case ssl.SSLCertVerificationError(verify_code=10):
            return "expired", "over", ""
        case ssl.SSLCertVerificationError(verify_code=9):
            return "early", "early", ""
        case ssl.SSLCertVerificationError(verify_code=62 | 64):
            return "hostname", "other", error.verify_message
        case ssl.SSLCertVerificationError():
            return "authority", "other", error.verify_message
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER" | "RECORD_LAYER_FAILURE" | "HTTP_REQUEST"):
            return "plaintext", "answered", ""
        case ssl.SSLError():
            return "tls", "failed", error.reason or error
        case socket.gaierror():
            return "name", "unknown", error.strerror
        case ConnectionRefusedError():
            return "unreachable", "refused", ""
        case TimeoutError():
            return "unreachable", "silent", ""
        case http.client.HTTPException() | ConnectionError():
            return "foreign", "strange", type(error).__name__
        case OSError():
            return "unreachable", "other", error.strerror or error
    return "foreign", "other", ""


def signed(kit: Kit) -> dict[str, str]:
    """Return headers by which the kit's key is known; none for a server's kit."""
    if kit.kind != "site" or not kit.private_key.is_file():
        return {}
    stamp = datetime.now(UTC).isoformat()
    public, sign = signature(kit.private_key, stamp)
    return {KEY: b64encode(public).decode(), SIGNATURE: b64encode(sign).decode(), STAMP: stamp}


def versions() -> dict[str, str]:
    """Return the versions that both sides must agree on."""
    try:
        flower = version("flwr")
    except PackageNotFoundError:
        flower = "absent"
    return {"unseen": __version__, "flower": flower}


def unregistered(kit: Kit, answer: Answer) -> UnseenError | None:
    """Return an error if the server that answered does not know the key of a site's kit as its."""
    if kit.kind == "server":
        return None
    if answer.content.get("registered") is True:
        owner = str(answer.content.get("name") or kit.name)
        if owner == kit.name:
            return None
        what = f"another site's key: the server knows the key of {kit.name}'s kit as {owner}'s."
        return UnseenError(what, remedy=f"Copy site.key and site.pub of {kit.name} from its kit.")
    what = f"unregistered key: the server does not know the key of {kit.name}."
    copy = f"Copy site.pub into the server's kit as sites/{kit.name}.pub"
    return UnseenError(what, remedy=f"{copy}, or get a new kit from the organiser.")


def other_versions(answer: Answer) -> UnseenError | None:
    """Return an error if the server has another release; it tells strangers none.

    Of Flower's three numbers the last may differ; of ours none, since the app that the server sends
    is of its own release, and a site runs only the one that it has.
    """
    for name, here in versions().items() if "unseen" in answer.content else ():
        there, numbers = str(answer.content.get(name, "?")), 3 if name == "unseen" else 2
        if here.split(".")[:numbers] != there.split(".")[:numbers]:
            what = f"versions differ: {name} {here} here, {there} there."
            way = "from a checkout of it" if name == "unseen" else f"pip install 'flwr=={there}'"
            return UnseenError(what, remedy=f"Install {name} {there} here: {way}.")
    return None
