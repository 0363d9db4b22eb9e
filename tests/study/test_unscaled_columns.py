"""Columns whose spread drowns in their offset: who is told, by which name, with which remedy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command_line import Command

from unseen.data.tables.encoding import Schema, encode, of_ranges, unscaled
from unseen.studies.execution import Study
from unseen.studies.execution.doubts import of_unscaled

RNG = np.random.default_rng(0)
N = 120
SECONDS = 1.7e9 + RNG.uniform(0, 300, N)


def write(folder: Path, **columns: Any) -> str:
    """Write a table of three sites; return the expression of its data set."""
    columns = {"site": np.repeat(list("abc"), N // 3), "u": RNG.normal(size=N), **columns}
    columns["y"] = RNG.integers(0, 2, N)
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return f"table(path='{folder / 't.csv'}', domain='site', label='y')"


def test_unscaled_columns_are_those_that_the_encoding_does_not_scale() -> None:
    columns = {
        "seconds": SECONDS, "month": 1.7e9 + RNG.uniform(0, 2.6e6, N), "year": np.full(N, 2024.0),
        "zero": np.zeros(N), "unknown": np.full(N, math.nan),
        "once": np.where(np.arange(N) == 7, 5.0, math.nan), "u": RNG.normal(size=N),
    }  # fmt: skip
    schema, x = Schema(tuple(columns)), torch.tensor(np.stack([*columns.values()], 1))
    sums = schema.sums(x)
    assert unscaled(schema, sums) == ("seconds", "year")
    deviations = encode(schema, sums, x).std(0, correction=0)
    assert deviations[0] > 50 and deviations[1] == pytest.approx(1)
    assert unscaled(Schema(("ward",), {"ward": ("x", "y")}), torch.ones(3)) == ()
    narrow = Schema(("seconds",))
    assert unscaled(narrow, of_ranges(narrow, {"seconds": (1.7e9, 1.7e9 + 2000)})) == ()


def test_a_sentence_names_columns_tasks_and_remedy() -> None:
    (sentence,) = of_unscaled({"north": ["opened"], "south": ["opened"], "west": []})
    assert sentence.startswith("'opened' counts as constant (tasks 'north', 'south')")
    for words in ("not scaled", "subtract", "since a start", "drop=['opened']"):
        assert words in sentence
    (several,) = of_unscaled({"north": ["opened", "closed"]})
    assert several.startswith("'opened' and 'closed' count as constant (task 'north')")
    assert not of_unscaled({"west": []})


def test_a_study_warns_of_the_column_by_its_name(tmp_path: Path) -> None:
    call = write(tmp_path, opened=SECONDS)
    study = Study(dataset=call, methods=["glm"], seeds=1)
    with pytest.warns(UserWarning, match=r"'opened' counts as constant \(tasks 'a', 'b', 'c'\)"):
        study.run(tmp_path / "out")


def test_data_check_remarks_on_it_and_calls_a_constant_column_constant_alone(
    tmp_path: Path, unseen: Command
) -> None:
    call = write(tmp_path, opened=SECONDS, kind=np.full(N, 1.7e9))
    out = unseen("data", "check", call).out
    row = next(line for line in out.splitlines() if line.startswith("│ opened"))
    assert "counts as constant: subtract an offset" in row
    row = next(line for line in out.splitlines() if line.startswith("│ kind"))
    assert "the same in every row" in row and "counts as constant" not in row
