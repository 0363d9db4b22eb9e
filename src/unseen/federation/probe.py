"""What a site can learn of the server before it joins, and the names of what can be wrong."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from base64 import b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from unseen.errors import UnseenError
from unseen.federation.certificates import signature
from unseen.federation.kit import Kit
from unseen.version import __version__

#: Where a site asks before it joins; a body is counted and thrown away.
PROBE = "/unseen/probe"
#: Headers of a signed request, as Flower's own.
KEY, SIGNATURE, STAMP = "flwr-public-key", "flwr-signature", "flwr-timestamp"
#: What to do about each trouble.
REMEDY = {
    "name": "Correct `servers` in kit.toml, or the machine's name service.",
    "unreachable": "Is the server started? Does the firewall let this machine out to that port?",
    "plaintext": "The server was started with --insecure: it must be started again without.",
    "secure": "Leave out --insecure.",
    "tls": "A device between the two may be ending TLS; ask the network's administrator.",
    "expired": "The federation's organiser renews the server's certificate: "
    "unseen federation provision --renew server",
    "authority": "The kit is of another federation, or older than its present authority, or a "
    "device between the two shows its own certificate. Get a new kit from the organiser.",
    "hostname": "Reach the server by a name in its certificate (`servers` in kit.toml), or the "
    "organiser adds the name to federation.toml and renews.",
    "foreign": "Something else than this federation's server answers at that address and port.",
}


@dataclass(frozen=True)
class Answer:
    """The result of asking the server.

    Attributes:
        trouble: A key of `REMEDY`; empty if it answered.
        text: What is wrong, in words.
        content: Its answer.
        date: Its clock, in seconds since 1970.
        seconds: How long it took.
        certificate: The one that it showed, as DER.
    """

    trouble: str = ""
    text: str = ""
    content: dict[str, Any] = field(default_factory=dict)
    date: float = 0.0
    seconds: float = 0.0
    certificate: bytes = b""

    @property
    def remedy(self) -> str:
        """What to do about the trouble."""
        return REMEDY.get(self.trouble, "")


def ask(kit: Kit, insecure: bool = False, size: int = 0, timeout: float = 10.0) -> Answer:
    """Ask the server's probe, in a request signed with the kit's key.

    Args:
        kit: Whose server is asked.
        insecure: Whether to ask in plaintext.
        size: How many bytes to send.
        timeout: Seconds to wait.
    """
    begun, certificate, where = time.monotonic(), b"", (kit.servers[0], kit.port)
    connection: http.client.HTTPConnection
    if insecure:
        connection = http.client.HTTPConnection(*where, timeout=timeout)
    else:
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
            text = f"{kit.address} answers {response.status} {response.reason} to {size:,} bytes."
            return Answer("foreign", text)
        content = json.loads(body)
        date = float(content["time"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        return Answer(*_trouble(error, kit, insecure))
    finally:
        connection.close()
    return Answer("", "", content, date, time.monotonic() - begun, certificate)


def _trouble(error: Exception, kit: Kit, insecure: bool) -> tuple[str, str]:
    """The name of what went wrong, and the words for it."""
    where = kit.address
    match error:
        case ssl.SSLCertVerificationError(verify_code=10):
            return "expired", f"certificate expired: {where} shows one that is past its end."
        case ssl.SSLCertVerificationError(verify_code=9):
            return "expired", (
                f"certificate not valid yet: that of {where}, by this machine's clock. Set the "
                "clock."
            )
        case ssl.SSLCertVerificationError(verify_code=62 | 64):
            why = error.verify_message
            return "hostname", f"the certificate of {where} is for other names: {why}."
        case ssl.SSLCertVerificationError():
            return "authority", (
                f"wrong certificate authority: {where} shows a certificate not signed by this "
                f"kit's ca.crt. ({error.verify_message})"
            )
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER" | "RECORD_LAYER_FAILURE" | "HTTP_REQUEST"):
            return "plaintext", f"{where} speaks plaintext, and this kit asks for TLS."
        case ssl.SSLError():
            return "tls", f"no TLS connection to {where}: {error.reason or error}."
        case socket.gaierror():
            return "name", f"the name {kit.servers[0]} is not known here ({error.strerror})."
        case ConnectionRefusedError():
            return "unreachable", f"{where} refused the connection."
        case TimeoutError():
            return "unreachable", f"{where} is silent."
        case http.client.HTTPException() | ConnectionError() if insecure:
            return "secure", f"{where} does not answer plaintext: it speaks TLS."
        case http.client.HTTPException() | ConnectionError():
            return "foreign", f"{where} answers strangely: {type(error).__name__}."
        case OSError():
            return "unreachable", f"{where} cannot be reached ({error.strerror or error})."
    return "foreign", f"{where} answered, but it is not an unseen federation server."


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
    """Return an error if the server that answered does not know the key of a site's kit."""
    if kit.kind == "server" or answer.content.get("registered") is True:
        return None
    return UnseenError(
        f"unregistered key: the server does not know the key of {kit.name}.",
        remedy=f"Copy site.pub into the server's kit as sites/{kit.name}.pub, or get a new kit "
        "from the organiser.",
    )


def other_versions(answer: Answer) -> UnseenError | None:
    """Return an error if the server's versions differ in more than the last of three numbers."""
    for name, here in versions().items():
        there = str(answer.content.get(name, "?"))
        if here.split(".")[:2] != there.split(".")[:2]:
            package = "flwr" if name == "flower" else name
            return UnseenError(
                f"versions differ: {name} {here} here, {there} there.",
                remedy=f"Install the same: pip install '{package}=={there}'.",
            )
    return None
