"""A fault drill on one machine: kill -9 a site in mid-round, then the server, and see what is lost.

    python deploy/drill.py STUDY.toml KITS DATA OUT

KITS: folder of kits, DATA: folder with one folder of data per site, OUT: where records go. Every
line is stamped with the seconds since the start. Linux, for it finds processes in /proc.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from unseen.federation.kit import Kit
from unseen.federation.kits import described
from unseen.federation.run import standing
from unseen.study.spec import Study

#: How long any one thing may take, in seconds.
PATIENCE = 1200
BEGUN = time.monotonic()


def say(text: str) -> None:
    """One line of the log."""
    print(f"{time.monotonic() - BEGUN:7.1f}  {text}", flush=True)


class Part:
    """One command of `unseen federation`, and all the processes that it has for a kit."""

    def __init__(self, kit: Path, log: Path, *words: object) -> None:
        self.kit, self.log = kit, log
        command = [sys.executable, "-c", "from unseen.cli import main; main()", "federation"]
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [*command, *map(str, words)], stdout=file, stderr=file, start_new_session=True
            )

    def kill(self) -> int:
        """kill -9 it and every process that names its kit; how many there were."""
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
            self.process.wait(60)


def until(what: str, true: Callable[[], bool]) -> None:
    """Wait for something to be true."""
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {PATIENCE} s")
        time.sleep(0.2)
    say(what)


def main(study: Path, kits: Path, data: Path, out: Path) -> None:
    """The drill."""
    federation, rounds = described(kits), Study.read(study).rounds
    sites = list(federation.sites)
    victim = next(name for name, role in reversed(federation.sites.items()) if role == "train")
    logs = out.parent / "drill-logs"
    logs.mkdir(parents=True, exist_ok=True)
    server = Kit.read(kits / "server").folder
    parts: dict[str, Part] = {}

    def serve() -> None:
        parts["server"] = Part(server, logs / "server.log", "serve", server)

    def join(name: str) -> None:
        kit = Kit.read(kits / name).folder
        words = ("join", kit, "--data", data / name)
        parts[name] = Part(kit, logs / f"{name}.log", *words)

    def run() -> Part:
        words = ("run", study, "--kit", server, "--out", out)
        return Part(out, logs / "run.log", *words)

    def at(round: int, exchange: str = "") -> bool:
        found = standing(out)
        now = int(found.get("round", -1))
        return now > round or (now == round and exchange in ("", found.get("exchange")))

    def up(log: str, words: str, since: int) -> bool:
        path = logs / log
        return path.is_file() and words in path.read_text()[since:]

    try:
        serve()
        until("server is up", lambda: up("server.log", "serving", 0))
        for name in sites:
            join(name)
        until("all sites are connected", lambda: all(
            up("server.log", f"{name}: connected", 0) for name in sites))  # fmt: skip
        running = run()
        until("round 2 is being trained", lambda: at(1, "train"))
        time.sleep(2)
        say(f"kill -9 {victim} in mid-training: {parts[victim].kill()} processes")
        until("round 3 began without it", lambda: at(2))
        join(victim)
        say(f"{victim} is started again")
        mark = len((logs / "server.log").read_text())
        until(f"{victim} is back", lambda: up("server.log", f"{victim}: connected", mark))
        begun = int(standing(out)["round"])
        until("two rounds later", lambda: at(begun + 2, "train"))
        before = finished(out)
        say(f"kill -9 server: {parts['server'].kill()} processes; finished rounds: {before}")
        running.process.wait(120)
        say("run says: " + (logs / "run.log").read_text().strip().splitlines()[-1])
        mark = len((logs / "server.log").read_text())
        serve()
        until("server is up again", lambda: up("server.log", "serving", mark))
        until("sites are back by themselves", lambda: all(
            up("server.log", f"{name}: connected", mark) for name in sites))  # fmt: skip
        running = run()
        until(f"the last round, {rounds}, is over", lambda: bool(standing(out).get("finished")))
        running.process.wait(120)
        report(out, rounds)
        print((out / "table.txt").read_text().rstrip())
    finally:
        for part in reversed(parts.values()):
            part.end()
        say("everything is stopped")


def finished(out: Path) -> int:
    """How many rounds the records hold."""
    return len({line["round"] for line in lines(out, "rounds.jsonl")})


def lines(out: Path, name: str) -> list[dict[str, object]]:
    """Records of the one job."""
    found = []
    for path in sorted((out / "records").rglob(name)):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # a line that a kill cut in two
                found.append(json.loads(line))
    return found


def report(out: Path, rounds: int) -> None:
    """Who took part in each round, by the messages that were answered."""
    took: dict[int, set[str]] = {}
    for line in lines(out, "messages.jsonl"):
        if line["exchange"] == "train" and not line["fault"]:
            took.setdefault(int(str(line["round"])), set()).add(str(line["site"]))
    for round in range(rounds):
        say(f"round {round + 1}: {', '.join(sorted(took.get(round, set()))) or 'nobody'}")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    main(*(Path(word).absolute() for word in sys.argv[1:]))
