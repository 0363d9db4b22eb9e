"""Kits, and a server that answers as a federation's does, without Flower."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from unseen.sites import probe
from unseen.sites.kits import provision, signatures
from unseen.sites.kits.kit import Kit
from unseen.sites.kits.kit_spec import Federation
from unseen.sites.process import free_port


def federation(**changes: Any) -> Federation:
    settings: dict[str, Any] = {
        "name": "trial",
        "servers": ("localhost", "127.0.0.1"),
        "port": free_port(),
        "sites": {"north": "train", "south": "train", "west": "evaluate"},
    }
    return Federation(**{**settings, **changes})


def provisioned(out: Path, now: datetime | None = None, **changes: Any) -> Path:
    provision.provision(federation(**changes), out, now)
    return out


class Answers(BaseHTTPRequestHandler):
    """Reads the body and answers with what the test says."""

    content: Mapping[str, Any] = {}
    limit = 2**30

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        if length > self.limit:
            self.close_connection = True
            self.send_error(413)
            return
        size = len(self.rfile.read(length))
        found = {**probe.versions(), "time": time.time(), "registered": True, "bytes": size}
        body = json.dumps({**found, **self.content}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def answering(
    folder: Path,
    port: int,
    plain: bool = False,
    limit: int = 2**30,
    host: str = "127.0.0.1",
    **content: Any,
) -> Iterator[None]:
    """A server with the certificate in `folder`; content: what its answer says instead."""
    handler = type("Handler", (Answers,), {"content": content, "limit": limit})
    server = ThreadingHTTPServer((host, port), handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if not plain:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def site(out: Path, name: str = "north") -> Kit:
    return Kit.read(out / name, "site")


def membership(folder: Path, sites: Iterable[str], federation: str = "") -> None:
    """An authority beside the kits in a folder, and in each kit the site's certificate from it."""
    if not (folder / "ca" / signatures.AUTHORITY).is_file():
        (folder / "ca").mkdir(parents=True)
        signatures.write_key(folder / "ca", signatures.AUTHORITY_KEY, signatures.AUTHORITY)
    for name in sites:
        (folder / name).mkdir(exist_ok=True)
        signatures.write_member(folder / "ca", folder / name, federation, name)
        public = (folder / "ca" / signatures.AUTHORITY).read_bytes()
        (folder / name / signatures.AUTHORITY).write_bytes(public)
