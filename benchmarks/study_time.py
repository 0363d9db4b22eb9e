"""A whole table, end to end, from an empty process to the table on disk.

    python benchmarks/study_time.py [--quick]

Ours is the command `unseen study`, with two jobs; the other is `published.py` on the same methods,
targets, seeds, rounds and evaluations, in one process with torch's default threads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from harness import HERE, Goal, Timings, interleaved, main

METHODS = "deepall,fedavg,ppdg,fedavg+ga"
goals = [Goal("study", "whole rotated-digits study: ≥ 4× the published style", at_least=4)]


def environment(threads: int | None) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    return kept | ({"OMP_NUM_THREADS": str(threads)} if threads else {})


def ours(settings: list[str]) -> None:
    code = "from unseen.cli.main import main; main()"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code, "study", "digits", *settings, "--jobs", "2"]
        command += ["--out", str(Path(folder) / "out")]
        subprocess.run(command, check=True, capture_output=True, env=environment(1))


def published(rounds: int, targets: str, seeds: int, methods: str) -> None:
    command = [sys.executable, str(HERE / "published.py"), str(rounds), targets, str(seeds)]
    subprocess.run([*command, methods], check=True, capture_output=True, env=environment(None))


def compared(rounds: int, targets: list[int], seeds: int, methods: str = METHODS) -> Timings:
    """Run the digits of some angles in both ways."""
    settings = ["--methods", methods, "--targets", ",".join(str(15 * t) for t in targets)]
    settings += ["--seeds", str(seeds), f"rounds={rounds}"]
    numbers = ",".join(map(str, targets))
    ways = {
        "published style": partial(published, rounds, numbers, seeds, methods),
        "ours, 2 jobs": partial(ours, settings),
    }
    return interleaved(ways, 1, warm=0)


def run(quick: bool) -> dict[str, Any]:
    timings = compared(1, [0], 1, "fedavg") if quick else compared(30, list(range(6)), 3)
    what = "rotated digits" + (", a slice" if quick else ", all 72 jobs of 30 rounds")
    values = {"study": None if quick else timings.ratio("published style", "ours, 2 jobs").list()}
    notes = ["Whole studies ran once each: no quartiles."]
    return {"measured": timings.rows(what, "published style"), "goals": values, "notes": notes}


if __name__ == "__main__":
    main(__file__)
