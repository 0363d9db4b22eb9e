"""FedAvg in one process against a plain Flower app (`plain_flower.py`) on Flower's engine.

    python benchmarks/flower_engine.py [--quick]

With start-up: a process that begins, plays one round of LeNet on five clients of 1000 images, five
epochs, and ends; ours with as many threads as there are cores, Flower's with as many workers.
Overhead: what a round of five clients of one step each takes beyond the steps, the time between two
rounds less the seconds of training, which Flower's workers share.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from flower import in_place
from harness import HERE, Goal, Ratio, fresh, main

extras = ("flower",)
goals = [
    Goal(
        "start_up", "a round of LeNet with start-up, a plain Flower simulation over ours: ≥ 8×", 8
    ),
    Goal("overhead", "overhead of a round, a plain Flower simulation over ours: ≥ 20×", 20),
]

OURS = """
import sys, torch
from fedavg_round import Ours
images, epochs, threads = map(int, sys.argv[1:])
Ours(images, epochs).round(threads)
"""


def called(*command: str) -> tuple[float, str]:
    """Seconds of a command from its start to its end, and the last line that it prints."""
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, *command], cwd=HERE, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return time.perf_counter() - begun, done.stdout.strip().rpartition("\n")[2]


def plain(*sizes: int) -> tuple[float, dict[str, list[float]]]:
    """Seconds of `plain_flower.py` with images, epochs, rounds and workers, and what it prints."""
    seconds, line = called("plain_flower.py", *map(str, sizes))
    return seconds, json.loads(line)


def run(quick: bool) -> dict[str, Any]:
    images, epochs, repeats = (32, 1, 1) if quick else (1000, 5, 2)
    cores = 1 if quick else os.cpu_count() or 1
    flower: list[float] = []
    ours: list[float] = []
    for _ in range(repeats):
        seconds, found = plain(images, epochs, 3 if quick else 1, cores)
        flower.append(seconds)
        ours.append(called("-c", OURS, str(images), str(epochs), str(cores))[0])
    whole = Ratio.of(flower, ours).list()
    if not quick:  # Ray's start is what a quick run takes: once is enough
        _, found = plain(32, 1, 20, cores)
    gaps = [b - a for a, b in itertools.pairwise(found["times"])]
    theirs = statistics.median(
        gap - work / cores for gap, work in zip(gaps, found["work"][1:], strict=True)
    )
    work, round_ = fresh(in_place, "in-process", 20 if quick else 200)
    own = round_ - work
    title = f"5 × {images} images × {epochs} epochs, from the start of the process to its end"
    rows: list[dict[str, Any]] = [
        {
            "table": title,
            "what": "LeNet",
            "way": way,
            "s": statistics.median(seconds),
            "ratio": ratio,
        }
        for way, seconds, ratio in (
            ("plain Flower simulation", flower, None),
            ("ours", ours, whole),
        )
    ]
    rows += [
        {"table": "five clients of one step, 43k parameters", "what": "round", "way": way,
         "ms": 1000 * seconds, "overhead_ms": 1000 * overhead}
        for way, seconds, overhead in (
            ("plain Flower simulation", statistics.median(gaps), theirs), ("ours", round_, own))
    ]  # fmt: skip
    reached = {"start_up": whole, "overhead": theirs / max(own, 1e-6)}
    return {"measured": rows, "goals": {} if quick else reached}


if __name__ == "__main__":
    main(__file__)
