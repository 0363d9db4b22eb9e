"""What is on the page, and what is left out and why."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.finished_studies import DOMAINS, write_job, write_study

from unseen.errors import UnseenError
from unseen.studies.report.read import Choice, read
from unseen.studies.results import records
from unseen.studies.results.records import Job


def reasons(items: object) -> str:
    return "\n".join(f"{item.place}: {item.reason}" for item in items)  # type: ignore[attr-defined]


def test_a_finished_study_is_all_there(tmp_path: Path) -> None:
    study = write_study(tmp_path / "a")
    part = read(tmp_path / "a", Choice())
    assert not part.omissions
    assert part.methods == study.methods and part.tasks == ("d0", "d1") and part.seeds == (0, 1)
    assert (part.metric, part.reference, len(part.runs)) == ("accuracy", "fedavg", 12)
    assert part.plan[0].sources == ("d1", "d2", "d3") and part.plan[0].targets == ("d0",)
    # Accuracy climbs to 0.5 + 0.01 per method + 0.02 per task, and 0.001 per seed on top.
    assert part.main.cells[1][0].values == pytest.approx((0.51, 0.511))


def test_without_the_study_its_records_tell(tmp_path: Path) -> None:
    write_study(tmp_path / "a", methods=("ppdg", "fedavg"), told=False)
    part = read(tmp_path / "a", Choice())
    assert part.methods == ("fedavg", "ppdg")  # the order of the package
    assert part.seeds == (0, 1) and part.study.rounds == 6 and part.reference == "fedavg"
    assert part.title == "rotated-digits: a"


def test_unfinished_and_damaged_jobs_are_named(tmp_path: Path) -> None:
    write_study(tmp_path / "a")
    job = Job("fedavg", "d0", 0)
    shutil.rmtree(job.folder(tmp_path / "a"))
    write_job(tmp_path / "a", job, 3, DOMAINS, 0.5, done=False)
    with (Job("fedavg", "d1", 1).folder(tmp_path / "a") / "target.jsonl").open("ab") as file:
        file.write(b"{}\n")
    part = read(tmp_path / "a", Choice())
    said = reasons(part.omissions)
    assert "d0/seed-0: unfinished: 3 rounds are recorded" in said
    assert "d1/seed-1: damaged" in said
    assert "fedavg: 2 of 4 jobs are shown" in said
    assert len(part.runs) == 10
    assert part.main.cells[0][0].text(part.main.number_text) == "50.1 (1/2 seeds)"


def test_records_of_two_jobs_in_one_folder(tmp_path: Path) -> None:
    write_study(tmp_path / "a")
    folder = Job("fedavg", "d0", 0).folder(tmp_path / "a")
    other = Job("fedavg", "d1", 0).folder(tmp_path / "a")
    (folder / "target.jsonl").write_bytes((other / "target.jsonl").read_bytes())
    records.mark_done(folder, {"unseen": "0.1.0"}, 1.0, 1.0)
    part = read(tmp_path / "a", Choice())
    assert "its records are those of several jobs" in reasons(part.omissions)


def test_a_diverged_job_counts_as_undefined(tmp_path: Path) -> None:
    write_study(tmp_path / "a")
    folder = Job("fedavg", "d0", 0).folder(tmp_path / "a")
    for name in ("source.jsonl", "target.jsonl"):
        (folder / name).write_bytes(b"")
    records.mark_done(folder, {}, 1.0, 1.0, diverged="not finite in round 0")
    part = read(tmp_path / "a", Choice())
    assert part.main.cells[0][0].undefined == 1
    assert any("diverged" in note and "fedavg at d0" in note for note in part.main.notes)


def test_nothing_to_show_is_an_error_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "study.json").write_text('{"identity": ')
    reasons_of = {
        "nowhere": "is not a folder", "empty": "has no study.json",
        "torn": "its study.json is damaged",
    }  # fmt: skip
    for name, reason in reasons_of.items():
        with pytest.raises(UnseenError, match=f"nothing to report: .*{reason}"):
            read(tmp_path / name, Choice())


def test_settings_of_another_version_are_told(tmp_path: Path) -> None:
    write_study(tmp_path / "a")
    content = json.loads((tmp_path / "a/study.json").read_text())
    content["study"]["colour"] = "red"
    content["study"]["training"]["warmth"] = 3
    (tmp_path / "a/study.json").write_text(json.dumps(content))
    part = read(tmp_path / "a", Choice())
    assert "settings of another version are not read: colour, training.warmth" in reasons(
        part.omissions
    )


def test_what_is_asked_for_wins(tmp_path: Path) -> None:
    write_study(tmp_path / "a")
    asked = Choice("loss", "last", "ppdg(lam=0.2)")
    part = read(tmp_path / "a", asked)
    assert (part.metric, part.selection, part.reference) == ("loss", "last", "ppdg(lam=0.2)")
    assert part.metrics[0] == "loss"
    with pytest.raises(UnseenError, match="method to compare with"):
        read(tmp_path / "a", Choice(reference="fedagv"))


def test_a_seed_of_one_method_alone_is_counted_alike_in_all_lines(tmp_path: Path) -> None:
    write_study(tmp_path / "a")
    write_job(tmp_path / "a", Job("ppdg", "d0", 2), 6, DOMAINS, 0.5)
    part = read(tmp_path / "a", Choice())
    text = "\n".join(part.main.notes)
    assert "over 3 seeds" in text and "seeds 0, 1, 2" in text
    assert "p: none, since no two methods, fedavg one of them, have all 6 pairs" in text
