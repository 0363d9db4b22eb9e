"""The headline, its table and its figure's data are what the packed records give."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL, RESULTS = ROOT / "papers" / "tools" / "headline.py", ROOT / "docs" / "results"


def test_the_committed_files_are_recomputed_from_the_records() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "up to date"), done.stderr


def test_the_table_agrees_with_the_comparison_of_the_same_records() -> None:
    means: dict[tuple[str, str], list[float]] = {}
    with (RESULTS / "evidence" / "second" / "compare.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            means.setdefault((row["data"], row["method"]), []).append(100 * float(row["value"]))
    for one in json.loads((RESULTS / "headline.json").read_text("utf-8"))["sets"]:
        names = {"views": "rotated-mnist(protocol='ghifary')", "rotated-digits": "rotated-digits",
                 "eicu": "eicu(edition='demo', domain='region')"}  # fmt: skip
        data = names.get(one["set"], f"sites/{one['set']}")
        for method in ("fedavg", "portfolio", "ppdg", "glm"):
            found = means[data, method]
            assert len(found) == one["sites"]
            assert one["means"][method] == pytest.approx(sum(found) / len(found), abs=0.02)
