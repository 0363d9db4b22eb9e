"""Real processes on loopback: who is let in, who is refused by name, and that nothing stays."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from support import rollcall_app
from support.kits import provisioned, site

from unseen.errors import UnseenError
from unseen.sites import flower_workarounds, probe, superlink, supernode
from unseen.sites.control import control
from unseen.sites.kits import certificates
from unseen.sites.kits.kit import Kit

#: By how much all limits of time are longer than a quiet machine of two cores needs.
SLOWER = float(os.environ.get("UNSEEN_SLOWER", "1"))
UNSEEN = [sys.executable, "-c", "from unseen.cli.main import main; main()", "federation"]


class Started:
    """A command of ours in a process of its own."""

    def __init__(self, log: Path, *words: object) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [*UNSEEN, *map(str, words)], stdout=file, stderr=file, cwd=log.parent
            )

    def text(self) -> str:
        return self.log.read_text()

    def until(self, wanted: str, seconds: float = 45) -> str:
        end = time.monotonic() + seconds * SLOWER
        while wanted not in self.text():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{wanted!r} was not said: {self.text()}")
            time.sleep(0.1)
        return self.text()

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def started(log: Path, *words: object) -> Iterator[Started]:
    command = Started(log, *words)
    try:
        yield command
    finally:
        command.end()


def of(folder: Path) -> list[int]:
    """Processes that name this folder, in their words or their surroundings."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            text = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(folder).encode() in text and state != "Z" and int(path.name) != os.getpid():
            found.append(int(path.name))
    return found


def gone(folder: Path, seconds: float = 12) -> bool:
    end = time.monotonic() + seconds
    while of(folder) and time.monotonic() < end:
        time.sleep(0.2)
    return not of(folder)


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return provisioned(tmp_path_factory.mktemp("federation") / "kits")


@pytest.fixture(scope="module")
def server(kits: Path) -> Iterator[Started]:
    with started(kits.parent / "serve.log", "serve", kits / "server") as command:
        command.until("serving trial")
        yield command
    assert gone(kits), f"left behind: {of(kits)}"


def activate(kit: Kit, key: Path, authority: Path | None, plain: bool = False) -> int:
    """What a SuperNode does first, asked of Flower itself and not of our probe."""
    private: Any = load_ssh_private_key(key.read_bytes(), None)
    public = private.public_key()
    with FleetHttpClient.from_server_address(
        kit.address, plain, authority.read_bytes() if authority else None,
        interceptors=[NodeAuthHttpInterceptor(private, public)],
    ) as client:  # fmt: skip
        request = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=30)
        number = client.ActivateNode(request).node_id
        client.DeactivateNode(DeactivateNodeRequest(node_id=number))
    return int(number)


def test_a_registered_key_is_let_in(kits: Path, server: Started) -> None:
    north = site(kits)
    assert activate(north, north.private_key, north.folder / "ca.crt")
    answer = probe.ask(north)
    assert answer.trouble == "" and answer.content["registered"] is True
    assert {name: answer.content[name] for name in probe.versions()} == probe.versions()
    assert answer.content["name"] == "north"


def test_an_unregistered_key_is_refused(kits: Path, server: Started, tmp_path: Path) -> None:
    north = site(kits)
    certificates.write_site_keys(tmp_path, tmp_path / "nowhere", "north")
    with pytest.raises(httpx.HTTPStatusError):
        activate(north, tmp_path / "site.key", north.folder / "ca.crt")


def test_a_wrong_authority_is_refused(kits: Path, server: Started, tmp_path: Path) -> None:
    north, other = site(kits), provisioned(tmp_path / "other")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        activate(north, north.private_key, other / "north" / "ca.crt")


def test_plaintext_is_refused(kits: Path, server: Started) -> None:
    with pytest.raises(httpx.TransportError):
        activate(site(kits), site(kits).private_key, None, plain=True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(
            lambda kit, other: certificates.write_site_keys(kit, kit / "nowhere", "north"),
            "unregistered key",
            marks=pytest.mark.slow,  # it asks for as long as a key may be on its way
        ),
        (
            lambda kit, other: certificates.write(
                kit / "ca.crt", (other / "ca" / "ca.crt").read_bytes()
            ),
            "wrong certificate authority",
        ),
    ],
)
def test_join_names_why_it_is_refused(
    kits: Path,
    server: Started,
    tmp_path: Path,
    change: Callable[[Path, Path], None],
    named: str,
) -> None:
    from unseen.sites.serve import join

    north = tmp_path / "north"
    north.mkdir(mode=0o700)
    for path in (kits / "north").iterdir():
        if path.is_file():
            certificates.write(north / path.name, path.read_bytes(), private=path.suffix == ".key")
    change(north, provisioned(tmp_path / "other"))
    with pytest.raises(UnseenError, match=f"refused. {named}"):
        join(Kit.read(north), tmp_path, tmp_path)


