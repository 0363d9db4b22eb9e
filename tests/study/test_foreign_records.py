"""Files that somebody else wrote, and machines that say no: words, and no wrong table."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pytest
from support.command_line import Command
from support.small_studies import expression, rows, study, write, written

from unseen.errors import UnseenError
from unseen.studies.results import checkpoint
from unseen.studies.results.records import Job


def test_records_know_which_settings_made_them(tmp_path: Path) -> None:
    path, out = write(tmp_path / "sites.csv", rows()), tmp_path / "out"
    first = study(path, methods=["fedavg"], rounds=1, targets=["a"])
    first.run(out)
    before = written(out)
    (out / "study.json").write_text('{"identity"')
    other = study(path, methods=["fedavg"], rounds=1, targets=["a"], training={"batch_size": 3})
    with pytest.raises(UnseenError, match=r"records of other settings \(fedavg\)"):
        other.run(out)
    first.run(out)  # its own records are whole
    assert written(out) == before


def test_a_checkpoint_that_is_a_pickle_is_none(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "pwned",)

    for content in (pickle.dumps(Evil()), b"not even that", pickle.dumps({"lengths": 1})):
        stored = hashlib.sha256(content).digest() + content
        (tmp_path / "checkpoint.pt").write_bytes(stored)
        assert checkpoint.load(tmp_path, "cpu") is None
    assert not (tmp_path / "pwned").exists()


def test_a_study_that_is_not_utf8_is_named(tmp_path: Path, unseen: Command) -> None:
    file = tmp_path / "study.toml"
    file.write_bytes('title = "Krankenhäuser"\n'.encode("latin-1"))
    ran = unseen("study", file)
    assert ran.code == 2 and "study.toml is not UTF-8 text: byte 17 is 0xe4" in ran.err
    ran = unseen("federation", "provision", file)
    assert ran.code == 2 and "study.toml is not TOML" in ran.err


def test_what_the_machine_refuses_is_said_in_words(tmp_path: Path, unseen: Command) -> None:
    path = write(tmp_path / "sites.csv", rows())
    words = (
        "study", "table", f"dataset={expression(path)}",
        "--methods", "fedavg", "--seeds", "1", "rounds=1", "--out",
    )  # fmt: skip
    out = tmp_path / "out"
    out.mkdir()
    (out / "records").write_text("")
    ran = unseen(*words, out)
    assert ran.code == 2 and "A file stands where a folder is needed" in ran.err
    full = tmp_path / "full"
    job = Job("fedavg", "a", 0).folder(full)
    job.mkdir(parents=True)
    (job / "done.json.part").symlink_to("/dev/full")
    ran = unseen(*words, full)
    assert ran.code == 2 and "No space left on device" in ran.err and "Make room" in ran.err
