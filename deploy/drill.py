"""A drill on one machine: who is refused, sites that fail, a full disk, a killed server.

    python deploy/drill.py STUDY.toml KITS DATA OUT

STUDY: of one method with one exchange that trains, of at least 14 rounds, with a deadline of some
minutes. KITS: folder of kits, of which one site evaluates and three train. DATA: folder with one
folder of data per site. OUT: where records go. Every line is stamped with the seconds since the
start. Linux, for it finds processes in /proc.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import faulty
import flood

from unseen.sites.control import STANDING, standing
from unseen.sites.kits import certificates
from unseen.sites.kits.kit import Kit
from unseen.sites.kits.provision import described, provision
from unseen.sites.serve import settle
from unseen.studies.execution import Study

#: How long any one thing may take, in seconds.
PATIENCE = 1800
UNSEEN = [sys.executable, "-c", "from unseen.cli.main import main; main()", "federation"]
BEGUN = time.monotonic()
#: What one site answers wrongly, by round, from 1.
PLAN = {
    2: "nan", 3: "short", 4: "old", 5: "twice", 6: "late", 7: "huge", 8: "many", 9: "large",
}  # fmt: skip
#: Rounds in which another site is killed, the disk is full, and the server is killed.
KILL, FULL, CRASH = 10, 13, 14


def say(text: str) -> None:
    """One line of the log."""
    print(f"{time.monotonic() - BEGUN:7.1f}  {text}", flush=True)


def until(what: str, true: Callable[[], object]) -> None:
    """Wait for something to be true, and say that it is."""
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {PATIENCE} s")
        time.sleep(0.2)
    say(what)


class Part:
    """One command of `unseen federation`, and all the processes that it has for a kit."""

    def __init__(self, kit: Path, log: Path, *words: object, changed: Path | None = None) -> None:
        self.kit, self.log = kit, log
        paths = [str(changed)] if changed else []
        paths += [path] if (path := os.environ.get("PYTHONPATH")) else []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with log.open("ab") as file:
            self.begin = file.tell()
            self.process = subprocess.Popen(
                [*UNSEEN, *map(str, words)], stdout=file, stderr=file, start_new_session=True,
                env=environment,
            )  # fmt: skip

    def said(self) -> str:
        """What it has said since it was started."""
        return self.log.read_bytes()[self.begin :].decode(errors="replace")

    def kill(self) -> int:
        """Kill it and every process that names its kit with -9; return how many there were."""
        pids = {self.process.pid}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                text = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
                if f"{self.kit}/".encode() in text and int(path.name) != os.getpid():
                    pids.add(int(path.name))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        return len(pids)

    def end(self) -> None:
        """SIGTERM, as a service manager does."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(90)
            except subprocess.TimeoutExpired:
                self.kill()


