"""Studies that were interrupted, killed or damaged go on to the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.small_studies import CARRIED, FILES, rows, study, write, written

from unseen.studies.execution import job as job_module
from unseen.studies.results.records import Job

# --- interrupted and resumed ---------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """The table, and what an uninterrupted run writes."""
    folder = tmp_path_factory.mktemp("whole")
    path = write(folder / "sites.csv", rows())
    study(path, **CARRIED).run(folder / "out")
    return path, written(folder / "out")


class Stopped(BaseException):
    """Ends a run as an interrupt does, at a place that the test chooses."""


def stop_at(monkeypatch: pytest.MonkeyPatch, method: str, round: int) -> None:
    """Checkpoints after every round; the job of the method stops before the given round."""
    play = job_module.play_round
    monkeypatch.setattr("unseen.studies.execution.plan.Setting", checkpointed)

    def stopping(played: Any, state: Any, *rest: Any) -> Any:
        if state.round == round and played.name == method:
            raise Stopped
        return play(played, state, *rest)

    monkeypatch.setattr(job_module, "play_round", stopping)


def checkpointed(*arguments: Any, **named: Any) -> job_module.Setting:
    return job_module.Setting(*arguments, **named, checkpoint_seconds=0.0)


@pytest.fixture
def halfway(whole: tuple[Path, dict[str, bytes]], tmp_path: Path) -> Path:
    """A folder in which the first method's job stopped after three of four rounds."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        stop_at(patch, "fedavg+ga", 3)
        study(whole[0], **CARRIED).run(tmp_path / "out")
    assert (JOB.folder(tmp_path / "out") / "checkpoint.pt").exists()
    return tmp_path / "out"


JOB = Job("fedavg+ga", "a", 0)


def test_a_stopped_job_goes_on_where_it_was(
    whole: tuple[Path, dict[str, bytes]], halfway: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = []
    play = job_module.play_round

    def counting(method: Any, state: Any, *rest: Any) -> Any:
        played.append((method.name, state.round))
        return play(method, state, *rest)

    monkeypatch.setattr(job_module, "play_round", counting)
    study(whole[0], **CARRIED).run(halfway)
    assert played == [("fedavg+ga", 3), *(("agrrand", r) for r in range(4))]
    assert written(halfway) == whole[1]
    assert not list(halfway.rglob("checkpoint.pt*"))


KILLED = """
import os, signal, sys
import unseen.studies.results.records as records
import unseen.studies.execution.plan as plan
from unseen.studies.execution.job import Setting
from unseen.studies.execution import Study

def fatal(function, calls):
    left = [calls]
    def wrapped(*arguments, **more):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)
    return wrapped

settings, out, place, calls = sys.argv[1:]
owner, name = {"append": (records.Log, "append"), "fsync": (os, "fsync"),
               "mark": (records, "mark_done")}[place]
setattr(owner, name, fatal(getattr(owner, name), int(calls)))
plan.Setting = lambda *arguments, **named: Setting(*arguments, **named, checkpoint_seconds=0.0)
Study(**__import__("json").loads(settings)).run(out)
"""


@pytest.mark.parametrize(
    ("place", "calls"),
    [
        ("append", 7),  # between the records of a round: three exchanges each
        ("fsync", 6),  # study.json, three empty logs, then the second round's checkpoint, half made
        ("mark", 2),  # all rounds are played, the mark is missing
    ],
)
def test_killed_and_resumed_is_uninterrupted(
    whole: tuple[Path, dict[str, bytes]], tmp_path: Path, place: str, calls: int
) -> None:
    planned, out = study(whole[0], **CARRIED), tmp_path / "out"
    command = [sys.executable, "-c", KILLED, planned.model_dump_json(), str(out), place, str(calls)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    died = subprocess.run(command, env=env, capture_output=True, timeout=120)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert list(out.rglob("checkpoint.pt*"))
    assert written(out) != whole[1]
    planned.run(out)
    assert written(out) == whole[1]


def half_line(content: bytes) -> bytes:
    return content + b'{"method":"fedavg+g'


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def emptied(content: bytes) -> bytes:
    return b""


def garbage_inside(content: bytes) -> bytes:
    lines = content.split(b"\n")
    lines[1] = b"\x00\xff{]"
    return b"\n".join(lines)


def line_lost(content: bytes) -> bytes:
    lines = content.split(b"\n")
    return b"\n".join([lines[0], *lines[2:]])


def garbage(content: bytes) -> bytes:
    return b"no checkpoint at all" * 50


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [half_line, truncated, emptied, garbage_inside, line_lost, None])
def test_damaged_records_of_a_stopped_job_are_recovered(
    whole: tuple[Path, dict[str, bytes]],
    halfway: Path,
    name: str,
    damage: Callable[[bytes], bytes] | None,
) -> None:
    path = JOB.folder(halfway) / name
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    study(whole[0], **CARRIED).run(halfway)
    assert written(halfway) == whole[1]


@pytest.mark.parametrize("damage", [truncated, emptied, garbage])
def test_an_unreadable_checkpoint_starts_the_job_again(
    whole: tuple[Path, dict[str, bytes]], halfway: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = JOB.folder(halfway) / "checkpoint.pt"
    path.write_bytes(damage(path.read_bytes()))
    study(whole[0], **CARRIED).run(halfway)
    assert written(halfway) == whole[1]


@pytest.mark.parametrize("name", [*FILES, "done.json"])
def test_a_finished_job_that_was_damaged_is_run_again(
    whole: tuple[Path, dict[str, bytes]], tmp_path: Path, name: str
) -> None:
    planned = study(whole[0], **CARRIED)
    planned.run(tmp_path)
    path = JOB.folder(tmp_path) / name
    path.write_bytes(truncated(path.read_bytes()))
    planned.run(tmp_path)
    assert written(tmp_path) == whole[1]
    assert json.loads((JOB.folder(tmp_path) / "done.json").read_bytes())["records"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"other": 1}'])
def test_a_damaged_study_file_is_written_anew(
    whole: tuple[Path, dict[str, bytes]], tmp_path: Path, content: bytes
) -> None:
    planned = study(whole[0], **CARRIED)
    planned.run(tmp_path)
    good = (tmp_path / "study.json").read_bytes()
    (tmp_path / "study.json").write_bytes(content)
    planned.run(tmp_path)
    assert (tmp_path / "study.json").read_bytes() == good
    assert written(tmp_path) == whole[1]


def test_two_processes_write_what_one_does(
    whole: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    study(whole[0], **CARRIED).run(tmp_path, jobs=2)
    assert written(tmp_path) == whole[1]
