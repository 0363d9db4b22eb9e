"""`serve` and `join`: one machine's part of a federation, in the foreground."""

import fcntl
import sqlite3
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from unseen.core.atomic import write_atomically
from unseen.errors import UnseenError
from unseen.sites.control import Control, control, needs_flower
from unseen.sites.flower import bundle
from unseen.sites.kits import certificates
from unseen.sites.kits.closed import close, closed
from unseen.sites.kits.kit import ACCOUNT, RULES, START, Kit
from unseen.sites.policy.site_policy import SitePolicy
from unseen.sites.probe import LETTING_IN, ask, other_versions, unregistered
from unseen.sites.process import Child, check_port, environment, free_port, say, until_told
from unseen.sites.templates import source
from unseen.studies.settings.named import toml

#: Seconds within which the server must answer, and between looks at the folder of keys.
STARTUP, LOOK = 180.0, 5.0
#: Held while a site takes part.
LOCK = "join.lock"
#: What Flower says to a site whose process was killed and which it has not missed yet, and seconds
#: within which it does.
STILL, MISSED = "Failed to activate SuperNode", 180.0


def serve(kit: Kit) -> int:
    """Run the SuperLink of a server's kit until it is stopped, and return its exit status."""
    _begin(kit)
    close(kit.folder)
    check_port(kit.listen, kit.port, str(kit.folder / "kit.toml"))
    sites = certificates.registered(kit.folder)
    kit.state.mkdir(mode=0o700, exist_ok=True)
    with closed():
        bundle.write(kit.state / "app")
        write_connection(kit)
    database = kit.state / "superlink.db"
    options = {
        "host": kit.listen, "port": kit.port, "database": database,
        "disable-runtime-dependency-installation": None,
        "ssl-certfile": kit.folder / "server.crt", "ssl-keyfile": kit.folder / "server.key",
        "ssl-ca-certfile": kit.folder / "ca.crt", "enable-supernode-auth": None,
    }  # fmt: skip
    with (
        _stopped(), tidied(database), started(kit, "superlink", options) as child,
        control(kit) as link,
    ):  # fmt: skip
        _await(link, child)
        link.agree(sites)
        names = ", ".join(sites) or "none yet"
        say(f"serving {kit.federation} on {kit.at(kit.listen)}, TLS; sites: {names}")
        child.wait(_Watch(kit, link))
        raise child.ended("the server ended")
    return 0


def write_connection(kit: Kit) -> None:
    """Write where Flower's own commands (`flwr run`, `list`, `stop`) find this server."""
    connection = {"address": kit.here, "root-certificates": str(kit.folder / "ca.crt")}
    tables = {"superlink": {"default": kit.federation, kit.federation: connection}}
    (kit.folder / "flower").mkdir(mode=0o700, exist_ok=True)
    write_atomically(kit.folder / "flower" / "config.toml", toml(tables).encode())


def _begin(kit: Kit) -> None:
    needs_flower()
    kit.check()


@contextmanager
def tidied(database: Path) -> Iterator[None]:
    """Overwrite what the server has deleted in its database, before it begins and after it ends.

    SQLite marks rows as deleted, and its log of changes keeps them: a clean end would leave the
    parts of finished runs readable in these files.
    """
    _overwrite(database)
    try:
        yield
    finally:
        _overwrite(database)


def _overwrite(database: Path) -> None:
    if not database.is_file():
        return
    with closing(sqlite3.connect(database, isolation_level=None)) as link:
        for statement in ("secure_delete = ON", "wal_checkpoint(TRUNCATE)"):
            link.execute(f"PRAGMA {statement}").fetchall()
        link.execute("VACUUM")
        link.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


@contextmanager
def _stopped() -> Iterator[None]:
    """Take Ctrl-C and SIGTERM for the end of a command that runs until it is stopped."""
    try:
        with until_told():
            yield
    except KeyboardInterrupt:
        say("stopped.")


def started(kit: Kit, process: str, options: Mapping[str, object], **env: str) -> Child:
    """Start one of Flower's processes for a kit."""
    command = [sys.executable, "-m", f"unseen.sites.{process}"]
    for option, value in options.items():
        command += [f"--{option}"] if value is None else [f"--{option}", str(value)]
    return Child(command, environment(kit.folder / "flower", **env), kit.log)


class _Watch:
    """Says who comes and goes, and follows the folder of public keys."""

    def __init__(self, kit: Kit, link: Control) -> None:
        self.kit, self.link = kit, link
        self.online: set[str] = set()
        self.next = 0.0

    def __call__(self) -> None:
        import httpx

        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + LOOK
        news = []
        try:
            news += self.link.agree(certificates.registered(self.kit.folder))
            before, self.online = self.online, self.link.online()
            news += [f"{name}: connected" for name in sorted(self.online - before)]
            news += [f"{name}: gone" for name in sorted(before - self.online)]
        except (UnseenError, OSError, RuntimeError, httpx.HTTPError) as error:
            news += [f"{error}"]
        for text in news:
            say(f"{datetime.now(UTC):%H:%M:%S} {text}")


