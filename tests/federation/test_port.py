"""Floods of the server's port: too large, too slow, too many; and memory stays flat."""

from __future__ import annotations

import asyncio
import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from support.deployment import SLOWER, free_port

from unseen.sites.kits.kit_spec import Federation
from unseen.sites.kits.provision import provision

SERVER = """
import sys
from unseen.sites import port, superlink

async def inner(scope, receive, send):
    if scope["type"] != "http":
        return
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})

port.HEADERS = port.SILENCE = 1.5
port.PER_PEER = 20
port.is_local = lambda address: False
port.run(superlink.Guard(inner), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning",
         lifespan="off")
"""


#: The same over TLS, which waits longer for it.
SECURE = """
import sys
from unseen.sites import port, superlink

async def inner(scope, receive, send):
    return

port.HANDSHAKE, port.HAND_BACK = 60.0, 1
port.run(superlink.Guard(inner), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning",
         lifespan="off", ssl_certfile=sys.argv[2], ssl_keyfile=sys.argv[3])
"""


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, int]]:
    """Port and pid of the guard behind the bounds, over a small app."""
    yield from started(SERVER)


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The same of a server that speaks TLS."""
    federation = Federation(name="port", servers=["127.0.0.1"], sites={"a": "train"})
    provision(federation, tmp_path / "kits")
    kit = tmp_path / "kits" / "server"
    yield from started(SECURE, str(kit / "server.crt"), str(kit / "server.key"))


def started(code: str, *words: str) -> Iterator[tuple[int, int]]:
    """Port and pid of a server."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", code, str(port), *words])
    end = time.monotonic() + 60 * SLOWER
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            break
        time.sleep(0.1)
    yield port, process.pid
    process.terminate()
    process.wait(30)


def memory(pid: int) -> int:
    """MiB that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


def falls_below(pid: int, bound: int, seconds: float) -> bool:
    """Whether a process holds less than `bound` MiB before so many seconds are over."""
    end = time.monotonic() + seconds * SLOWER
    while memory(pid) >= bound and time.monotonic() < end:
        time.sleep(0.5)
    return memory(pid) < bound


def answered(port: int, size: int = 5) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/v1/fleet/push-messages", body=bytes(size))
    response = connection.getresponse()
    return response.status, response.read().decode()


def pushed(port: int, headers: bytes) -> str:
    """The first line of an answer to 1 GiB, as much of it as is taken, "" if all of it was."""
    with socket.create_connection(("127.0.0.1", port), 20) as peer:
        peer.sendall(b"POST /v1/fleet/push-messages HTTP/1.1\r\nhost: a\r\n" + headers + b"\r\n")
        with suppress(OSError):
            for _ in range(1024):
                peer.sendall(b"100000\r\n" + bytes(2**20) + b"\r\n")
        with suppress(OSError):
            return peer.recv(4096).decode().partition("\r\n")[0]
    return ""


@pytest.mark.parametrize("headers", [b"content-length: 1073741824\r\n",
                                     b"transfer-encoding: chunked\r\n"])  # fmt: skip
def test_a_body_beyond_the_bound_is_not_kept(server: tuple[int, int], headers: bytes) -> None:
    port, pid = server
    assert answered(port) == (200, "5")
    before = memory(pid)
    line = pushed(port, headers)
    assert line in ("", "HTTP/1.1 413 Request Entity Too Large", "HTTP/1.1 413 Content Too Large")
    assert memory(pid) < before + 40
    assert answered(port) == (200, "5")


def test_a_stranger_sends_little() -> None:
    from unseen.sites import superlink

    answers: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        return {"type": "http.request", "body": bytes(2**16), "more_body": len(parts.pop()) > 0}

    async def send(message: Any) -> None:
        answers.append(message)

    parts = ["", "x", "x"]
    scope = {"type": "http", "path": "/v1/fleet/push-messages", "scheme": "https", "headers": [],
             "client": ("198.51.100.7", 1), "server": ("10.0.0.1", 1), "query_string": b"",
             "method": "POST"}  # fmt: skip
    asyncio.run(superlink.Guard(inner)(scope, receive, send))  # type: ignore[arg-type]
    assert answers[0]["status"] == 413


def test_half_headers_and_half_bodies_end(server: tuple[int, int]) -> None:
    port, _ = server
    half = b"POST /v1/fleet/push-messages HTTP/1.1\r\nhost: a\r\n"
    peers = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(3)]
    peers[1].sendall(half)
    peers[2].sendall(half + b"content-length: 100\r\n\r\nabc")
    try:
        assert answered(port) == (200, "5")  # others are answered meanwhile
        assert [peer.recv(15) for peer in peers] == [b"", b"", b"HTTP/1.1 408 Re"]
    finally:
        for peer in peers:
            peer.close()


def test_one_address_has_so_many_connections(server: tuple[int, int]) -> None:
    port, _ = server
    peers = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(40)]
    time.sleep(0.5)
    closed = 0
    for peer in peers:
        peer.settimeout(0.02)
        with suppress(TimeoutError):
            closed += peer.recv(1) == b""
    for peer in peers:
        peer.close()
    assert closed == 20
    time.sleep(0.5)
    assert answered(port) == (200, "5")  # they are counted off again


def test_an_app_that_answers_every_error_does_not_keep_the_connection() -> None:
    """Flower makes a 500 of whatever its handlers raise."""
    from unseen.sites import superlink

    answers: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        status = 200
        try:
            while (await receive()).get("more_body"):
                pass
        except Exception:
            status = 500
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        return {"type": "http.request", "body": bytes(2**16), "more_body": True}

    async def send(message: Any) -> None:
        answers.append(message)

    scope = {"type": "http", "path": "/v1/fleet/push-messages", "scheme": "https", "headers": [],
             "client": ("198.51.100.7", 1), "server": ("10.0.0.1", 1), "query_string": b"",
             "method": "POST"}  # fmt: skip
    asyncio.run(superlink.Guard(inner)(scope, receive, send))  # type: ignore[arg-type]
    starts = [message for message in answers if message["type"] == "http.response.start"]
    assert [message["status"] for message in starts] == [413]
    assert (b"connection", b"close") in starts[0]["headers"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_connections_cost_little_and_leave_nothing(secure: tuple[int, int]) -> None:
    """A connection may cost a buffer of 32 KiB and as much of OpenSSL; then it is handed back."""
    port, pid = secure
    count, start = 300, memory(pid)
    for _ in range(3):
        peers = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(count)]
        time.sleep(1.5)
        assert memory(pid) - start < count * 96 / 1024 + 15
        for peer in peers:
            peer.close()
        assert falls_below(pid, start + 15, 30)
