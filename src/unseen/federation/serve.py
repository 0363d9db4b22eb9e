"""`serve` and `join`: one machine's part of a federation, in the foreground."""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from unseen.errors import UnseenError
from unseen.federation import certificates, process
from unseen.federation.control import Changes, Control, control, needs_flower
from unseen.federation.handshake import versions
from unseen.federation.kit import Kit
from unseen.federation.probe import Answer, ask

INSECURE = (
    "WARNING: --insecure: no encryption, and any machine may take part. Not for data of people."
)
RENEW = "A new key: unseen federation provision --renew NAME"
#: Seconds within which the server must answer, and between looks at the folder of keys.
STARTUP, LOOK = 180.0, 5.0
#: What Flower says to a site whose process was killed and which it has not missed yet, and seconds
#: within which it does.
STILL, MISSED = "Failed to activate SuperNode", 180.0


def serve(kit: Kit, insecure: bool = False, say: Callable[[str], None] = print) -> int:
    """Run the SuperLink of a server's kit until it is stopped, and return its exit status."""
    needs_flower()
    kit.check(insecure)
    listen = str(kit.settings["listen"])
    process.check_port(listen, kit.port, str(kit.folder / "kit.toml"))
    sites = dict(certificates.registered(kit.folder)) if not insecure else {}
    kit.state.mkdir(mode=0o700, exist_ok=True)
    command = [
        sys.executable, "-m", "unseen.federation.superlink",
        "--host", listen, "--port", str(kit.port),
        "--database", str(kit.state / "superlink.db"), "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    if insecure:
        say(INSECURE)
        command += ["--insecure"]
    else:
        tls = (
            ("--ssl-certfile", "server.crt"),
            ("--ssl-keyfile", "server.key"),
            ("--ssl-ca-certfile", "ca.crt"),
        )
        command += [part for option, name in tls for part in (option, str(kit.folder / name))]
        command += ["--enable-supernode-auth"]
    with process.until_told():
        child = process.Child(
            command, process.environment(kit.folder / "flower"), kit.logs / "server.log"
        )
        try:
            with control(kit, insecure) as link:
                _await(link, child)
                if not insecure:
                    link.agree(sites)
                say(
                    f"serving {kit.federation} on {listen}:{kit.port}, "
                    f"{'plaintext' if insecure else 'TLS'}; sites: {', '.join(sites) or 'any'}"
                )
                code = process.wait(child, _Watch(kit, link, insecure, say))
                raise UnseenError(
                    f"the server ended (status {code}). {_reason(child)} Log: {child.log}"
                )
        except KeyboardInterrupt:
            say("stopped.")
            return 0
        finally:
            child.stop()


class _Watch:
    """Says who comes and goes, and follows the folder of public keys."""

    def __init__(self, kit: Kit, link: Control, insecure: bool, say: Callable[[str], None]) -> None:
        self.kit, self.link, self.insecure, self.say = kit, link, insecure, say
        self.online: set[str] = set()
        self.spent: set[str] = set()
        self.next = 0.0

    def _follow(self, changes: Changes) -> None:
        for name in changes.new:
            self.say(f"{_clock()} {name}: let in, its key is registered")
        for name in changes.out:
            self.say(f"{_clock()} {name}: shut out, its key is no longer in sites/")
        for name in changes.spent:
            if name not in self.spent:
                self.say(f"{_clock()} {name}: its key was shut out before and stays out. {RENEW}")
        self.spent = set(changes.spent)

    def __call__(self) -> None:
        import httpx

        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + LOOK
        try:
            if not self.insecure:
                self._follow(self.link.agree(certificates.registered(self.kit.folder)))
            now = {
                node.name or str(node.id) for node in self.link.nodes() if node.status == "online"
            }
        except (UnseenError, OSError, RuntimeError, httpx.HTTPError) as error:
            self.say(f"{_clock()} {error}")
            return
        for name in sorted(now - self.online):
            self.say(f"{_clock()} {name}: connected")
        for name in sorted(self.online - now):
            self.say(f"{_clock()} {name}: gone")
        self.online = now


def _await(link: Control, child: process.Child) -> None:
    """Wait until the SuperLink answers."""
    import httpx

    until = time.monotonic() + STARTUP
    while True:
        if child.code is not None:
            raise UnseenError(f"the server ended immediately. {_reason(child)} Log: {child.log}")
        try:
            link.nodes()
            return
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            if time.monotonic() > until:
                raise UnseenError(
                    f"the server does not answer ({error}). Log: {child.log}"
                ) from None
            time.sleep(0.2)


def join(
    kit: Kit,
    data: Path,
    app: Path | None = None,
    allow: Sequence[str] = (),
    insecure: bool = False,
    say: Callable[[str], None] = print,
) -> int:
    """Run the SuperNode of a site's kit until it is stopped, and return its exit status.

    Args:
        kit: The site's kit.
        data: The site's folder or csv file.
        app: The one app that this site runs; by default unseen's.
        allow: Parts outside unseen, `module:function`, that a study may name here.
        insecure: Whether to connect in plaintext.
        say: Prints a line.
    """
    needs_flower()
    kit.check(insecure)
    folder = app.absolute() if app is not None else bundle(kit.state / "app")
    path = settle(kit, data, allow)
    if insecure:
        say(INSECURE)
    welcome(kit, insecure, say)
    command = [
        sys.executable, "-m", "unseen.federation.supernode",
        "--superlink", kit.address, "--port", str(process.free_port()),
        "--node-config", f'site="{kit.name}" kit="{kit.folder}"',
    ]  # fmt: skip
    if insecure:
        command += ["--insecure"]
    else:
        command += ["--root-certificates", str(kit.folder / "ca.crt")]
        command += ["--auth-supernode-private-key", str(kit.private_key)]
    env = process.environment(kit.folder / "flower", UNSEEN_APP=str(folder))
    begun, announced = time.monotonic(), False
    with process.until_told():
        say(f"{kit.name} takes part in {kit.federation} at {kit.address} with {path}")
        while True:
            child = process.Child(command, env, kit.logs / "site.log")
            try:
                code = process.wait(child, lambda: None)
                if STILL not in child.said() or time.monotonic() - begun > MISSED:
                    raise UnseenError(
                        f"the connection ended (status {code}). {_reason(child)} Log: {child.log}"
                    )
                if not announced:
                    say("the server still counts on the connection before; trying again")
                    announced = True
                time.sleep(LOOK)
            except KeyboardInterrupt:
                say("stopped.")
                return 0
            finally:
                child.stop()


def settle(kit: Kit, data: Path, allow: Sequence[str] = ()) -> Path:
    """Write site.toml, which the training code reads. What was allowed before stays."""
    from unseen.federation.provision import toml

    path = data.expanduser().absolute()
    if not path.exists():
        raise UnseenError(f"--data {path} is neither a folder nor a file.")
    state = kit.state
    state.mkdir(mode=0o700, exist_ok=True)
    file = kit.folder / "site.toml"
    before = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    settings: dict[str, object] = {
        "name": kit.name,
        "role": str(kit.settings["role"]),
        "federation": kit.federation,
        "data": str(path),
        "state": str(state),
        "allow": sorted({*before.get("allow", ()), *allow}),
    }
    certificates.write(kit.folder / "site.toml", toml(settings).encode())
    return path


def welcome(kit: Kit, insecure: bool, say: Callable[[str], None]) -> None:
    """Ask the server first: refuse what cannot work, wait for one that is not there yet."""
    announced = False
    while True:
        answer = ask(kit, insecure)
        if not answer.trouble:
            break
        if answer.trouble != "unreachable":
            raise UnseenError(f"refused. {answer.text} {answer.remedy}")
        if not announced:
            say(f"{answer.text} Trying again until it answers; Ctrl-C stops.")
            announced = True
        time.sleep(3.0)
    if fault := mismatch(kit, answer, insecure):
        raise UnseenError(f"refused. {fault}")


def mismatch(kit: Kit, answer: Answer, insecure: bool = False) -> str:
    """Return why a server that answers will not work with this kit, or nothing."""
    if not insecure and kit.kind == "site" and answer.content.get("registered") is not True:
        return (
            f"unregistered key: the server does not know the key of {kit.name}. Copy site.pub into "
            f"the server's kit as sites/{kit.name}.pub, or get a new kit from the organiser."
        )
    return version_mismatch(answer)


def version_mismatch(answer: Answer) -> str:
    """Return which versions of the two sides do not go together, or nothing."""
    for name, here in versions().items():
        there = str(answer.content.get(name, "?"))
        if _release(here) != _release(there):
            return (
                f"versions differ: {name} {here} here, {there} at the server. Install the same: "
                f"pip install '{'flwr' if name == 'flower' else name}=={there}'."
            )
    return ""


def bundle(folder: Path) -> Path:
    """Return the app of this installation, written afresh."""
    import shutil

    from unseen.federation.flower import bundle as own

    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    own.write(folder)
    return folder


def _release(version: str) -> list[str]:
    """What must agree of a version: all but the last of three numbers."""
    return version.split(".")[:2]


def _reason(child: process.Child) -> str:
    """The line of a log that says why, if one does."""
    lines = [line.strip() for line in child.said().splitlines() if line.strip()]
    telling = [
        x for x in lines if "rror" in x or "refused" in x or "nvalid" in x or "failed" in x.lower()
    ]
    return (telling or lines or [""])[-1][:300]


def _clock() -> str:
    return f"{datetime.now(UTC):%H:%M:%S}"
