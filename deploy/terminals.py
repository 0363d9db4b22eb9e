"""Commands in terminals of their own, and what they said, for pages that show them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

UNSEEN = [sys.executable, "-c", "from unseen.cli.main import main; main()"]


class Terminals:
    """What was typed in a folder, and what was answered.

    shown: what stands on a page in the place of a path.
    """

    def __init__(self, work: Path, shown: Mapping[str, str]) -> None:
        self.work, self.shown = work, {f"{work}/": "", **shown}
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *words: str) -> None:
        """A command in a terminal of its own."""
        with (self.work / f"{name}.log").open("wb") as log:
            self.started[name] = subprocess.Popen(
                [*UNSEEN, *words], cwd=self.work, stdout=log, stderr=log, start_new_session=True
            )

    def said(self, name: str, words: str, seconds: float = 600) -> None:
        """Wait until it says so."""
        end = time.monotonic() + seconds
        while words not in (self.work / f"{name}.log").read_text():
            if time.monotonic() > end or self.started[name].poll() is not None:
                raise SystemExit(f"{name} did not say {words!r}")
            time.sleep(0.2)

    def do(self, *words: str, seconds: float = 3600) -> str:
        """A command from its beginning to its end, and what it said."""
        self.start("done", *words)
        if status := self.started.pop("done").wait(seconds):
            raise SystemExit(f"{' '.join(words)} ended with {status}")
        return self.log("done", *words)

    def log(self, name: str, *words: str) -> str:
        """A command and what it has said so far, but for whom it waits."""
        answer = (self.work / f"{name}.log").read_text().splitlines()
        told = [line for line in answer if not line.startswith("waiting for")]
        text = "\n".join([f"$ unseen {' '.join(words)}", *told])
        for path, name_of_it in self.shown.items():
            text = text.replace(path, name_of_it)
        return text

    def stop(self) -> None:
        """End what still runs."""
        for process in reversed(self.started.values()):
            if process.poll() is None:
                process.terminate()
        for process in self.started.values():
            process.wait(60)