def test_a_second_server_finds_the_port_taken(kits: Path, server: Started, tmp_path: Path) -> None:
    second = Started(tmp_path / "second.log", "serve", kits / "server")
    assert second.process.wait(30) == 2
    assert "port taken" in second.text()


def test_the_folder_of_keys_decides_who_is_let_in(
    kits: Path, server: Started, tmp_path: Path
) -> None:
    west, public = site(kits, "west"), kits / "server" / "sites" / "west.pub"
    before = public.read_bytes()
    public.unlink()
    server.until("west: shut out", 20)
    with pytest.raises(httpx.HTTPStatusError):
        activate(west, west.private_key, west.folder / "ca.crt")
    certificates.write_site_keys(tmp_path, kits / "server", "west")
    server.until("west: let in", 20)
    assert activate(west, tmp_path / "site.key", west.folder / "ca.crt")
    certificates.write(public, before)  # a key that was shut out stays out: Flower forgets no key


def test_what_the_server_reports(kits: Path, server: Started) -> None:
    with control(Kit.read(kits / "server")) as asked:
        assert {n.name for n in asked.nodes()} >= {"north", "south"}
        assert asked.running() == []


def test_no_log_holds_a_private_key(kits: Path, server: Started) -> None:
    logs = [*kits.rglob("*.log"), server.log]
    secrets = [
        line
        for path in kits.rglob("*.key")
        for line in path.read_text().splitlines()[2:-1]
        if len(line) > 30
    ]
    text = "".join(path.read_text(errors="replace") for path in logs)
    assert "serving" in text and "PRIVATE KEY" not in text
    assert secrets and not [line for line in secrets if line in text]
    database = (kits / "server" / "state" / "superlink.db").read_bytes()
    assert b"PRIVATE KEY" not in database


def test_no_server_is_named(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits")
    with (
        pytest.raises(UnseenError, match="Start it on this machine"),
        control(Kit.read(out / "server")) as asked,
    ):
        asked.nodes()


def test_a_killed_server_leaves_no_process(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits")
    command = Started(tmp_path / "serve.log", "serve", out / "server")
    try:
        command.until("serving trial")
        assert len(of(out)) >= 2
        command.process.kill()
        command.process.wait(5)
        assert gone(out), f"left behind: {of(out)}"
    finally:
        command.end(signal.SIGKILL)


async def asked(path: str, peer: str, own: str = "") -> tuple[int, bool]:
    """The guard's answer, and whether the SuperLink was asked."""
    passed, sent = [], []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["path"])
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "path": path, "client": (peer, 5000), "server": (own, 9443), "headers": []
    }  # fmt: skip
    await superlink.Guard(inner)(scope, None, send)  # type: ignore[arg-type]
    return sent[0]["status"], bool(passed)


@pytest.mark.parametrize(
    ("path", "peer", "status"),
    [
        ("/v1/fleet/pull-messages", "192.0.2.9", 200),
        ("/health", "192.0.2.9", 200),
        ("/v1/control/start-run", "192.0.2.9", 403),
        ("/v1/control/start-run", "::ffff:192.0.2.9", 403),
        ("/v1/runtime/x", "192.0.2.9", 403),
        ("/docs", "192.0.2.9", 403),
        ("/v1/fleet/../control/start-run", "192.0.2.9", 200),  # no such path at the SuperLink
        ("/v1/control/start-run", "127.0.0.1", 200),
        ("/v1/control/start-run", "::1", 200),
        ("/v1/control/start-run", "", 403),
    ],
)
def test_other_machines_reach_the_sites_paths_alone(path: str, peer: str, status: int) -> None:
    assert asyncio.run(asked(path, peer)) == (status, status == 200)


