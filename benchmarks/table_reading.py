"""The check of a table, against pandas' reading, means by site and description of the same file.

A csv file of 23 columns: measurements with gaps, whole numbers, categories, a flag and a label at
eight sites.
"""

from __future__ import annotations

import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import Goal, interleaved, main, peak_memory

from unseen.datasets.summary import inspect
from unseen.expression import Call

ROWS = (100_000, 1_000_000)
extras = ("pandas",)
goals = [
    Goal("ratio", "CPU seconds of the check, over those of pandas, 100,000 rows", at_most=4),
    Goal("seconds", "CPU seconds of the check of 1,000,000 rows", at_most=20),
    Goal("memory", "MiB that the check of 1,000,000 rows takes", at_most=1024),
]


def write(path: Path, rows: int) -> None:
    """Write a table drawn at random."""
    import pandas

    draw = np.random.default_rng(0)
    columns: dict[str, Any] = {"site": draw.choice([f"hospital {i}" for i in range(8)], rows)}
    for j in range(12):
        values = draw.normal(50, 10, rows).round(4) if j % 3 else draw.integers(0, 200, rows) / 1
        columns[f"lab{j}"] = np.where(draw.random(rows) < 0.03 * (j % 4 == 0), np.nan, values)
    for j in range(6):
        columns[f"cat{j}"] = draw.choice([*"abcdefg"][: j + 2], rows)
    columns |= {"code": draw.integers(0, 40, rows), "flag": draw.integers(0, 2, rows)}
    columns["stay"] = draw.exponential(5, rows).round(2)
    columns["died"] = (draw.random(rows) < 0.2).astype(int)
    pandas.DataFrame(columns).to_csv(path, index=False)


def check(path: Path) -> None:
    inspect(Call("table", {"path": str(path), "domain": "site", "label": "died"}), None)


def described(path: Path) -> None:
    import pandas

    frame = pandas.read_csv(path)
    frame.groupby("site").mean(numeric_only=True)
    frame.describe(include="all")


def run(quick: bool) -> dict[str, Any]:
    """Time both in turn on a small file, and the check on a large one."""
    with tempfile.TemporaryDirectory() as folder:
        small, large = (Path(folder) / f"{n}.csv" for n in ("small", "large"))
        write(small, 2_000 if quick else ROWS[0])
        ways = {"pandas": partial(described, small), "check": partial(check, small)}
        timings = interleaved(ways, repeats=1 if quick else 5)
        measured = timings.rows("23 columns, 100,000 rows", "pandas")
        if quick:
            return {"measured": measured, "goals": {}, "notes": []}
        write(large, ROWS[1])
        alone = interleaved({"check": partial(check, large)}, repeats=3)
        measured += alone.rows("23 columns, 1,000,000 rows", "check")
        goal = {
            "ratio": timings.ratio("check", "pandas", cpu=True).list(),
            "seconds": statistics.median(alone.cpu["check"]),
            "memory": peak_memory(check, partial(Path, str(large))),
        }
    return {"measured": measured, "goals": goal, "notes": []}


if __name__ == "__main__":
    main(__file__)
