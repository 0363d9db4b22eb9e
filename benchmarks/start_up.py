"""How long the package and the command line take to start.

    python benchmarks/start_up.py [--quick]

Every way is a fresh process; the files are in the system's cache after the first.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from typing import Any

from harness import Goal, Timings, interleaved, main

goals = [
    Goal("import", "`import unseen`, seconds beyond an empty Python", at_most=0.3),
    Goal("no_torch", "modules of torch that `import unseen` loads", at_most=0),
    Goal("list", "`unseen list methods`, seconds", at_most=0.5),
    Goal("list_no_torch", "modules of torch that `unseen list methods` loads", at_most=0),
    Goal("demo", "the first table of `make demo`, 72 jobs in two processes, seconds", at_most=8),
]
CLI = "import sys; sys.argv[0] = 'unseen'; from unseen.cli.main import main; "
WAYS = {
    "python": "pass",
    "import unseen": "import unseen",
    "unseen --version": CLI + "sys.argv[1:] = ['--version']; main()",
    "unseen list methods": CLI + "sys.argv[1:] = ['list', 'methods']; main()",
    "import torch": "import torch",
}
COUNT = "import atexit, sys; atexit.register(lambda: print(sum(m == 'torch' or m.startswith("
COUNT += "'torch.') for m in sys.modules), file=sys.stderr)); "


def call(code: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return done.stderr


def loaded(way: str) -> float:
    """How many modules of torch the way has loaded when it ends."""
    return float(call(COUNT + WAYS[way]).split()[-1])


def demo(quick: bool) -> None:
    """Make the demo's table in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        settings = ["rounds=1"] if quick else []
        words = ["study", "digits", "stacked=300", *settings, "--jobs", "2", "--out", folder]
        call(CLI + f"sys.argv[1:] = {words}; main()")


def run(quick: bool) -> dict[str, object]:
    ways: dict[str, Any] = {name: partial(call, code) for name, code in WAYS.items()}
    short = interleaved(ways, 1 if quick else 7)
    long = interleaved({"make demo": partial(demo, quick)}, 1 if quick else 3, warm=0)
    timings = Timings(short.wall | long.wall, short.cpu | long.cpu)
    median = {name: statistics.median(values) for name, values in timings.wall.items()}
    return {
        "measured": [timings.row("a fresh process", way) for way in timings.wall],
        "goals": {
            "import": median["import unseen"] - median["python"],
            "no_torch": loaded("import unseen"),
            "list": median["unseen list methods"],
            "list_no_torch": loaded("unseen list methods"),
            "demo": median["make demo"],
        },
        "notes": [],
    }


if __name__ == "__main__":
    main(__file__)
