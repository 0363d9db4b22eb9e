"""`unseen data check` with the words of `unseen choose`, and the command that it ends with."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from PIL import Image
from support.command_line import Command


def test_the_last_line_is_a_command_that_runs(
    unseen: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{'abc'[i % 3]},P{i},{i * 37 % 101},{int(i % 7 == 0)}" for i in range(120)]
    rows[7] = "b,P7,5,"
    Path("v.csv").write_text("\n".join(["site,id,age,died", *rows, "d,PX,50,0", ""]))
    first = unseen("data", "check", "v.csv", "--site", "site", "--label", "died")
    assert first.code == 1 and "a study stops here" in first.out
    words = shlex.split(first.out.splitlines()[-1])
    assert words[:4] == ["next:", "unseen", "choose", "v.csv"]
    assert {"drop=['id']", "without=['d']", "missing_label=drop", "metric=auroc"} < {*words}
    assert words == shlex.split(unseen("data", "check", *words[3:]).out.splitlines()[-1])
    assert "trainings" in unseen(*words[2:], "--dry-run").out


def test_a_folder_of_images_is_checked_by_its_name(
    unseen: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for i, place in enumerate(("A/x", "A/y", "B/x", "B/y")):
        (tmp_path / "photos" / place).mkdir(parents=True)
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / "photos" / place / "1.png")
    said = unseen("data", "check", "photos", "size=8").out
    assert "nothing is wrong" in said
    assert said.splitlines()[-1] == "next: unseen choose photos size=8"
