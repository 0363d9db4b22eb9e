"""`unseen watch`: what it says of studies at work, finished, stopped, damaged and foreign."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock
from rich.console import Console

from unseen import Study, UnseenError
from unseen.cli.main import main
from unseen.core import record_lines
from unseen.studies.results import records
from unseen.studies.results.records import Job, Log
from unseen.studies.results.study_folder import find, last_record
from unseen.studies.tracking.screen import duration, renderable, spark
from unseen.studies.tracking.state import Reader, Snapshot

ROUNDS = 4
STARTED = 1_000_000.0
METHODS = ("fedavg", "fedprox( mu=0.5 )", "ppdg")


def write_job(out: Path, job: Job, rounds: int, done: bool = True, why: str = "") -> Path:
    """Accuracy (r + 1) / 10 at two sources, 0.1 apart, and half of it at the target."""
    folder = job.folder(out)
    log = Log.resume(folder, {})
    named = {"method": job.method, "task": job.task, "seed": job.seed}
    for r in range(rounds):
        level = (r + 1) / 10
        log.append("rounds.jsonl", [{"round": r, "exchange": "train", "clients": ["b", "c"]}])
        for role, domain, value in (
            ("source", "b", level), ("source", "c", level + 0.1), ("target", job.task, level / 2)
        ):  # fmt: skip
            file = "target.jsonl" if role == "target" else "source.jsonl"
            row = {**named, "round": r, "role": role, "domain": domain, "examples": 9}
            log.append(file, [{**row, "loss": 1.0, "accuracy": value}])
    log.close()
    if done:
        records.mark_done(folder, {"unseen": "0"}, 10.0 * rounds, 99, diverged=why)
    return folder


def touch(folder: Path, when: float) -> None:
    for file in folder.glob("*.jsonl"):
        os.utime(file, (when, when))


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Three methods at two targets, one seed: two jobs done, one diverged, one half-way, two that
    have not begun. The run began at STARTED; what was done before is older."""
    out = tmp_path / "study"
    out.mkdir()
    settings = Study(methods=METHODS, seeds=1, rounds=ROUNDS, title="Made up").model_dump(
        mode="json"
    )
    about = {
        "identity": {"settings": settings, "metrics": ["loss", "accuracy"]},
        "study": settings,
        "not_applicable": {},
        "tasks": ["a", "z"],
    }
    (out / "study.json").write_text(json.dumps(about))
    os.utime(out / "study.json", (STARTED, STARTED))
    touch(write_job(out, Job("fedavg", "a", 0), ROUNDS), STARTED - 500)
    touch(write_job(out, Job("fedavg", "z", 0), ROUNDS), STARTED + 40)
    touch(write_job(out, Job("fedprox(mu=0.5)", "a", 0), 2, why="NaN at c"), STARTED + 60)
    touch(write_job(out, Job("fedprox(mu=0.5)", "z", 0), 1, done=False), STARTED + 70)
    (out / ".lock").touch()
    return out


def states(snapshot: Snapshot) -> dict[tuple[str, str], str]:
    return {(one.job.method, one.job.task): one.state for one in snapshot.jobs}


def printed(snapshot: Snapshot, width: int = 120) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(renderable(snapshot))
    return console.export_text()


def test_every_job_has_its_state(study: Path) -> None:
    with FileLock(study / ".lock"):
        found = Reader(study).snapshot()
    assert states(found) == {
        ("fedavg", "a"): "done",
        ("fedavg", "z"): "done",
        ("fedprox(mu=0.5)", "a"): "diverged",
        ("fedprox(mu=0.5)", "z"): "running",
        ("ppdg", "a"): "waiting",
        ("ppdg", "z"): "waiting",
    }
    assert found.active and not found.finished
    # 4 + 4 + 4 (diverged: over) + 1 of 24 rounds.
    assert found.share() == pytest.approx(13 / 24)


def test_a_study_that_nobody_runs_is_stopped(study: Path) -> None:
    found = Reader(study).snapshot()
    assert not found.active
    assert states(found)["fedprox(mu=0.5)", "z"] == "stopped"
    assert found.seconds_left() is None
    assert "no run is at work" in printed(found)


def test_the_time_left_is_the_pace_of_this_run(study: Path) -> None:
    """FedAvg's rounds took 10 s, the others' are unknown and taken for the same. This run has
    played 4 + 2 + 1 rounds since it began; 3 + 4 + 4 are ahead."""
    with FileLock(study / ".lock"):
        found = Reader(study).snapshot()
    left = found.seconds_left()
    assert left == pytest.approx((found.now - STARTED) * 11 / 7)


