"""`serve` and `join`: one machine's part of a federation, in the foreground."""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from unseen.errors import UnseenError
from unseen.federation import certificates
from unseen.federation.control import Control, control, needs_flower
from unseen.federation.flower import bundle
from unseen.federation.kit import Kit
from unseen.federation.kit_spec import toml
from unseen.federation.probe import Answer, ask, other_versions, unregistered
from unseen.federation.process import Child, check_port, environment, free_port, until_told

INSECURE = (
    "WARNING: --insecure: no encryption, and any machine may take part. Not for data of people."
)
#: Seconds within which the server must answer, and between looks at the folder of keys.
STARTUP, LOOK = 180.0, 5.0
#: Seconds within which a server that began lets in the sites whose keys it has.
LETTING_IN = 20.0
#: What Flower says to a site whose process was killed and which it has not missed yet, and seconds
#: within which it does.
STILL, MISSED = "Failed to activate SuperNode", 180.0


def serve(kit: Kit, insecure: bool = False, say: Callable[[str], None] = print) -> int:
    """Run the SuperLink of a server's kit until it is stopped, and return its exit status.

    Args:
        kit: The server's kit.
        insecure: Whether to serve plaintext, to anybody.
        say: Prints a line.
    """
    needs_flower()
    kit.check(insecure)
    check_port(kit.listen, kit.port, str(kit.folder / "kit.toml"))
    sites = {} if insecure else certificates.registered(kit.folder)
    kit.state.mkdir(mode=0o700, exist_ok=True)
    command = [
        sys.executable, "-m", "unseen.federation.superlink",
        "--host", kit.listen, "--port", str(kit.port),
        "--database", str(kit.state / "superlink.db"), "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    if insecure:
        say(INSECURE)
        command += ["--insecure"]
    else:
        files = {"certfile": "server.crt", "keyfile": "server.key", "ca-certfile": "ca.crt"}
        for option, name in files.items():
            command += [f"--ssl-{option}", str(kit.folder / name)]
        command += ["--enable-supernode-auth"]
    try:
        with (
            until_told(),
            Child(command, environment(kit.folder / "flower"), kit.log) as child,
            control(kit, insecure) as link,
        ):
            _await(link, child)
            if not insecure:
                link.agree(sites)
            how = "plaintext" if insecure else "TLS"
            names = ", ".join(sites) or "any"
            say(f"serving {kit.federation} on {kit.listen}:{kit.port}, {how}; sites: {names}")
            child.wait(_Watch(kit, link, insecure, say))
            raise child.ended("the server ended")
    except KeyboardInterrupt:
        say("stopped.")
        return 0


class _Watch:
    """Says who comes and goes, and follows the folder of public keys."""

    def __init__(self, kit: Kit, link: Control, insecure: bool, say: Callable[[str], None]) -> None:
        self.kit, self.link, self.insecure = kit, link, insecure
        self.say = lambda text: say(f"{datetime.now(UTC):%H:%M:%S} {text}")
        self.online: set[str] = set()
        self.next = 0.0

    def __call__(self) -> None:
        import httpx

        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + LOOK
        try:
            if not self.insecure:
                for change in self.link.agree(certificates.registered(self.kit.folder)):
                    self.say(change)
            before, self.online = self.online, self.link.online()
        except (UnseenError, OSError, RuntimeError, httpx.HTTPError) as error:
            self.say(f"{error}")
            return
        for name in sorted(self.online - before):
            self.say(f"{name}: connected")
        for name in sorted(before - self.online):
            self.say(f"{name}: gone")


def _await(link: Control, child: Child) -> None:
    """Wait until the SuperLink answers."""
    import httpx

    until = time.monotonic() + STARTUP
    while child.code is None:
        try:
            link.nodes()
            return
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            if time.monotonic() > until:
                raise UnseenError(
                    f"the server does not answer ({error}). Log: {child.log}"
                ) from None
            time.sleep(0.2)
    raise child.ended("the server ended immediately")


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
    folder = app.absolute() if app is not None else bundle.write(kit.state / "app")
    path = settle(kit, data, allow)
    if insecure:
        say(INSECURE)
    welcome(kit, insecure, say)
    command = [
        sys.executable, "-m", "unseen.federation.supernode",
        "--superlink", kit.address, "--port", str(free_port()),
        "--node-config", f'site="{kit.name}" kit="{kit.folder}"',
    ]  # fmt: skip
    if insecure:
        command += ["--insecure"]
    else:
        command += ["--root-certificates", str(kit.folder / "ca.crt")]
        command += ["--auth-supernode-private-key", str(kit.private_key)]
    env = environment(kit.folder / "flower", UNSEEN_APP=str(folder))
    begun, once = time.monotonic(), cache(say)
    try:
        with until_told():
            say(f"{kit.name} takes part in {kit.federation} at {kit.address} with {path}")
            while True:
                with Child(command, env, kit.log) as child:
                    child.wait()
                    if STILL not in child.said() or time.monotonic() - begun > MISSED:
                        raise child.ended("the connection ended")
                    once("the server still counts on the connection before; trying again")
                    time.sleep(LOOK)
    except KeyboardInterrupt:
        say("stopped.")
        return 0


def settle(kit: Kit, data: Path, allow: Sequence[str] = ()) -> Path:
    """Write site.toml, which the training code reads, and return where the data are.

    Args:
        kit: The site's kit.
        data: The site's folder or csv file.
        allow: Parts outside unseen; what was allowed before stays.
    """
    path = data.expanduser().absolute()
    if not path.exists():
        raise UnseenError(f"--data {path} is neither a folder nor a file.")
    kit.state.mkdir(mode=0o700, exist_ok=True)
    file = kit.folder / "site.toml"
    before = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    settings = {
        "name": kit.name,
        "role": kit.role,
        "federation": kit.federation,
        "data": str(path),
        "state": str(kit.state),
        "allow": sorted({*before.get("allow", ()), *allow}),
    }
    certificates.write(file, toml(settings).encode())
    return path


def _just_begun(answer: Answer) -> bool:
    """Return whether the server may not have let its sites in yet."""
    return float(answer.content.get("up", LETTING_IN)) < LETTING_IN


def welcome(kit: Kit, insecure: bool, say: Callable[[str], None]) -> None:
    """Ask the server first: refuse what cannot work, wait for one that is not there yet."""
    once = cache(say)
    while (answer := ask(kit, insecure)).trouble == "unreachable":
        once(f"{answer.text} Trying again until it answers; Ctrl-C stops.")
        time.sleep(3.0)
    while not answer.trouble and unregistered(kit, answer) and _just_begun(answer) and not insecure:
        time.sleep(1.0)
        answer = ask(kit, insecure)
    if answer.trouble:
        raise UnseenError(f"refused. {answer.text}", remedy=answer.remedy)
    if fault := (not insecure and unregistered(kit, answer)) or other_versions(answer):
        raise UnseenError(f"refused. {fault.what}", remedy=fault.remedy)
