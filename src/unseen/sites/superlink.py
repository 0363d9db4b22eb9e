"""Flower's SuperLink with a guard before it: `python -m unseen.sites.superlink`, same options.

Flower answers everything on one port: what sites ask (`/v1/fleet/`), and what its own tools ask
(`/v1/control/`: start any code at every site) without asking who it is. The guard answers other
machines on the sites' paths alone, and adds one address, at which a site can find out what is wrong
before it joins.
"""

import asyncio
import os
import time
from base64 import b64decode
from contextlib import suppress
from typing import Any

from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unseen.sites import flower_workarounds, port
from unseen.sites.kits.kit_spec import is_local
from unseen.sites.probe import KEY, LETTING_IN, PROBE, SIGNATURE, STAMP, versions
from unseen.sites.process import die_with_parent

#: No message of Flower's is larger: it sends vectors in parts of 5 MiB.
LARGEST = 16 * 2**20
#: Of a request that no registered key signed: Flower refuses it in its own words, body unread.
STRANGERS = 64 * 2**10
#: When this process began: sites' keys are let in one by one after it answers.
BEGUN = time.monotonic()


class Guard:
    """What stands between the network and the SuperLink."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self.app
        if scope["type"] == "http":
            path = scope["path"]
            peer, own = ((scope.get(end) or ("",))[0] for end in ("client", "server"))
            # This machine's own requests come from a loopback, or from the address that they reach.
            near = is_local(peer) or (peer and peer == own)
            if path == PROBE:
                answer = JSONResponse(await _probed(Request(scope, receive), bool(near)))
            elif not (path.startswith("/v1/fleet/") or path == "/health" or near):
                answer = JSONResponse({"error": "only the server's own machine may ask this"}, 403)
            elif path.startswith("/v1/fleet/"):
                await _bounded(answer, scope, receive, send)
                return
        await answer(scope, receive, send)


class _Beyond(Exception):
    """A body that is larger than it may be, or that stopped in the middle."""


async def _bounded(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a site's request, of whose body nothing beyond its bound is ever kept."""
    request, answered = Request(scope), False
    beyond: _Beyond | None = None
    most = LARGEST if await run_in_threadpool(_registered, request) else STRANGERS
    size = 0

    def refused(status: int, why: str) -> _Beyond:
        nonlocal beyond
        beyond = _Beyond(status, why)
        return beyond

    async def bounded() -> Message:
        nonlocal size
        try:
            async with asyncio.timeout(port.SILENCE):
                message = await receive()
        except TimeoutError:
            raise refused(408, "the rest of the request did not come") from None
        size += len(message.get("body", b""))
        if size > most:
            raise refused(413, f"more than {most} bytes")
        return message

    async def sent(message: Message) -> None:
        nonlocal answered
        # Flower makes a 500 of every error, after which the connection would read on.
        if answered or beyond is None:
            answered = True
            await send(message)

    try:
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > most:
            raise refused(413, f"more than {most} bytes")
        await app(scope, bounded, sent)
    except Exception:
        if beyond is None:
            raise
    if beyond is not None and not answered:
        status, why = beyond.args
        # The rest of the body is not read, so the connection cannot go on.
        answer = JSONResponse({"error": why}, status, {"connection": "close"})
        await answer(scope, receive, send)


async def _probed(request: Request, near: bool) -> dict[str, Any]:
    """Time, for whom the caller's key is registered, how many bytes arrived, and the versions.

    Strangers are told no version, and of the server's age no more than that it began just now.
    """
    registered = await run_in_threadpool(_registered, request)
    size, name = 0, ""
    if registered:
        name = await run_in_threadpool(_name, request)
        with suppress(ClientDisconnect):
            async for part in request.stream():
                size += len(part)
                if size > LARGEST:
                    break
    content = {"time": time.time(), "registered": registered, "name": name, "bytes": size}
    up = time.monotonic() - BEGUN
    if registered or near:
        return {**versions(), **content, "up": up}
    return {**content, "up": min(up, LETTING_IN)}


def _registered(request: Request) -> bool:
    """Whether the request is signed with a registered key."""
    headers = request.headers
    try:
        key, signature = (b64decode(headers[name], validate=True) for name in (KEY, SIGNATURE))
        if not verify_signature(bytes_to_public_key(key), headers[STAMP].encode(), signature):
            return False
    except (KeyError, ValueError):
        return False
    state = request.app.state.linkstate_factory.state()
    return state.get_node_id_by_public_key(key) is not None


def _name(request: Request) -> str:
    """The name for which the key of a request is registered, once its signature was checked."""
    state = request.app.state.linkstate_factory.state()
    number = state.get_node_id_by_public_key(b64decode(request.headers[KEY]))
    return "".join(node.name for node in state.get_node_info(node_ids=[number]))


def main() -> None:
    """Start the SuperLink behind the guard; without the guard it does not start."""
    from flwr.superlink.cli import flower_superlink

    die_with_parent()
    flower_workarounds.put_before_superlink(Guard)
    flower_workarounds.check_senders()
    flower_workarounds.serve_by(port.run)
    flower_workarounds.wait_for_database()
    # By it a peer that names itself in a header would pass for another machine's.
    os.environ.pop("FORWARDED_ALLOW_IPS", None)
    flower_superlink()


if __name__ == "__main__":
    main()
