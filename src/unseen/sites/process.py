"""One child in the foreground, and the end of all that it started."""

import contextlib
import ctypes
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from unseen.errors import UnseenError
from unseen.sites.kits.closed import OTHERS, closed, umask
from unseen.visible import visible

#: Seconds that processes get to end by themselves.
PATIENCE = 8.0
#: A log is put aside when it is larger; one older log is kept.
LOG_LIMIT = 16 * 2**20
#: Which variable says who started a process.
PARENT = "UNSEEN_PARENT"
#: Which variable says with which umask, for records: they lie outside of the kit.
UMASK = "UNSEEN_UMASK"
#: This machine by its names, whose requests no proxy must see.
LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: Linux: PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER.
DEATH_SIGNAL, SUBREAPER = 1, 36


def say(text: str) -> None:
    """Print a line without delay, also into a pipe."""
    print(text, flush=True)


def one_line(record: logging.LogRecord) -> bool:
    """Make what a record was filled in with visible: other machines' words pretend no lines."""
    if isinstance(record.args, tuple):
        record.args = tuple(x if isinstance(x, int | float) else visible(x) for x in record.args)
    return True


def log_in_lines() -> None:
    """Let Flower's logger, which ours is part of, write one line for each record."""
    logging.getLogger("flwr").addFilter(one_line)


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of Flower's processes: quiet, offline, installing nothing."""
    home.mkdir(parents=True, exist_ok=True)
    here = str(Path(sys.executable).parent)  # Flower starts its own tools by name
    path = os.pathsep.join((here, os.environ.get("PATH", os.defpath)))
    return {
        **os.environ, **without_proxy(), "PATH": path, "FLWR_HOME": str(home),
        PARENT: str(os.getpid()), UMASK: f"{umask():o}",
        "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1", **more,
    }  # fmt: skip


def without_proxy() -> dict[str, str]:
    """Return the variables by which requests within this machine pass no proxy."""
    own = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = ",".join(filter(None, (own, *LOOPBACK)))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


class Child:
    """A process with a log, and everything that descends from it; leaving its context ends it."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        prctl(SUBREAPER, 1)  # what our children leave behind becomes ours, so that it can be found
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log = log
        with closed(), log.open("ab") as file:
            self.begin = file.tell()
            self.process = subprocess.Popen(
                list(command), env=dict(env), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                umask=OTHERS,
                start_new_session=True,  # Ctrl-C reaches us alone, and we end it in order
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def code(self) -> int | None:
        """Its exit status, None while it runs."""
        return self.process.poll()

    def output(self) -> str:
        """Return what it wrote since it was started."""
        with self.log.open("rb") as file:
            file.seek(self.begin)
            return file.read().decode(errors="replace")

    def ended(self, what: str) -> UnseenError:
        """Return an error that says what ended, with the line of the log that says why."""
        output = re.sub(r"\x1b\[[0-9;]*m", "", self.output())  # Flower's log has colours
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        telling = [line for line in lines if re.search("rror|refused|nvalid|[Ff]ailed", line)]
        why = (telling or lines or [""])[-1][:300]
        return UnseenError(f"{what} (status {self.code}). {why} Log: {self.log}")

    def wait(self, every: Callable[[], None] = lambda: None, interval: float = 0.5) -> None:
        """Wait until it ends by itself.

        `every` is called again and again meanwhile.
        """
        while self.code is None:
            every()
            self.trim()
            time.sleep(interval)

    def trim(self) -> None:
        """Put a large log aside; the process goes on writing at the end of what is left."""
        with contextlib.suppress(OSError):  # a log that is gone, or no room for it, ends nothing
            if self.log.stat().st_size > LOG_LIMIT:
                with closed():
                    shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
                os.truncate(self.log, 0)
                self.begin = 0

    def stop(self) -> None:
        """End it, then all that it left behind, by their ids."""
        if self.code is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)
        for sign, seconds in ((signal.SIGTERM, PATIENCE), (signal.SIGKILL, 2.0)):
            until, pids = time.monotonic() + seconds, descendants(os.getpid())
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sign)
            while pids and time.monotonic() < until:
                time.sleep(0.05)
                self.process.poll()
                pids = [pid for pid in descendants(os.getpid()) if not _reaped(pid)]


@contextlib.contextmanager
def until_told() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, so that what it started is ended first."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def descendants(root: int) -> list[int]:
    """Return all processes below one, children before grandchildren."""
    parents, pids = _parents(), [root]
    for pid in pids:
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids[1:]


def check_port(host: str, port: int, what: str) -> None:
    """Refuse a port that another process has."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        socket.create_server((host, port), family=family, dualstack_ipv6=host == "::").close()
    except OSError as error:
        why = os.strerror(error.errno or 0)
        fault = f"port taken: another process listens on {where} ({why})."
        stop, change = f"Stop it (`ss -ltnp | grep :{port}` names it), or change", "Change"
        if denied := isinstance(error, PermissionError):
            fault = f"this account may not use port {port} of {host}: below 1024 needs rights."
        remedy = f"{change if denied else stop} `port` in {what} and in the kits of the sites."
        raise UnseenError(fault, remedy=remedy) from None


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def die_with_parent() -> None:
    """On Linux, end when the process that started this one (UNSEEN_PARENT) is killed."""
    prctl(DEATH_SIGNAL, signal.SIGTERM)
    if sys.platform == "linux" and os.environ.get(PARENT, str(os.getppid())) != str(os.getppid()):
        sys.exit(1)  # it was killed before we asked


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process on Linux; the manual page of this name lists them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _reaped(pid: int) -> bool:
    """Whether a process has ended; its exit status is taken if it was left to us."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return False


def _parents() -> dict[int, int]:
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True).stdout
        return {int(pid): int(parent) for pid, parent in map(str.split, listed.splitlines())}
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    return parents