def _await(link: Control, child: Child) -> None:
    import httpx

    until = time.monotonic() + STARTUP
    while child.code is None:
        try:
            link.nodes()
            return
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            if time.monotonic() > until:
                why = f"the server does not answer ({error}). Log: {child.log}"
                raise UnseenError(why) from None
            time.sleep(0.2)
    raise child.ended("the server ended immediately")


def join(
    kit: Kit, data: Path | None = None, app: Path | None = None, allow: Sequence[str] = ()
) -> int:
    """Run the SuperNode of a site's kit until it is stopped, and return its exit status.

    `data` are those of the last start, by default; `allow` names parts outside unseen that a study
    may name here.
    """
    _begin(kit)
    close(kit.folder)
    with closed():
        folder = app.absolute() if app is not None else bundle.write(kit.state / "app")
        path = settle(kit, data, allow)
    policy = SitePolicy.read(kit.folder)
    with alone(kit):
        return _joined(kit, path, policy, folder)


@contextmanager
def alone(kit: Kit) -> Iterator[None]:
    """Hold a site's kit, or refuse: another start of it takes part already."""
    with (kit.state / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"{kit.name} takes part already: another start of {kit.folder} holds this kit."
            remedy = "Stop that one first; each site needs one start alone."
            raise UnseenError(what, remedy=remedy) from None
        yield


def _joined(kit: Kit, path: Path, policy: SitePolicy, folder: Path) -> int:
    """Take part until it is stopped."""
    welcome(kit)
    names = f'site="{kit.name}" kit="{kit.folder}"'
    options = {
        "superlink": kit.address, "port": free_port(), "node-config": names,
        "root-certificates": kit.folder / "ca.crt", "auth-supernode-private-key": kit.private_key,
    }  # fmt: skip
    start, once, own = time.monotonic(), cache(say), key_of(kit)
    with _stopped():
        say(f"{kit.name} takes part in {kit.federation} at {kit.address} with {path}")
        if policy.approval == "wait":
            say(f"each study waits for your approval: unseen federation review {kit.folder}")
        while True:
            with started(kit, "supernode", options, UNSEEN_APP=str(folder)) as child:
                child.wait()
                if STILL not in child.output() or time.monotonic() - start > MISSED:
                    check_let_in(kit, own)
                    raise child.ended("the connection ended")
                once("the server still counts on the connection before; trying again")
                time.sleep(LOOK)
    return 0


def key_of(kit: Kit) -> bytes:
    """Return a site's private key; nothing where it has none."""
    return kit.private_key.read_bytes() if kit.private_key.is_file() else b""


def check_let_in(kit: Kit, own: bytes) -> None:
    """Refuse a site whose key the server has shut out: Flower says only that it is not answered."""
    if key_of(kit) != own:
        what = f"the server shut out the key that {kit.name} was started with; the kit has another."
        raise UnseenError(what, remedy="Run the same command again.")
    answer = ask(kit)
    if not answer.trouble and (fault := unregistered(kit, answer)):
        raise UnseenError(f"the server shut this site out. {fault.what}", remedy=fault.remedy)


def settle(kit: Kit, data: Path | None = None, allow: Sequence[str] = ()) -> Path:
    """Write join.toml, which the training code reads, and return where the data are.

    `data` are those of the last start, by default; what was allowed before stays so.

    A `site.toml` is written where there is none, with every rule at its default.
    """
    file, rules = kit.folder / START, kit.folder / RULES
    before = _settings(file)
    path = Path(str(before.get("data", ""))) if data is None else data.expanduser().absolute()
    if not path.is_absolute() or not path.exists():
        raise UnseenError(f"--data {path} is neither a folder nor a file.")
    for folder in (kit.state, kit.folder / ACCOUNT):
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
    if not rules.is_file():
        certificates.write(rules, source(RULES).encode(), private=True)
    settings = {
        "name": kit.name, "role": kit.role, "federation": kit.federation, "data": str(path),
        "allow": sorted({*before.get("allow", ()), *allow}),
    }  # fmt: skip
    certificates.write(file, toml(settings).encode(), private=True)
    return path


def _settings(file: Path) -> dict[str, Any]:
    """What a TOML file says; nothing where there is none, or one that cannot be read."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def welcome(kit: Kit) -> None:
    """Ask the server first: refuse what cannot work, wait for one that is not there yet."""
    once = cache(say)
    while (answer := ask(kit)).trouble == "unreachable":
        once(f"{answer.text} Trying again until it answers; Ctrl-C stops.")
        time.sleep(3.0)
    while not answer.trouble and unregistered(kit, answer):
        if float(answer.content.get("up", LETTING_IN)) >= LETTING_IN:
            break
        time.sleep(1.0)  # the server lets its sites in one by one
        answer = ask(kit)
    if answer.trouble:
        raise UnseenError(f"refused. {answer.text}", remedy=answer.remedy)
    if fault := unregistered(kit, answer) or other_versions(answer):
        raise UnseenError(f"refused. {fault.what}", remedy=fault.remedy)
