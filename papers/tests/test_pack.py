"""Packed records: the tables of all records, from the rounds that a rule can choose."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from unseen import Study
from unseen.core import record_lines
from unseen.studies.results import records

TOOL = Path(__file__).resolve().parents[1] / "tools" / "pack.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("pack", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("selection", ["source-validation", "target-oracle", "last"])
def test_tables_of_packed_records_are_those_of_all(tool, tmp_path: Path, selection: str) -> None:
    whole, packed, again = tmp_path / "whole", tmp_path / "records.json.xz", tmp_path / "again"
    study = Study(
        dataset="rotated-digits",
        methods=["fedavg", "ppdg"],
        targets=["0", "75"],
        seeds=2,
        rounds=8,
        training={"optimiser": "sgd(lr=0.3)", "epochs": 2},
    )
    results = study.run(out=whole)
    tool.pack(whole, packed)
    tool.unpack(packed, again)
    lines = [
        sum(len(record_lines.read_lines(p)) for p in place.rglob("source.jsonl"))
        for place in (whole, again)
    ]
    assert 0 < lines[1] < lines[0]
    # Nothing is missing, so that nothing is run: the same folder under another name.
    before = {p: p.read_bytes() for p in again.rglob("*.jsonl")}
    same = study.run(out=again)
    assert {p: p.read_bytes() for p in again.rglob("*.jsonl")} == before
    for metric in ("accuracy", "loss"):
        expected = results.table(metric, selection).to_markdown()
        assert same.table(metric, selection).to_markdown() == expected


def test_notes_of_how_training_ended_survive_packing(tool, tmp_path: Path) -> None:
    whole, packed, again = tmp_path / "whole", tmp_path / "records.json.xz", tmp_path / "again"
    study = Study(
        dataset="rotated-digits",
        methods=["fedavg"],
        targets=["0"],
        seeds=1,
        rounds=5,
        training={"optimiser": "sgd(lr=0.01)"},  # so slow that each round is better than the last
    )
    expected = study.run(out=whole).table().to_markdown()
    assert "still falling" in expected
    tool.pack(whole, packed)
    tool.unpack(packed, again)
    assert study.run(out=again).table().to_markdown() == expected


def test_local_models_at_the_target_stay_at_both_ends(tool, tmp_path: Path) -> None:
    whole, packed, again = tmp_path / "whole", tmp_path / "records.json.xz", tmp_path / "again"
    settings = {"methods": ["fedavg"], "targets": ["0"], "seeds": 1, "rounds": 4}
    study = Study(dataset="rotated-digits", cross_evaluation=True, **settings)
    study.run(out=whole)
    tool.pack(whole, packed)
    tool.unpack(packed, again)
    (found,), (every,) = (list(place.rglob(records.CROSS)) for place in (again, whole))
    kept = record_lines.read_lines(found)
    at_target = [r for r in record_lines.read_lines(every) if r["role"] == "target"]
    assert [r["round"] for r in kept] == [0] * 5 + [3] * 5 and {r["domain"] for r in kept} == {"0"}
    assert [r["accuracy"] for r in kept] == [
        r["accuracy"] for r in at_target if r["round"] in (0, 3)
    ]
