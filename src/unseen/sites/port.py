"""The server's port: how long a peer may be silent, and how many connections it may have.

Flower starts its server by `uvicorn.run`, which has no such bounds. `run` stands in its place: the
same server, on a socket that counts the connections of each peer, with connections that end where
no request comes. The sites' connections are those of their own keys and never come near the bounds.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
import socket
import sys
from asyncio import constants, sslproto
from collections import Counter
from contextlib import suppress
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from unseen.sites.kits.kit_spec import is_local

#: Seconds for a TLS handshake, for all headers of a request, and between two parts of a body.
HANDSHAKE, HEADERS, SILENCE = 10.0, 20.0, 30.0
#: Connections of one address, which several sites may share, and of all of them together.
PER_PEER, ALL = 128, 768
#: Bytes that a TLS connection reads at once. asyncio sets this many aside, and writes zeros into
#: them, before the peer has said anything: 256 KiB by default, where a record of TLS has 16.
READ = 32 * 2**10
#: Seconds between two times that freed memory is handed back to the system.
HAND_BACK = 10
#: glibc's names for its settings (malloc.h): size from which a block is mapped apart, most arenas.
MMAP_THRESHOLD, ARENA_MAX = -3, -8


class Connection(socket.socket):
    """A connection that is counted until it is closed."""

    peers: Counter[str]
    peer = ""

    def close(self) -> None:
        if self.peer:
            self.peers[self.peer] -= 1
            self.peer = ""
        super().close()


class Listener(socket.socket):
    """A listening socket that closes what is beyond the bounds, before TLS is spoken on it."""

    peers: Counter[str]

    def accept(self) -> tuple[socket.socket, Any]:
        while True:
            file, address = self._accept()  # type: ignore[attr-defined]
            connection = Connection(self.family, self.type, self.proto, fileno=file)
            connection.setblocking(False)
            # This machine's own requests are few, and the server's own tools must come through.
            peer = "" if is_local(address[0]) else str(address[0])
            many = self.peers[peer] >= PER_PEER or self.peers.total() >= ALL
            if peer and many:
                connection.close()
                continue
            if peer:
                connection.peers, connection.peer = self.peers, peer
                self.peers[peer] += 1
            return connection, address


def listener(host: str, port: int, backlog: int = 512) -> Listener:
    """Return a socket that listens."""
    (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    bound = Listener(family, socket.SOCK_STREAM)
    bound.peers = Counter()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:  # whatever the system's own default is
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
    bound.bind(address)
    bound.listen(backlog)
    return bound


class Timed(H11Protocol):
    """A connection that ends if a request's headers do not come in time."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._timer = self.loop.call_later(HEADERS, self._look, self.cycle)

    def _look(self, before: Any) -> None:
        """End a connection on which no request began since the last look, and none is answered."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is before:
            self.transport.close()
        else:
            self._wait()


def keep_little() -> bool:
    """Have the C library keep little of what connections leave behind, and say whether it will.

    glibc gives each of the threads that check signatures a heap of its own, and learns from every
    large block that it frees to keep larger ones. So what a flood took stays, in one heap or
    another. A fixed threshold ends the learning.
    """
    try:
        setting = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(setting(MMAP_THRESHOLD, 128 * 2**10)) and bool(setting(ARENA_MAX, 2))


async def hand_back() -> None:
    """Hand freed memory back to the system, also what lies between blocks in use.

    A TLS connection and its transport hold each other, so that only the garbage collector frees
    them; on its own it looks at objects that old once in many hundred connections.
    """
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def run(app: Any, **options: Any) -> None:
    """Serve an app as `uvicorn.run` does, within the bounds."""
    # uvicorn leaves these to asyncio: a minute for a handshake, large buffers, few open files.
    vars(constants)["SSL_HANDSHAKE_TIMEOUT"] = HANDSHAKE
    sslproto.SSLProtocol.max_size = READ
    keep_little()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        wanted_files = 4 * ALL if hard == resource.RLIM_INFINITY else min(4 * ALL, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted_files), hard))
    gc.freeze()  # what is loaded by now lasts as long as the server: no collection looks at it
    options.pop("workers", None)
    options.pop("reload", None)
    config = uvicorn.Config(
        app, http=Timed, loop="asyncio", callback_notify=hand_back, timeout_notify=HAND_BACK,
        **options,
    )  # fmt: skip
    server = uvicorn.Server(config)
    with listener(config.host, config.port) as bound:
        server.run(sockets=[bound])
    if not server.started:
        sys.exit(3)  # as uvicorn.run does
