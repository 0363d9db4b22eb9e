"""A whole table, end to end, from an empty process to the table on disk.

    python benchmarks/study_time.py [--quick]

Ours is the command `unseen study`, with two jobs; the other is `published.py` on the same methods,
targets, seeds, rounds and evaluations, in one process with torch's default threads. The second
table is a slice of MTAE's, one seed and few rounds of each method and target, from which its
minutes follow: rounds cost alike, so they are multiplied.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from harness import HERE, Goal, interleaved, main

METHODS = "deepall,fedavg,ppdg,fedavg+ga"
goals = [Goal("study", "whole rotated-digits study: ≥ 4× the published style", at_least=4)]


#: Before an angle in the names of the domains.
PREFIX = {"digits": "", "mtae": "M"}


def environment(threads: int | None) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    return kept | ({"OMP_NUM_THREADS": str(threads)} if threads else {})


def ours(name: str, settings: list[str]) -> None:
    code = "from unseen.cli.main import main; main()"
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "out")
        command = [
            sys.executable,
            "-c",
            code,
            "study",
            name,
            *settings,
            "--jobs",
            "2",
            "--out",
            out,
        ]
        subprocess.run(command, check=True, capture_output=True, env=environment(1))


def published(name: str, rounds: int, targets: str, seeds: int, methods: str) -> None:
    file = str(HERE / "published.py")
    command = [sys.executable, file, name, str(rounds), targets, str(seeds), methods]
    subprocess.run(command, check=True, capture_output=True, env=environment(None))


def compared(
    name: str, rounds: int, targets: list[int], seeds: int, methods: str = METHODS
) -> tuple[Any, int]:
    angles = ",".join(f"{PREFIX[name]}{15 * t}" for t in targets)
    settings = [
        "--methods",
        methods,
        "--targets",
        angles,
        "--seeds",
        str(seeds),
        f"rounds={rounds}",
    ]
    ways = {
        "published style": partial(
            published, name, rounds, ",".join(map(str, targets)), seeds, methods
        ),
        "ours, 2 jobs": partial(ours, name, settings),
    }
    return interleaved(ways, 1, warm=0), rounds * len(targets) * seeds


def run(quick: bool) -> dict[str, Any]:
    if quick:
        timings, _ = compared("digits", 1, [0], 1, "fedavg")
    else:
        timings, _ = compared("digits", 30, list(range(6)), 3)
    what = "rotated digits" + (", a slice" if quick else ", all 72 jobs of 30 rounds")
    measured = timings.rows(what, "published style")
    values = {"study": None if quick else timings.ratio("published style", "ours, 2 jobs").list()}
    notes = ["Whole studies ran once each: no quartiles."]
    if not quick and os.environ.get("UNSEEN_DATA"):
        # Ours at two lengths: what a round costs is the difference, without the start.
        slices = [compared("mtae", rounds, [0, 3], 1) for rounds in (1, 3)]
        measured += slices[1][0].rows(
            "MTAE, 4 methods, 2 targets, 1 seed, 3 rounds", "published style"
        )
        for way in slices[0][0].wall:
            (short, few), (long, many) = ((t.wall[way][0], count) for t, count in slices)
            minutes = (short + (long - short) / (many - few) * (20 * 6 * 3 - few)) / 60
            notes.append(
                f"MTAE's table (4 methods, 6 targets, 3 seeds, 20 rounds), {way}: "
                f"{minutes:.1f} minutes, extrapolated."
            )
    elif not quick:
        notes.append("MTAE's table was not measured: UNSEEN_DATA names no folder with MNIST.")
    return {"measured": measured, "goals": values, "notes": notes}


if __name__ == "__main__":
    main(__file__)
