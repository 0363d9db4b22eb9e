"""Columns that separate the classes are named, under the table and when a model is trained."""

from __future__ import annotations

import random

import pytest
from typer.testing import CliRunner

from unseen.cli.main import app


@pytest.fixture
def csv(tmp_path):
    """Lactate above 2 is death at every hospital; age says nothing."""
    rng = random.Random(0)
    lines = ["hospital,age,lactate,died"]
    for hospital in "abc":
        for _ in range(60):
            lactate = rng.uniform(0, 4)
            lactate += 0.3 if lactate > 2 else -0.3
            lines.append(f"{hospital},{rng.randint(20, 90)},{lactate:.3f},{int(lactate > 2)}")
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_column_is_named(csv, tmp_path):
    data = f"dataset=table(path='{csv}', domain='hospital', label='died')"
    runner = CliRunner()
    method = "glm(ridge=0, steps=60)"
    done = runner.invoke(app, [
        "study", "table", data, "--methods", method, "--seeds", "1", f"reference={method}",
        "selection=last", "--out", str(tmp_path / "study"),
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    line = f"{method}: classes are separated by lactate; a small penalty keeps coefficients finite"
    assert line in " ".join(done.output.split())
    trained = runner.invoke(app, [
        "train", "table", data, "--method", method, "holdout=a", "selection=last",
        "--out", str(tmp_path / "model"),
    ])  # fmt: skip
    assert trained.exit_code == 0, trained.output
    assert f"warning: {line}" in " ".join((trained.output + trained.stderr).split())
