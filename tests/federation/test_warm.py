"""A command that is answered by a fork, and by itself where nobody forks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from unseen.sites import prefork

FORKS = """
import sys, time
from pathlib import Path
from unseen.sites import prefork
prefork.die_with_parent()
words, folder, environment = prefork.answer(prefork.listening(Path(sys.argv[1])))
time.sleep(0.5)
(Path(folder) / "said").write_text(f"{words} {environment['MARK']}")
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")


def asked(folder: Path, *words: str) -> str:
    said = folder.parent / "said"
    said.unlink(missing_ok=True)
    command = [str(folder / prefork.COMMAND), *words]
    environment = {**os.environ, "MARK": "mark"}
    subprocess.run(command, cwd=folder.parent, env=environment, check=True, timeout=60)
    return said.read_text()


def test_a_command_is_answered_by_a_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, folder = tmp_path / "own", tmp_path / "warm"
    own.write_text('#!/bin/sh\necho "own $*" > said\n')
    own.chmod(0o700)
    monkeypatch.setattr(prefork.shutil, "which", lambda name: str(own))
    monkeypatch.setattr(prefork.subprocess, "Popen", lambda *_, **__: SimpleNamespace())
    monkeypatch.setenv("PATH", os.environ["PATH"])
    prefork.start(folder)
    monkeypatch.undo()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert asked(folder, "--token", "x") == "own --token x\n"  # nobody is there to be asked
    environment = {**os.environ, prefork.PARENT: str(os.getpid())}
    forks = subprocess.Popen([sys.executable, "-c", FORKS, str(folder)], env=environment)
    try:
        end = time.monotonic() + 60
        while not (folder / prefork.SOCKET).exists() and time.monotonic() < end:
            time.sleep(0.05)
        for _ in range(3):  # the command ends when the fork does, which has written by then
            assert asked(folder, "--token", "x") == "['--token', 'x'] mark"
    finally:
        forks.kill()
        forks.wait()
    assert asked(folder, "y") == "own y\n"
