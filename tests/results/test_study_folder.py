"""The folder of a study: where it is found, what its jobs' states are, its last records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unseen import UnseenError
from unseen.studies.results import records
from unseen.studies.results.records import Job, Log
from unseen.studies.results.study_folder import StudyFolder, find, last_record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "study"
    path.mkdir()
    (path / "study.json").write_text("{}")
    return path


def test_every_job_has_its_state(folder: Path) -> None:
    def state(seed: int, rows: int | None = 1, **mark: str) -> str:
        job = Job("fedavg", "a", seed)
        if rows is not None:
            log = Log.resume(job.folder(folder), {})
            log.append("rounds.jsonl", [{"round": r} for r in range(rows)])
            log.close()
        if mark:
            records.mark_done(job.folder(folder), {}, 1.0, 1, diverged=mark["diverged"])
        return StudyFolder(folder).job(job).state

    assert state(0, rows=None) == "waiting"
    assert state(1) == "stopped"
    assert state(2, diverged="") == "done"
    assert state(3, diverged="NaN at c") == "diverged"
    with (Job("fedavg", "a", 2).folder(folder) / "rounds.jsonl").open("ab") as file:
        file.write(b"{}\n")
    assert state(2, rows=None) == "damaged"


def test_the_only_study_below(folder: Path) -> None:
    assert find(folder.parent) == folder
    assert find(folder) == folder


def test_several_below(folder: Path) -> None:
    other = folder.parent / "other"
    other.mkdir()
    (other / "study.json").write_text("{}")
    with pytest.raises(UnseenError, match="several studies.*other.*study"):
        find(folder.parent)


@pytest.mark.parametrize(
    ("made", "told"),
    [("", "no folder"), ("file", "is a file"), ("empty", "is empty"), ("foreign", "no study")],
)
def test_what_is_no_study(tmp_path: Path, made: str, told: str) -> None:
    place = tmp_path / "place"
    if made == "file":
        place.touch()
    elif made:
        place.mkdir()
    if made == "foreign":
        (place / "photo.png").touch()
    with pytest.raises(UnseenError, match=told):
        find(place)


def test_the_last_record_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    with path.open("w") as file:
        for r in range(50):
            file.write(json.dumps({"round": r, "weights": [0.1] * 5000}) + "\n")
    assert last_record(path)["round"] == 49
    with path.open("a") as file:  # one line alone is longer than what is read first
        file.write(json.dumps({"round": 50, "weights": [0.1] * 50_000}) + "\n")
    assert last_record(path)["round"] == 50
    with path.open("ab") as file:  # half a line is no record
        file.write(b'{"round": 51, "wei')
    assert last_record(path)["round"] == 50
    assert last_record(tmp_path / "none") == {}
