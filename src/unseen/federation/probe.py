"""What a site can learn of the server before it joins, and the names of what can be wrong."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from unseen.errors import UnseenError
from unseen.federation.handshake import KEY, PROBE, SIGNATURE, STAMP
from unseen.federation.kit import Kit

Trouble = Literal[
    "",
    "name",
    "unreachable",
    "plaintext",
    "secure",
    "tls",
    "expired",
    "authority",
    "hostname",
    "foreign",
]
#: What to do about each.
REMEDY: dict[Trouble, str] = {
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
        trouble: Empty if it answered.
        text: What is wrong, in words.
        content: Its answer.
        date: Its clock, in seconds since 1970.
        seconds: How long it took.
        certificate: The one that it showed, as DER.
    """

    trouble: Trouble
    text: str
    content: dict[str, Any]
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
    host, port = kit.host, kit.port
    where = kit.address
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return Answer("name", f"the name {host} is not known here ({error.strerror}).", {})
    begun, certificate = time.monotonic(), b""
    connection: http.client.HTTPConnection
    if insecure:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    else:
        context = ssl.create_default_context(cafile=str(kit.folder / "ca.crt"))
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    try:
        connection.connect()
        if isinstance(connection.sock, ssl.SSLSocket):
            certificate = connection.sock.getpeercert(binary_form=True) or b""
        connection.request("POST", PROBE, body=bytes(size), headers=signed(kit))
        response = connection.getresponse()
        body = response.read(2**20)
        date = float(json.loads(body)["time"]) if response.status == 200 else 0.0
    except ssl.SSLCertVerificationError as error:
        return _refused(error, where)
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
            return Answer("plaintext", f"{where} speaks plaintext, and this kit asks for TLS.", {})
        return Answer("tls", f"no TLS connection to {where}: {error.reason or error}.", {})
    except (ConnectionRefusedError, TimeoutError) as error:
        text = (
            "refused the connection" if isinstance(error, ConnectionRefusedError) else "is silent"
        )
        return Answer("unreachable", f"{where} {text}.", {})
    except (http.client.HTTPException, ConnectionError) as error:
        if insecure:
            return Answer("secure", f"{where} does not answer plaintext: it speaks TLS.", {})
        return Answer("foreign", f"{where} answers strangely: {type(error).__name__}.", {})
    except (ValueError, KeyError, TypeError):
        return Answer(
            "foreign", f"{where} answered, but it is not an unseen federation server.", {}
        )
    except OSError as error:
        return Answer("unreachable", f"{where} cannot be reached ({error.strerror or error}).", {})
    finally:
        connection.close()
    if response.status != 200:
        text = f"{where} answers {response.status} {response.reason} to {size:,} bytes."
        return Answer("foreign", text, {"status": response.status})
    return Answer("", "", json.loads(body), date, time.monotonic() - begun, certificate)


def signed(kit: Kit) -> dict[str, str]:
    """Return headers by which the kit's key is known; none for a server's kit."""
    if kit.kind != "site" or not kit.private_key.is_file():
        return {}
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = serialization.load_ssh_private_key(kit.private_key.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UnseenError(
            f"{kit.private_key} is not a key of an elliptic curve.", remedy="Get the kit again."
        )
    stamp = datetime.now(UTC).isoformat()
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    signature = key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        KEY: b64encode(public).decode(),
        SIGNATURE: b64encode(signature).decode(),
        STAMP: stamp,
    }


def _refused(error: ssl.SSLCertVerificationError, where: str) -> Answer:
    """Which part of a certificate was refused."""
    message = error.verify_message or str(error)
    if error.verify_code == 10:
        return Answer(
            "expired", f"certificate expired: {where} shows one that is past its end.", {}
        )
    if error.verify_code == 9:
        text = (
            f"certificate not valid yet: that of {where}, by this machine's clock. Set the clock."
        )
        return Answer("expired", text, {})
    if error.verify_code in (62, 64):
        return Answer("hostname", f"the certificate of {where} is for other names: {message}.", {})
    text = (
        f"wrong certificate authority: {where} shows a certificate not signed by this kit's ca.crt."
    )
    return Answer("authority", f"{text} ({message})", {})
