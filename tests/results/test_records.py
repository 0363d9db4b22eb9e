"""Records on disk: what a crash at any byte leaves, and what is kept of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.job_folders import log

from unseen.core.atomic import write_atomically
from unseen.core.exchange import Outcome
from unseen.core.record_lines import read_lines, to_line
from unseen.core.turn import Turn
from unseen.studies.results import records
from unseen.studies.results.records import FILES, Job, Log, slug

RECORDS = [{"round": r, "domain": d, "loss": r / 3} for r in range(3) for d in ("å", "b")]
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


# --- folders -------------------------------------------------------------------------------


@given(st.text(max_size=12), st.text(max_size=12))
def test_different_jobs_have_different_folders(one: str, other: str) -> None:
    out = Path("out")
    folders = {Job(m, t, 0).folder(out) for m in (one, other) for t in (one, other)}
    assert len(folders) == len({(m, t) for m in (one, other) for t in (one, other)})
    for folder in folders:
        assert folder.parent.parent.parent == out / "records"
        assert ".." not in folder.parts


def test_the_seed_and_plain_names_can_be_read_in_the_path() -> None:
    assert Job("fedavg+ga", "15", 3).folder(Path("x")) == Path("x/records/fedavg+ga/15/seed-3")


# --- writing and reading -------------------------------------------------------------------


def test_a_crash_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, b"old")

    def crash(descriptor: int) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr(os, "fsync", crash)
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    write_atomically(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


@given(st.integers(0, 10_000))
@same_folder
def test_a_file_cut_at_any_byte_keeps_its_whole_lines(tmp_path: Path, cut: int) -> None:
    lines = [to_line(record) for record in RECORDS]
    content = b"".join(lines)
    cut %= len(content) + 1
    (tmp_path / "cut").write_bytes(content[:cut])
    assert read_lines(tmp_path / "cut") == RECORDS[: content[:cut].count(b"\n")]


@pytest.mark.parametrize("bad", [b"\x00\xff", b"{]", b"[1, 2]", b"12", b"", b'{"a": 1} x'])
def test_reading_stops_at_a_damaged_line(tmp_path: Path, bad: bytes) -> None:
    lines = [to_line(record).rstrip(b"\n") for record in RECORDS]
    (tmp_path / "file").write_bytes(b"\n".join([*lines[:2], bad, *lines[2:], b""]))
    assert read_lines(tmp_path / "file") == RECORDS[:2]


def test_no_file_has_no_records(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "none") == []


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back_bit_for_bit(x: float) -> None:
    assert json.loads(to_line({"x": x}))["x"].hex() == x.hex()


@pytest.mark.parametrize("x", [float("nan"), float("inf")])
def test_what_is_no_number_cannot_be_written(x: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_line({"x": x})


def test_resuming_keeps_the_bytes_of_the_checkpoint_and_drops_the_rest(tmp_path: Path) -> None:
    log(tmp_path, rounds=2)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    with (tmp_path / "target.jsonl").open("ab") as file:
        file.write(to_line({"round": 2, "value": 0.0}) + b'{"round": 3, "va')
    resumed = Log.resume(tmp_path, {name: len(content) for name, content in before.items()})
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == before
    resumed.append("target.jsonl", [{"round": 2, "value": 0.5}])
    resumed.close()
    content = before["target.jsonl"] + to_line({"round": 2, "value": 0.5})
    assert (tmp_path / "target.jsonl").read_bytes() == content


def test_a_new_job_begins_with_empty_files(tmp_path: Path) -> None:
    log(tmp_path, rounds=2)
    Log.resume(tmp_path, {}).close()
    assert [(tmp_path / name).read_bytes() for name in FILES] == [b""] * 3


def test_a_record_can_be_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    opened = Log.resume(tmp_path, {})
    opened.append("source.jsonl", [{"round": 0}])
    assert read_lines(tmp_path / "source.jsonl") == [{"round": 0}]
    opened.close()


# --- done ----------------------------------------------------------------------------------


def test_done_as_long_as_the_records_are_what_they_were(tmp_path: Path) -> None:
    assert not records.is_done(tmp_path)
    log(tmp_path)
    assert not records.is_done(tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"x")
    records.mark_done(tmp_path, {"torch": "2.13"}, 1.5, 80.0)
    assert records.is_done(tmp_path)
    assert json.loads((tmp_path / "done.json").read_bytes())["versions"] == {"torch": "2.13"}
    assert not (tmp_path / "checkpoint.pt").exists()
    for name in FILES:
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(before.replace(b"0", b"1", 1))
        assert not records.is_done(tmp_path), name
        (tmp_path / name).unlink()
        assert not records.is_done(tmp_path), name
        (tmp_path / name).write_bytes(before)
    assert records.is_done(tmp_path)


@pytest.mark.parametrize("mark", [b"", b"{", b"[]", b"3", b"null", b'{"seconds": 1}', b"\xff"])
def test_a_damaged_mark_is_no_mark(tmp_path: Path, mark: bytes) -> None:
    log(tmp_path)
    (tmp_path / "done.json").write_bytes(mark)
    assert not records.is_done(tmp_path)


# --- the records themselves ----------------------------------------------------------------


def test_an_evaluation_is_one_record_per_participant() -> None:
    table = {
        "client": torch.tensor([0.0, -1.0]),
        "progress": torch.tensor([0.4, 0.4]),
        "rounds": torch.tensor([5.0, 5.0]),
        "examples": torch.tensor([7.0, 9.0]),
        "accuracy": torch.tensor([0.25, 0.5]),
        "accuracy.undefined": torch.tensor([0.0, 0.0]),
        "auroc": torch.tensor([0.0, 0.75]),
        "auroc.undefined": torch.tensor([1.0, 0.0]),
        "examples@region": torch.tensor([[3.0, 4.0], [9.0, 0.0]]),
        "accuracy@region": torch.tensor([[1.0, 0.5], [0.5, 0.0]]),
        "accuracy.undefined@region": torch.tensor([[0.0, 0.0], [0.0, 1.0]]),
    }
    outcome = Outcome(Turn(1, 2, 5, "validate"), ("a", "b"), table)
    found = records.evaluations(
        outcome, Job("m", "t", 1), {"a": "source", "b": "ood-validation"}, {"region": ("N", "S")}
    )
    common = {"method": "m", "task": "t", "seed": 1, "round": 2}
    assert found == [
        common
        | {"role": "source", "domain": "a", "examples": 7, "accuracy": 0.25, "auroc": None}
        | {"examples@region": {"N": 3, "S": 4}, "accuracy@region": {"N": 1.0, "S": 0.5}},
        common
        | {"role": "ood-validation", "domain": "b", "examples": 9, "accuracy": 0.5, "auroc": 0.75}
        | {"examples@region": {"N": 9, "S": 0}, "accuracy@region": {"N": 0.5, "S": None}},
    ]
    assert all(type(record["examples"]) is int for record in found)


def test_a_training_record_says_who_took_part_and_who_was_dropped() -> None:
    table = {
        "client": torch.tensor([0.0]),
        "progress": torch.tensor([0.0]),
        "rounds": torch.tensor([1.0]),
        "loss": torch.tensor([0.5]),
        "counts": torch.tensor([[2.0, 3.0]]),
    }
    weights = {"model": torch.tensor([1.0]), "buffers": torch.tensor([1.0])}
    outcome = Outcome(
        Turn(0, 0, 1, "train"), ("a",), table, weights, {"b": "NaN as 'loss'"}, {"gram": {}}
    )
    assert records.training(outcome, (40, 44)) == {
        "round": 0,
        "exchange": "train",
        "clients": ["a"],
        "scalars": {"loss": [0.5], "counts": [[2.0, 3.0]]},
        "weights": {"model": [1.0]},
        "dropped": {"b": "NaN as 'loss'"},
        "bytes": {"down": 40, "up": 44},
        "gram": {},
    }


def test_a_folders_name_fits_a_file_system_and_keeps_texts_apart() -> None:
    for letters in (1, 100, 220, 248):
        assert slug("a" * letters) == "a" * letters  # as it always was
    longer = {slug("a" * 249), slug("a" * 250), slug("a" * 250 + ",b")}
    assert len(longer) == 3 and all(len(name.encode()) == 255 for name in longer)
