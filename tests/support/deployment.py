"""A federation of real processes on this machine, as its users start it: kits, TLS and keys.

Own port and own folders; everything is ended by pid.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unseen.sites.kits import kit_spec, provision

ROOT = Path(__file__).parents[2]
OPEN = """
approval = "auto"
[columns]
"*" = ["feature", "label", "group", "levels"]
[least]
examples = 1
rows_per_level = 2
"""
#: By how much all limits of time are longer than a quiet machine of two cores needs.
SLOWER = float(os.environ.get("UNSEEN_SLOWER", "1"))
UNSEEN = [sys.executable, "-c", "from unseen.cli.main import main; main()", "federation"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def processes() -> dict[int, int]:
    """pid -> parent, as /proc says; zombies left out."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            if status[0] != "Z":
                parents[int(entry.name)] = int(status[1])
    return parents


def descendants(pid: int) -> list[int]:
    parents, found = processes(), [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


@dataclass
class Federation:
    """sites: name -> (role, data)."""

    folder: Path
    sites: Mapping[str, tuple[str, Path]]
    port: int = field(default_factory=free_port)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        roles = {name: role for name, (role, _) in self.sites.items()}
        described = kit_spec.Federation(
            name="trial", servers=("localhost", "127.0.0.1"), port=self.port, sites=roles
        )
        provision.provision(described, self.folder / "kits")
        for name in self.sites:  # nobody sits at these sites
            (self.kit(name) / "site.toml").write_text(OPEN)

    def kit(self, name: str) -> Path:
        return self.folder / "kits" / name

    def start(self, name: str, *words: object, changed: Path | None = None) -> None:
        paths = [str(changed or ""), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        }  # fmt: skip
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*UNSEEN, *map(str, words)], stdout=log, stderr=log, cwd=self.folder,
                env=environment,
            )  # fmt: skip

    def serve(self) -> None:
        self.start("server", "serve", self.kit("server"))
        self.until(self.listening, 90)

    def listening(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def join(self, name: str, changed: Path | None = None) -> None:
        """changed: a folder with another package, which this site runs instead."""
        self.start(name, "join", self.kit(name), "--data", self.sites[name][1], changed=changed)

    def begin(self, study: Path, out: Path, changed: Mapping[str, Path] | None = None) -> None:
        """Server, all sites and the run. changed: by site, see `join`."""
        self.serve()
        for name in self.sites:
            self.join(name, (changed or {}).get(name))
        self.run(study, out)

    def run(self, study: Path, out: Path) -> None:
        self.start("run", "run", study, "--kit", self.kit("server"), "--out", out)

    def ends(self, seconds: float = 240) -> int:
        """The exit status of the run."""
        try:
            return self.running["run"].wait(seconds * SLOWER)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run did not end:\n{self.logs()}") from None

    def until(self, true: Callable[[], object], seconds: float = 240) -> None:
        end = time.monotonic() + seconds * SLOWER
        while not true():
            for name, process in self.running.items():
                if name != "run" and process.poll() is not None:
                    raise AssertionError(f"{name} ended:\n{self.logs()}")
            if time.monotonic() > end:
                raise AssertionError(f"it did not come to that:\n{self.logs()}")
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        """kill -9: the command and all that it started."""
        process = self.running.pop(name)
        for pid in [process.pid, *descendants(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        if name == "server":  # its children go after it, and until then their port is open
            self.until(lambda: not self.listening())

    def logs(self) -> str:
        found = [*self.folder.glob("*.log"), *self.folder.glob("kits/*/logs/*.log")]
        return "\n".join(f"== {p}\n{p.read_text(errors='replace')[-3000:]}" for p in found)

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        pids = [p for process in self.running.values() for p in descendants(process.pid)]
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        left = [pid for pid in pids if pid in processes()]
        end = time.monotonic() + 15
        while left and time.monotonic() < end:
            time.sleep(0.2)
            left = [pid for pid in left if pid in processes()]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, f"left behind: {left}"


def faulty() -> Any:
    """The module by which the drill makes faulty sites."""
    found = importlib.util.spec_from_file_location("faulty", ROOT / "deploy" / "faulty.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def told(out: Path) -> dict[str, Any]:
    """What the run says of itself."""
    with suppress(OSError, ValueError):
        return dict(json.loads((out / "federation.json").read_bytes()))
    return {}