def test_a_server_of_one_address_reaches_itself() -> None:
    assert asyncio.run(asked("/v1/control/start-run", "10.0.0.5", "10.0.0.5")) == (200, True)
    assert asyncio.run(asked("/v1/control/start-run", "10.0.0.6", "10.0.0.5")) == (403, False)


def test_no_header_says_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn believes `X-Forwarded-For` of whom this variable names."""
    import flwr.superlink.cli
    from flwr.superlink import extensions

    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    monkeypatch.setattr(extensions, "get_middleware", lambda: ())
    seen: list[bool] = []
    started = lambda: seen.append("FORWARDED_ALLOW_IPS" in os.environ)  # noqa: E731
    monkeypatch.setattr(flwr.superlink.cli, "flower_superlink", started)
    monkeypatch.setattr(superlink, "die_with_parent", lambda: None)
    monkeypatch.setattr(flower_workarounds, "wait_for_database", lambda: None)
    superlink.main()
    assert seen == [False] and extensions.get_middleware()[0].cls is superlink.Guard


def test_a_site_runs_its_own_app_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.cli.build import build_fab_from_disk
    from flwr.supercore.fab import Fab
    from flwr.supernode import start_client_internal

    folder = rollcall_app.write(tmp_path / "app")
    own = build_fab_from_disk(folder)
    verify, pull = start_client_internal._verify_fab, start_client_internal._pull_and_store_message
    monkeypatch.setattr(start_client_internal, "_verify_fab", verify)
    monkeypatch.setattr(start_client_internal, "_pull_and_store_message", pull)
    flower_workarounds.compare_apps(functools.partial(supernode.same_app, supernode.files(own)))
    check = start_client_internal._verify_fab
    assert check(Fab("", own, {}), {})
    (folder / "rollcall" / "client_app.py").write_text("import os  # something else\n")
    other = build_fab_from_disk(folder)
    assert not check(Fab("", other, {}), {})
    assert "another app" in capsys.readouterr().err


def roll(kits: Path, folder: Path, app: Path, wanted: int) -> subprocess.CompletedProcess[str]:
    study = folder / "roll.toml"
    study.write_text(str(wanted))
    words = ["run", study, "--kit", kits / "server", "--out", folder / "out", "--app", app]
    return subprocess.run(
        [*UNSEEN, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120 * SLOWER,
        cwd=folder,
    )


@pytest.mark.slow
def test_a_whole_federation_over_tls(tmp_path: Path) -> None:
    """Three sites, one of them with an app of its own making, which it runs and nothing else."""
    out = provisioned(tmp_path / "kits")
    app = rollcall_app.write(tmp_path / "app")
    other = rollcall_app.write(tmp_path / "other")
    (other / "rollcall" / "client_app.py").write_text("raise SystemExit('not this')\n")
    data = tmp_path / "data"
    data.mkdir()
    try:
        with started(tmp_path / "serve.log", "serve", out / "server") as server:
            server.until("serving trial")
            join = ("join", out / "north", "--data", data, "--app", app)
            with (
                started(tmp_path / "north.log", *join) as north,
                started(
                    tmp_path / "west.log", "join", out / "west", "--data", data, "--app", app
                ) as west,
            ):
                server.until("north: connected")
                server.until("west: connected")
                done = roll(out, tmp_path, app, 2)
                assert done.returncode == 0, done.stdout + done.stderr
                assert "north train\nwest evaluate" in done.stdout
                # The server kept its port and its database: it starts again, the sites come back.
                server.end(signal.SIGKILL)
                with started(tmp_path / "again.log", "serve", out / "server") as again:
                    again.until("serving trial")
                    again.until("north: connected", 60)
                    again.until("west: connected", 60)
                    west.end()
                    with started(
                        tmp_path / "south.log", "join", out / "south", "--data", data,
                        "--app", other,
                    ):  # fmt: skip
                        again.until("south: connected")
                        done = roll(out, tmp_path, app, 2)
                        assert "north train" in done.stdout, done.stdout + done.stderr
                        assert "south train" not in done.stdout
                        log = (out / "south" / "logs" / "site.log").read_text()
                        assert "refused: the server asks for another app" in log
                assert "stopped" not in north.text()
        assert "PRIVATE KEY" not in "".join(p.read_text() for p in tmp_path.rglob("*.log"))
    finally:
        assert gone(out), f"left behind: {of(out)}"