class Drill:
    """A federation on this machine, and what is done to it."""

    def __init__(self, study: Path, kits: Path, data: Path, out: Path) -> None:
        self.study, self.kits, self.data, self.out = study, kits, data, out
        sites = described(kits).sites
        self.sites = list(sites)
        self.victim, self.wrong, *_ = [name for name in reversed(sites) if sites[name] == "train"]
        self.limits = Study.read(study).federation
        self.work = out.parent / f"{out.name}-work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.server = Kit.read(kits / "server").folder
        self.parts: dict[str, Part] = {}

    def agree(self) -> None:
        """Somebody at each site approves the study."""
        for name in self.sites:
            kit = Kit.read(self.kits / name)
            settle(kit, self.data / name)
            words = ("approve", kit.folder, self.study)
            subprocess.run([*UNSEEN, *map(str, words)], check=True, stdout=subprocess.DEVNULL)
        say("every site has approved the study")

    def serve(self) -> None:
        """Start the server and wait until it serves."""
        part = Part(self.server, self.work / "server.log", "serve", self.server)
        self.parts["server"] = part
        until("the server is up", lambda: "serving" in part.said())

    def join(self, name: str, changed: Path | None = None) -> None:
        """Start a site."""
        kit = Kit.read(self.kits / name).folder
        words = ("join", kit, "--data", self.data / name)
        self.parts[name] = Part(kit, self.work / f"{name}.log", *words, changed=changed)

    def run(self) -> None:
        """Start the study, or go on with it."""
        words = ("run", self.study, "--kit", self.server, "--out", self.out)
        self.parts["run"] = Part(self.out, self.work / "run.log", *words)

    def connected(self, *names: str) -> Callable[[], bool]:
        """Whether the server has said so since it was started."""
        return lambda: all(f"{n}: connected" in self.parts["server"].said() for n in names)

    def training(self, round: int) -> Callable[[], bool]:
        """Whether a round, from 1, is being trained, or a later one."""

        def true() -> bool:
            found = standing(self.out)
            now = int(found.get("round", -1)) + 1
            return now > round or (now == round and found.get("exchange") == "train")

        return true

    def again(self) -> None:
        """The same command once more, and where it goes on."""
        (self.out / STANDING).unlink(missing_ok=True)
        self.run()
        until("the same command goes on", self.training(1))
        say(f"it trains round {int(standing(self.out)['round']) + 1}")

    def ended(self) -> None:
        """Wait for the run to end, and repeat what it said last."""
        self.parts["run"].process.wait(PATIENCE)
        last = self.parts["run"].said().strip().splitlines()[-1]
        say(f"the run ended: {last}")

    def refusals(self) -> None:
        """Sites that must not come in, each started with `join`."""
        with self.copied() as kit:
            certificates.write_site_keys(kit, self.work, self.victim)
            self.refused("a key that is not registered", kit)
        with self.copied() as kit, self.other(datetime.now(UTC)) as other:
            shutil.copy(other / "server" / "ca.crt", kit / "ca.crt")
            self.refused("another authority's certificate", kit)
        with self.other(datetime.now(UTC) - timedelta(days=500)) as other, shown(other):
            self.refused("a server whose certificate has expired", other / self.victim)
            part = Part(other, self.work / "expired.log", "serve", other / "server")
            part.process.wait(120)
            say(f"serve with that certificate: {part.said().strip().splitlines()[-1]}")

    @contextlib.contextmanager
    def copied(self) -> Iterator[Path]:
        """A kit to be spoiled."""
        copy = self.work / "spoiled"
        # Of the processes that ran with it a socket is left, which cannot be copied.
        shutil.copytree(self.kits / self.victim, copy, ignore=shutil.ignore_patterns("flower"))
        yield copy
        shutil.rmtree(copy)

    @contextlib.contextmanager
    def other(self, begun: datetime) -> Iterator[Path]:
        """Kits of another federation, on a port of its own."""
        out = self.work / "other"
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        provision(described(self.kits).model_copy(update={"port": port}), out, begun)
        yield out
        shutil.rmtree(out)

    def refused(self, what: str, kit: Path, *words: str) -> None:
        """`join` with a kit that is not let in."""
        part = Part(kit, self.work / "refused.log", "join", kit, "--data", self.data, *words)
        status = part.process.wait(120)
        last = part.said().strip().splitlines()[-1]
        say(f"join with {what}: {last.partition('refused. ')[2] or last} (status {status})")

    def bad_answers(self) -> None:
        """A site whose installation was changed."""
        late = self.limits.deadline + 20
        changed = faulty.install(self.work / "changed", PLAN, late)
        for name in self.sites:
            self.join(name, changed if name == self.wrong else None)
        until("all sites are connected", self.connected(*self.sites))
        self.run()
        for round, fault in PLAN.items():
            until(f"round {round} began: {self.wrong} {faulty.FAULTS[fault]}", self.training(round))

    def killed_site(self) -> None:
        """A SuperNode killed in mid-training, started again two rounds later."""
        until(f"round {KILL} began", self.training(KILL))
        until(f"{self.victim} is in the middle of it", lambda: working(self.kits / self.victim))
        say(f"kill -9 {self.victim}: {self.parts[self.victim].kill()} processes")
        until(f"round {KILL + 2} began without it", self.training(KILL + 2))
        mark = len(self.parts["server"].said())
        self.join(self.victim)
        back = f"{self.victim}: connected"
        until(f"{self.victim} is back", lambda: back in self.parts["server"].said()[mark:])

    def full_disk(self) -> None:
        """The server's disk is full when a round is to be kept."""
        until(f"round {FULL} began", self.training(FULL))
        (job,) = self.out.glob("records/*/*/seed-*")
        part = job / "checkpoint.pt.part"
        part.unlink(missing_ok=True)
        part.symlink_to("/dev/full")
        say("from now on the disk of the server is full")
        self.ended()
        part.unlink()
        say("there is room again")
        self.again()

    def killed_server(self) -> None:
        """The server killed in mid-round, and the same command given again."""
        until(f"round {CRASH} began", self.training(CRASH))
        say(f"kill -9 server: {self.parts['server'].kill()} processes")
        self.ended()
        self.serve()
        until("the sites are back by themselves", self.connected(*self.sites))
        self.again()
        until("the last round is over", lambda: standing(self.out).get("finished"))
        self.ended()

    def report(self) -> None:
        """Who took part in each round, and why somebody did not, as the records say."""
        for line in lines(self.out, "rounds.jsonl"):
            clients, dropped = line["clients"], line["dropped"]
            assert isinstance(clients, list) and isinstance(dropped, Mapping)
            text = ", ".join(clients)
            for name, why in dropped.items():
                text += f"; without {name}: {why}"
            say(f"round {int(str(line['round'])) + 1}: {text}")
        print((self.out / "table.txt").read_text().rstrip())


@contextlib.contextmanager
def shown(kits: Path) -> Iterator[None]:
    """Something that shows the server's certificate on the server's port, and nothing more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kits / "server" / "server.crt", kits / "server" / "server.key")
    listener = socket.create_server(("127.0.0.1", int(described(kits).port)))

    def answer() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True):
                pass

    threading.Thread(target=answer, daemon=True).start()
    yield
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def working(kit: Path) -> bool:
    """Whether a message is being worked on: its process was started for the kit."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            started = b"flwr-clientapp" in (path / "cmdline").read_bytes()
            if started and f"{kit}/".encode() in (path / "environ").read_bytes():
                return True
    return False


def lines(out: Path, name: str) -> list[dict[str, object]]:
    """Records of the one job."""
    found = []
    for path in sorted((out / "records").rglob(name)):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # a line that a kill cut in two
                found.append(json.loads(line))
    return found


def main(study: Path, kits: Path, data: Path, out: Path) -> None:
    """The drill."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
    drill = Drill(study, kits, data, out)
    try:
        drill.agree()
        drill.serve()
        drill.refusals()
        flood.Flood(Kit.read(kits / "server"), drill.parts["server"].process.pid, say).all(1)
        drill.bad_answers()
        drill.killed_site()
        drill.full_disk()
        drill.killed_server()
        drill.report()
    finally:
        for part in reversed(drill.parts.values()):
            part.end()
        say("everything is stopped")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    main(*(Path(word).absolute() for word in sys.argv[1:]))
