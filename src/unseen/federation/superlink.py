"""Flower's SuperLink with a guard before it: `python -m unseen.federation.superlink`, same options.

Flower answers everything on one port: what sites ask (`/v1/fleet/`), and what its own tools ask
(`/v1/control/`: start any code at every site) without asking who it is. The guard answers other
machines on the sites' paths alone, and adds one address, at which a site can find out what is
wrong before it joins.
"""

from __future__ import annotations

import ipaddress
import json
import os
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from unseen.federation import flower_patches
from unseen.federation.handshake import KEY, PROBE, SIGNATURE, STAMP, versions
from unseen.federation.process import die_with_parent

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: No message of Flower's is larger: it sends vectors in parts of 5 MiB.
LARGEST = 64 * 2**20


class Guard:
    """Between the network and the SuperLink."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what this peer may ask."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, peer = scope["path"], (scope.get("client") or ("", 0))[0]
        if path == PROBE:
            await _answer(send, 200, await _probed(scope, receive))
        elif path.startswith("/v1/fleet/") or path == "/health" or _near(scope, peer):
            await self.app(scope, receive, send)
        else:
            text = "only the server's own machine may ask this"
            await _answer(send, 403, {"error": text})


async def _probed(scope: Scope, receive: Receive) -> dict[str, Any]:
    """Who we are, what time it is, whether the caller's key is registered, and how much arrived."""
    from starlette.concurrency import run_in_threadpool

    headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
    registered = await run_in_threadpool(_registered, scope["app"], headers)
    size, more = 0, registered is True
    while more and size <= LARGEST:
        message = await receive()
        size += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)
    return {**versions(), "time": time.time(), "registered": registered, "bytes": size}


def _registered(app: Any, headers: MutableMapping[str, str]) -> bool | None:
    """Whether the request is signed with a registered key; None if it is not signed."""
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    if KEY not in headers:
        return None
    try:
        key = b64decode(headers[KEY], validate=True)
        signature = b64decode(headers[SIGNATURE], validate=True)
        if not verify_signature(bytes_to_public_key(key), headers[STAMP].encode(), signature):
            return False
    except (KeyError, ValueError):
        return False
    return app.state.linkstate_factory.state().get_node_id_by_public_key(key) is not None


async def _answer(send: Send, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _near(scope: Scope, peer: str) -> bool:
    """Whether a peer is this machine: a loopback address, or the one that it was answered on."""
    return _local(peer) or (bool(peer) and peer == (scope.get("server") or ("", 0))[0])


def _local(peer: str) -> bool:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def main() -> None:
    """Start the SuperLink behind the guard; without the guard it does not start."""
    from flwr.superlink.cli import flower_superlink

    die_with_parent()
    flower_patches.put_before_superlink(Guard)
    flower_patches.wait_for_database()
    # By it a peer that names itself in a header would pass for another machine's.
    os.environ.pop("FORWARDED_ALLOW_IPS", None)
    flower_superlink()


if __name__ == "__main__":
    main()
