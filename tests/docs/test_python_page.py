"""docs/python.md: its code, from top to bottom in one interpreter, on visits made up here."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def visits() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    age, pressure = draw.normal(65.0, 10.0, 400), draw.normal(130.0, 20.0, 400)
    risk = (age - 65.0) / 10.0 + (pressure - 130.0) / 20.0 + draw.normal(0.0, 0.5, 400)
    return pd.DataFrame(
        {
            "hospital": np.repeat(["north", "south", "east", "west"], 100),
            "age": age,
            "pressure": pressure,
            "sex": draw.choice(["f", "m"], 400),
            "died": (risk > 0.0).astype(int),
        }
    )


def last_value(block: str, names: dict[str, Any]) -> Any:
    """Run a block; return the value of its last line where that is an expression."""
    body = ast.parse(block).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "docs/python.md", "exec"), names)
    return last and eval(compile(ast.Expression(last.value), "docs/python.md", "eval"), names)


def test_the_page_runs_and_gives_what_its_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    matplotlib.use("agg")
    visits().to_csv("visits.csv", index=False)
    names: dict[str, Any] = {}
    blocks = BLOCK.findall(PAGE.read_text("utf-8"))
    values = [last_value(block, names) for block in blocks]

    for block, value in zip(blocks, values, strict=True):
        if comment := re.search(r"# (\(.*\))\n\Z", block):
            assert value == ast.literal_eval(comment[1])
    assert Path("means.png").read_bytes().startswith(b"\x89PNG")
    assert len(names["answers"]) == 400
    assert len(values[0]) > 1  # figures of all rows, and by sex
    assert values[-1].shape == (4,)  # accuracy at each hospital left out
    assert values[-1].mean() > 0.8  # the outcome is nearly linear in both columns


def test_the_loop_ends_once_five_rounds_bring_nothing() -> None:
    names: dict[str, Any] = {}
    block = next(b for b in BLOCK.findall(PAGE.read_text("utf-8")) if "def flat" in b)
    exec(block, names)
    rounds = [
        names["flat"](None, [SimpleNamespace(table={"loss": np.array([loss])})])
        for loss in (3.0, 2.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7)
    ]
    assert rounds == [False] * 10 + [True]
