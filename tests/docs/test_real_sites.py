"""The tutorial with a server and three sites: its blocks as they stand, in real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorials" / "real-sites.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w.-]+\.(?:py|toml))\n")
#: The first line of a block whose commands run until the end of the page.
TERMINALS = "# each in its own terminal\n"
#: By how much all limits of time are longer than a quiet machine of two cores needs.
SLOWER = float(os.environ.get("UNSEEN_SLOWER", "1"))


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def matches(expected: str, found: str) -> bool:
    """Return whether the text was printed; `...` stands for anything."""
    parts = (re.escape(" ".join(part.split())) for part in expected.split("..."))
    return re.search(".*?".join(parts), " ".join(found.split())) is not None


@contextmanager
def running(command: str, log: Path) -> Iterator[None]:
    """Run a command until the block is left."""
    with log.open("wb") as file:
        process = subprocess.Popen(command.split(), stdout=file, stderr=file, env=environment())
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60 * SLOWER)


def printed_in_time(log: Path, expected: str) -> bool:
    end = time.monotonic() + 180 * SLOWER
    while not matches(expected, log.read_text()):
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_tutorial_runs_from_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    server, printed = tmp_path / "terminal-0.log", ""
    with ExitStack() as terminals:
        for kind, text in BLOCK.findall(PAGE.read_text("utf-8")):
            if named := FILE.match(text):
                (tmp_path / named[1]).write_text(text, "utf-8")
            elif text.startswith(TERMINALS):
                for i, command in enumerate(text.removeprefix(TERMINALS).splitlines()):
                    log = tmp_path / f"terminal-{i}.log"
                    terminals.enter_context(running(command, log))
                printed = ""
            elif kind == "sh":
                ran = subprocess.run(
                    ["bash", "-ec", text], capture_output=True, text=True, env=environment(),
                    timeout=1800 * SLOWER,
                )  # fmt: skip
                printed = ran.stdout + ran.stderr
                assert ran.returncode == 0, f"{text}\n{printed}"
            else:
                assert kind == "text", f"a block that is not run: {kind}"
                found = matches(text, printed) if printed else printed_in_time(server, text)
                assert found, f"expected:\n{text}\nprinted:\n{printed or server.read_text()}"
    answers = (tmp_path / "east-predictions.csv").read_text().splitlines()
    assert len(answers) == 1 + 80
    assert list((tmp_path / "kits" / "north" / "models").glob("*/model.safetensors"))


def test_no_command_is_cut_off_on_a_narrow_page() -> None:
    for _, text in BLOCK.findall(PAGE.read_text("utf-8")):
        assert max(map(len, text.splitlines())) <= 76
