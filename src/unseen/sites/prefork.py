"""Processes of messages that are forked from one which has imported everything.

Flower starts `flwr-clientapp` for each message, and importing torch takes seconds. `start` puts a
command of that name first on the PATH of a SuperNode, which asks a process of ours, over a socket
in the kit, for a fork of itself. The fork does what Flower's own command would do and ends. Where
nobody answers, Flower's own is started.
"""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path

from unseen.sites.process import DEATH_SIGNAL, PARENT, die_with_parent, prctl
from unseen.sites.templates import render

COMMAND, SOCKET = "flwr-clientapp", "ask"


def start(folder: Path) -> None:
    """Put the command in place, and start the process that it asks; on Linux alone."""
    command = shutil.which(COMMAND)
    if command is None or sys.platform != "linux":
        return
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    script = folder / f"{COMMAND}.py"
    names = {"folder": str(folder), "socket": SOCKET, "own": command}
    words = {"python": sys.executable, "script": str(script)}
    for path, template, values in (
        (script, "ask.py.txt", {name: repr(value) for name, value in names.items()}),
        (folder / COMMAND, "ask.sh", {name: shlex.quote(word) for name, word in words.items()}),
    ):
        path.write_text(render(template, **values))
    (folder / COMMAND).chmod(0o700)
    subprocess.Popen(
        [sys.executable, "-m", "unseen.sites.prefork", str(folder)],
        env={**os.environ, PARENT: str(os.getpid())},
    )
    os.environ["PATH"] = os.pathsep.join((str(folder), os.environ.get("PATH", os.defpath)))


def listening(folder: Path) -> socket.socket:
    """Return the socket in a folder, which becomes the current one."""
    os.chdir(folder)
    Path(SOCKET).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(SOCKET)
    listener.listen(8)
    listener.settimeout(1.0)
    return listener


def answer(listener: socket.socket) -> tuple[list[str], str, dict[str, str]]:
    """Fork whenever it is asked for; what was asked is returned in each fork."""
    parent = os.getpid()
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection, suppress(OSError, ValueError):
            connection.settimeout(10)
            with connection.makefile("rb") as request:
                words, folder, environment = json.load(request)
            if not os.fork():
                listener.close()
                prctl(DEATH_SIGNAL, signal.SIGTERM)
                if os.getppid() != parent:
                    os._exit(1)
                connection.sendall(b"+")
                os.dup(connection.fileno())  # open until this process has ended
                return words, folder, environment


def main() -> None:
    """Import all that a message needs, and wait to be asked: `prefork FOLDER`."""
    die_with_parent()
    (entry,) = metadata.entry_points(group="console_scripts", name=COMMAND)
    command = entry.load()
    import_module("unseen.sites.flower.client_app")
    with suppress(ImportError):
        import_module("pandas")  # which pyarrow imports when it reads the first table
    try:
        listener = listening(Path(sys.argv[1]))
    except OSError as error:  # a folder that can hold no socket, say
        sys.exit(f"each message imports everything for itself: {error}")
    words, folder, environment = answer(listener)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [COMMAND, *words]
    sys.exit(command())


if __name__ == "__main__":
    main()
