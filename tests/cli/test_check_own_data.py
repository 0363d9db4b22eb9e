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


def test_the_command_settles_leaks_names_codes_and_stray_words(
    unseen: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["site,id,age,height,left,day,big,died"]
    for i in range(240):
        died, height = int(i * 7 % 11 < 2), -999 if i % 20 == 3 else 150 + i * 13 % 37
        age = "unclear" if i in (4, 7) else i * 37 % 101
        big = "1e200" if i == 9 else i * 31 % 71
        day = f"2021-01-{1 + i % 28:02}"
        label = "" if i == 100 else died
        lines.append(f"{'abc'[i % 3]},P{i},{age},{height},{died},{day},{big},{label}")
    Path("v.csv").write_text("\n".join(lines) + "\n")
    first = unseen("data", "check", "v.csv", "--site=site", "--label=died")
    assert first.code == 1 and "a study stops here" in first.out
    words = shlex.split(first.out.splitlines()[-1])
    assert words[:4] == ["next:", "unseen", "choose", "v.csv"]
    options = dict(word.split("=", 1) for word in words[4:] if not word.startswith("--"))
    assert options["missing"] == "['unclear', '-999']" and options["missing_label"] == "drop"
    assert {*eval(options["drop"])} == {"id", "left", "day", "big"}
    again = unseen("data", "check", *words[3:])
    assert again.code == 0 and "nothing is wrong" in again.out
    assert [line[:9] for line in again.out.splitlines() if line[:5] == "note:"] == ["note: 1 o"]


@pytest.mark.parametrize("label", ["died", "stay"])
def test_decimal_commas_in_quotes_are_read_as_such_instead_of_dropped(
    label: str, unseen: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["site,dose,stay,beds,died"]
    for i in range(120):
        dose, stay = (f'"{i * k % 101},{i * k % 7}"' for k in (37, 29))
        lines.append(f"{'abc'[i % 3]},{dose},{stay},{i * 13 % 50},{i * 7 % 5 // 3}")
    Path("v.csv").write_text("\n".join(lines) + "\n")
    more = ["--task=regression"] if label == "stay" else []
    first = unseen("data", "check", "v.csv", "--site=site", f"--label={label}", *more)
    assert first.code == 1 and "a study stops here" in first.out
    words = shlex.split(first.out.splitlines()[-1])
    assert "decimal=," in words and not [word for word in words if word.startswith("drop")]
    assert unseen("data", "check", *words[3:]).code == 0


def test_a_comma_beside_columns_with_points_costs_its_own_column_alone(
    unseen: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["site,age,dose,died"]
    for i in range(120):
        lines.append(f'{"abc"[i % 3]},{i * 37 % 101}.5,"{i * 29 % 101},5",{i * 7 % 5 // 3}')
    Path("v.csv").write_text("\n".join(lines) + "\n")
    first = unseen("data", "check", "v.csv", "--site=site", "--label=died")
    assert "as in the column 'age'" in first.out
    assert "drop=['dose']" in shlex.split(first.out.splitlines()[-1])


def test_at_most_ten_remarks_are_printed_unless_all_are_asked_for(
    unseen: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"c{j}" for j in range(24)]
    rows = [
        [f"{'ab'[i % 2]}", *("Xx"[i * 7 % (j + 11) % 2] for j in range(24)), str(i * 5 % 7 // 4)]
        for i in range(200)
    ]
    lines = [["site", *names, "died"], *rows]
    Path("v.csv").write_text("\n".join(map(",".join, lines)) + "\n")
    words = ("data", "check", "v.csv", "--site=site", "--label=died")
    few, every = unseen(*words).out, unseen(*words, "--all").out
    remarks = every.count("note: ")
    assert remarks > 10 and few.count("note: ") == 10 + 1
    assert f"note: {remarks - 10} more remarks of less importance" in few


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