def test_a_method_that_is_slow_has_more_ahead(study: Path) -> None:
    """PPDG's round takes 40 s where FedAvg's takes 10 s; FedProx's counts as their mean, 25 s."""
    folder = write_job(study, Job("ppdg", "a", 0), ROUNDS, done=False)
    records.mark_done(folder, {}, 40.0 * ROUNDS, 1)
    touch(folder, STARTED + 90)
    with FileLock(study / ".lock"):
        found = Reader(study).snapshot()
    played = 4 * 10 + (2 + 1) * 25 + 4 * 40
    ahead = 3 * 25 + 4 * 40
    assert found.seconds_left() == pytest.approx((found.now - STARTED) * ahead / played)


def test_figures_are_means_of_the_records(study: Path) -> None:
    found = Reader(study).snapshot()
    first = found.jobs[0]
    assert first.validation == pytest.approx({0: 0.15, 1: 0.25, 2: 0.35, 3: 0.45})
    assert first.target == pytest.approx({0: 0.05, 1: 0.1, 2: 0.15, 3: 0.2})
    lines = printed(found).splitlines()
    (line,) = (line for line in lines if line.startswith("fedavg"))
    assert line.split()[:4] == ["fedavg", "2/2", "4", "45.0"]
    assert line.split()[5] == "20.0"
    text = " ".join(printed(found).split())
    assert "diverged: fedprox(mu=0.5) · a · seed 0: NaN at c" in text


