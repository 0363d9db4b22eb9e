"""tools/paper_figures.py: what is drawn is what the records say."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from statistics import fmean
from types import ModuleType

import pytest

from unseen import Study
from unseen.core import record_lines
from unseen.errors import UnseenError

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "papers" / "tools"


def load() -> ModuleType:
    sys.path.insert(0, str(TOOLS))  # for the modules next to it
    spec = importlib.util.spec_from_file_location("paper_figures", TOOLS / "paper_figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["paper_figures"] = module
    spec.loader.exec_module(module)
    return module


figures = load()


def test_curves_are_means_over_clients_and_seeds(tmp_path: Path) -> None:
    run = tmp_path / "run"
    Study(
        dataset="rotated-digits", model="logistic", methods=["fedavg"], targets=["75"], seeds=2,
        rounds=2, training={"optimiser": "sgd(lr=0.3)"},
    ).run(out=run)  # fmt: skip
    assert figures.main(["curves", str(tmp_path), str(run)]) == 0
    assert (tmp_path / "curves.svg").stat().st_size > 1000
    with (tmp_path / "curves.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["round"]) for row in rows] == [("fedavg", "1"), ("fedavg", "2")]
    for part, name in (("validation", "source.jsonl"), ("target", "target.jsonl")):
        lines = [r for p in run.rglob(name) for r in record_lines.read_lines(p) if r["round"] == 1]
        expected = fmean(line["loss"] for line in lines)
        assert float(rows[1][part]) == pytest.approx(expected, rel=1e-4)
    assert 0 < float(rows[1]["training"]) < float(rows[0]["training"])


def test_losses_are_those_of_the_records_beside_the_printed_ones() -> None:
    figure = figures.beside(["fedilc-color-mnist"])
    (axis,) = figure.axes
    here, printed = axis.containers
    assert [round(x, 3) for x in here[0].get_xdata()][3] == 0.538
    assert next(iter(printed[0].get_xdata())) == 0.566
    with pytest.raises(UnseenError, match="no entry"):
        figures.beside(["heart"])


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnseenError, match="no finished job"):
        figures.losses(tmp_path)
