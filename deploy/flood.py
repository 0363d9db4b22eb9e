"""Floods of a server's port, by somebody without a key.

    python deploy/flood.py KIT PID

KIT: the server's kit. PID: its process, whose children's memory is looked at. Linux. Every flood is
followed by a question of the doctor's kind, which must be answered while it lasts. All of them come
three times, since what is kept after each must not add up.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path

from unseen.sites.kits.kit import Kit
from unseen.sites.port import HAND_BACK
from unseen.sites.probe import ask

HEAD = b"POST /v1/fleet/push-messages HTTP/1.1\r\nhost: a\r\ncontent-type: application/protobuf\r\n"


def memory(pid: int) -> int:
    """MiB of a process and of all that it started."""
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = (entry / "status").read_text()
            parents[int(entry.name)] = int(text.partition("PPid:")[2].split()[0])
            sizes[int(entry.name)] = int(text.partition("VmRSS:")[2].split()[0]) // 1024
    family = [pid]
    for one in family:
        family += [child for child, parent in parents.items() if parent == one]
    return sum(sizes.get(one, 0) for one in family)


class Flood:
    """Somebody at the port.

    Attributes:
        kit: The server's kit.
        pid: The server's process.
        say: Takes a line of the log.
    """

    def __init__(self, kit: Kit, pid: int, say: Callable[[str], None]) -> None:
        self.kit, self.pid, self.say = kit, pid, say

    def connection(self) -> socket.socket:
        """A TLS connection that trusts whatever is there."""
        context = ssl.create_default_context(cafile=str(self.kit.folder / "ca.crt"))
        plain = socket.create_connection((self.kit.servers[0], self.kit.port), 30)
        return context.wrap_socket(plain, server_hostname=self.kit.servers[0])

    def healthy(self, during: str) -> None:
        """Say whether the server answers others meanwhile, and what it holds."""
        answer = ask(self.kit)
        word = f"answers in {answer.seconds * 1000:.0f} ms" if not answer.trouble else answer.text
        self.say(f"{during}: the server {word}, and holds {memory(self.pid)} MiB")

    def body(self, headers: bytes, what: str) -> None:
        """1 GiB, as much of it as is taken."""
        size, line = 0, "the connection ended"
        with self.connection() as peer:
            with contextlib.suppress(OSError):
                peer.sendall(HEAD + headers + b"\r\n")
                for _ in range(1024):
                    peer.sendall(b"100000\r\n" + bytes(2**20) + b"\r\n")
                    size += 1
            with contextlib.suppress(OSError):
                line = peer.recv(4096).decode().partition("\r\n")[0] or line
        self.healthy(f"{what}: {size} MiB left here, then {line}")

    def silent(self, count: int, start: bytes | None, what: str) -> None:
        """Connections that stay; None of them speaks TLS where there is nothing to send."""
        peers, begun = [], time.monotonic()
        for _ in range(count):
            with contextlib.suppress(OSError):
                if start is None:
                    address = self.kit.servers[0], self.kit.port
                    peers.append(socket.create_connection(address, 30))
                else:
                    peers.append(self.connection())
                    peers[-1].sendall(start)
        self.healthy(f"{len(peers)} {what}")
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.settimeout(120)
                peer.recv(1)
            peer.close()
        self.healthy(f"all of them were closed within {time.monotonic() - begun:.0f} s")

    def all(self, times: int = 3) -> None:
        """Every flood, one after the other, again and again."""
        self.healthy("before any flood")
        for which in range(1, times + 1):
            self.body(b"content-length: 1073741824\r\n", "a body of 1 GiB, stated")
            self.body(b"transfer-encoding: chunked\r\n", "a body of 1 GiB in pieces")
            self.silent(300, HEAD, "half headers")
            self.silent(900, None, "idle connections")
            time.sleep(HAND_BACK + 2)
            self.healthy(f"{HAND_BACK + 2} s after flood {which} of {times}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    Flood(Kit.read(Path(sys.argv[1])), int(sys.argv[2]), print).all()