@pytest.mark.parametrize("width", [60, 80, 160])
def test_no_line_is_wider_than_the_terminal(study: Path, width: int) -> None:
    text = printed(Reader(study).snapshot(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "45.0" in text


def test_another_metric_and_an_unknown_one(study: Path) -> None:
    found = Reader(study, "loss").snapshot()
    assert found.jobs[0].target[3] == 1.0
    with pytest.raises(UnseenError, match="did you mean 'accuracy'"):
        Reader(study, "acuracy").snapshot()


def test_changed_records_are_damaged_and_half_a_line_is_no_record(study: Path) -> None:
    done = Job("fedavg", "a", 0).folder(study) / "target.jsonl"
    with done.open("ab") as file:
        file.write(b"{}\n")
    half = Job("fedprox(mu=0.5)", "z", 0).folder(study)
    for name in records.FILES:
        with (half / name).open("ab") as file:
            file.write(b'{"round": 3, "rol')
    found = Reader(study).snapshot()
    assert states(found)["fedavg", "a"] == "damaged"
    assert "damaged, will run again: fedavg · a · seed 0" in printed(found)
    assert [one.rounds for one in found.of("stopped")] == [1]


def test_a_second_look_sees_what_has_come(study: Path) -> None:
    reader = Reader(study)
    assert reader.snapshot().of("stopped")[0].rounds == 1
    write_job(study, Job("fedprox(mu=0.5)", "z", 0), 3)
    write_job(study, Job("ppdg", "a", 0), ROUNDS)
    write_job(study, Job("ppdg", "z", 0), ROUNDS)
    found = reader.snapshot()
    assert found.finished
    assert found.share() == 1
    assert "finished" in printed(found)


def test_nothing_is_written(study: Path) -> None:
    before = {f: f.stat().st_mtime_ns for f in study.rglob("*")}
    printed(Reader(study).snapshot())
    assert {f: f.stat().st_mtime_ns for f in study.rglob("*")} == before


def test_a_damaged_study_file_leaves_the_records(study: Path) -> None:
    (study / "study.json").write_text("{")
    found = Reader(study).snapshot()
    assert len(found.jobs) == 4
    assert found.rounds is None
    text = printed(found)
    assert "study.json is damaged" in text
    assert "45.0" in text
    (study / "study.json").unlink()
    assert "there is no study.json" in printed(Reader(study).snapshot())


def test_folders_of_earlier_versions_and_of_other_settings(study: Path) -> None:
    about = json.loads((study / "study.json").read_text())
    del about["tasks"]
    (study / "study.json").write_text(json.dumps(about))
    write_job(study, Job("median", "a", 0), 2)
    found = Reader(study).snapshot()
    assert len(found.jobs) == 6
    assert any("1 more jobs" in note for note in found.notes)
    assert any("earlier version" in note for note in found.notes)


def test_methods_that_cannot_run_are_told(study: Path) -> None:
    about = json.loads((study / "study.json").read_text())
    about["not_applicable"] = {"ppdg": "needs images"}
    (study / "study.json").write_text(json.dumps(about))
    found = Reader(study).snapshot()
    assert len(found.jobs) == 4
    assert "not applicable: ppdg (needs images)" in printed(found)


def test_before_the_first_record(study: Path) -> None:
    import shutil

    shutil.rmtree(study / "records")
    with FileLock(study / ".lock"):
        found = Reader(study).snapshot()
    assert len(found.jobs) == 6
    assert "0 done, 0 running, 6 left" in printed(found)
    assert "time left unknown yet" in printed(found)


class TestPlaces:
    def test_the_only_study_below(self, study: Path) -> None:
        assert find(study.parent) == study
        assert find(study) == study

    def test_several_below(self, study: Path) -> None:
        other = study.parent / "other"
        other.mkdir()
        (other / "study.json").write_text("{}")
        with pytest.raises(UnseenError, match="several studies.*other.*study"):
            find(study.parent)

    @pytest.mark.parametrize(
        ("made", "told"),
        [("", "no folder"), ("file", "is a file"), ("empty", "is empty"), ("foreign", "no study")],
    )
    def test_what_is_no_study(self, tmp_path: Path, made: str, told: str) -> None:
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
    assert last_record(tmp_path / "none") == {}


def test_curves_in_letters() -> None:
    assert spark({}, 0, 1) == ""
    assert spark({0: 0.0, 5: 1.0}, 0, 1) == "▁█"
    assert spark({0: 0.5, 1: 0.5}, 0.5, 0.5) == "▁▁"
    assert len(spark({r: r / 99 for r in range(100)}, 0, 1)) == 12
    assert duration(-3) == "0 s"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["unseen", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
        raise SystemExit(0)
    return int(caught.value.code or 0)


def test_the_command_prints_once_into_a_pipe(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["watch", str(study)], ["watch", str(study), "--once"]):
        assert run(monkeypatch, *arguments) == 0
        found = capsys.readouterr().out
        assert "Made up" in found and "fedprox(mu=0.5)" in found
        assert "\x1b" not in found
    assert run(monkeypatch, "watch", str(study / "nowhere")) == 2
    assert "no folder" in capsys.readouterr().err


def on_terminal(arguments: Sequence[str], stop: float | None = None) -> tuple[int, str]:
    """The command on a terminal of its own; Ctrl-C after so many seconds."""
    leader, follower = pty.openpty()
    code = "import sys; from unseen.cli.main import main; main()"
    path = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=follower, stderr=follower, stdin=follower, start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # ignored behind `&`
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "90", "LINES": "40", "TERM": "xterm"},
    )  # fmt: skip
    os.close(follower)
    text, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        try:
            got = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        text += got
        if stop is not None and b"last record" in text:
            time.sleep(stop)
            process.send_signal(2)
            stop = None
        if not got:
            break
    code_ = process.wait(20)
    os.close(leader)
    return code_, text.decode()


def test_on_a_terminal_it_ends_with_the_study_or_with_ctrl_c(study: Path) -> None:
    code, text = on_terminal(["watch", str(study), "--every", "0.3"], stop=0.5)
    assert code == 0
    assert "Traceback" not in text and "Made up" in text
    for method in ("fedprox(mu=0.5)", "ppdg"):
        for task in ("a", "z"):
            write_job(study, Job(method, task, 0), ROUNDS)
    code, text = on_terminal(["watch", str(study)])
    assert code == 0
    assert "6 done, 0 running, 0 left" in text


def test_a_real_study_to_its_end(tmp_path: Path) -> None:
    study = Study(methods=["fedavg", "fedavg+ga"], targets=["0", "75"], seeds=1, rounds=2)
    out = tmp_path / "digits"
    study.run(out)
    found = Reader(out).snapshot()
    assert found.finished and not found.active and len(found.jobs) == 4
    for one in found.jobs:
        rows = record_lines.read_lines(one.job.folder(out) / "source.jsonl")
        own = [row["accuracy"] for row in rows if row["round"] == 1]
        assert one.validation[1] == pytest.approx(sum(own) / len(own))
        assert one.rounds == 2 and one.seconds
