"""What `unseen data check` says of a user's own files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image
from support.command_line import Command

from unseen.data import load
from unseen.errors import UnseenError


def visits(folder: Path, separator: str = ",") -> Path:
    """Three hospitals of 30 visits each, two to a patient; some gaps, one column of notes."""
    rows = ["hospital,patient_id,visit_id,age,pressure,ward,note,died"]
    for h, hospital in enumerate(("north", "south", "west")):
        for i in range(30):
            pressure = "" if i < 3 * h else 100 + i
            rows.append(
                f"{hospital},{h}{i // 2:02},{1000 + 30 * h + i},{40.5 + 10 * h},{pressure},"
                f"{'abc'[i % (2 + (h == 2))]},seen {hospital} {i},{i % 2}"
            )
    path = folder / "visits.csv"
    path.write_text("\n".join(rows).replace(",", separator) + "\n")
    return path


def cells(out: str, column: str) -> list[str]:
    """The row of a column in the table of columns."""
    row = next(line for line in out.splitlines() if re.match(rf"│ {column}\b", line))
    return [cell.strip() for cell in row.strip("│").split("│")]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("UNSEEN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


ROLES = "path='visits.csv', site='hospital', label='died'"
DROP = "drop=['visit_id', 'note']"


def test_columns_are_listed_with_kind_gaps_and_range(wide: Path, unseen: Command) -> None:
    visits(wide)
    ran = unseen("data", "check", f"table({ROLES}, unit='patient_id', {DROP})")
    assert ran.code == 0 and "nothing is wrong" in ran.out
    assert cells(ran.out, "hospital")[1] == "domain" and cells(ran.out, "died")[1] == "label"
    assert cells(ran.out, "patient_id")[1] == "unit" and cells(ran.out, "note")[1] == "dropped"
    assert cells(ran.out, "age")[1:5] == [
        "numeric", "0", "40.5 to 60.5", "mean north 40.5, south 50.5, west 60.5",
    ]  # fmt: skip
    pressure = cells(ran.out, "pressure")
    assert pressure[:2] == ["pressure", "numeric"] and pressure[3] == "100 to 129"
    assert pressure[2] == "9 (north 0%, south 10%, west 20%)"
    ward = cells(ran.out, "ward")
    assert ward[1] == "categorical" and ward[3] == "3 different: a, b, c"
    assert ward[4] == "levels north 2, south 2, west 3"
    assert re.search(r"│ north +│ 30 +│.*│ 15 +│", ran.out)  # fifteen patients


def test_what_a_study_would_refuse_is_said_beside_the_counts(wide: Path, unseen: Command) -> None:
    visits(wide)
    ran = unseen("data", "check", f"table({ROLES})")
    assert ran.code == 1 and "nothing is wrong" not in ran.out
    assert cells(ran.out, "note")[1] == "identifier" and cells(ran.out, "visit_id")[5]
    assert "repeats: unit='patient_id'?" in cells(ran.out, "patient_id")[5]
    assert re.search(r"│ west +│ 30 +│", ran.out)
    assert "a study stops here: 'visit_id' (90 whole numbers, all different) and 'note'" in ran.out
    dry = unseen("study", "table", f"dataset=table({ROLES})", "--dry-run")
    assert dry.code != 0 and "look like identifiers" in dry.err
    assert unseen("data", "check", f"table({ROLES}, identifiers='keep')").code == 0


def test_a_regressions_target_is_described_at_each_site(wide: Path, unseen: Command) -> None:
    visits(wide)
    call = "path='visits.csv', domain='hospital', label='pressure', task='regression'"
    ran = unseen("data", "check", f"table({call}, {DROP}, missing_label='drop')")
    row = next(line for line in ran.out.splitlines() if re.match(r"│ north +│ 114\.5", line))
    found = [cell.strip() for cell in row.strip("│").split("│")]
    # 100, 101, ..., 129: the population's deviation is sqrt((30² − 1) / 12).
    assert found == ["north", "114.5", "8.65544", "100", "107.25", "114.5", "121.75", "129"]
    assert "note: 9 of 90 rows left out, which have no label: west 6 of 30, south 3" in ran.out
    assert "30 to 30" not in ran.out
    assert "upper quartile" in ran.out and not re.search("┃ (known|classes) ", ran.out)


@pytest.mark.parametrize("columns", [80, 50])
def test_nothing_of_the_targets_is_cut_in_a_narrow_place(
    wide: Path, unseen: Command, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    rows = ["hospital,age,cost", *(f"north,{i},{219967 + i}" for i in range(9))]
    rows += [f"south,{i},{2.4675e9 + 1000 * i:.0f}" for i in range(9)]
    (wide / "costs.csv").write_text("\n".join(rows) + "\n")
    call = "table(path='costs.csv', domain='hospital', label='cost', task='regression')"
    broad = unseen("data", "check", call).out
    assert max(map(len, broad.splitlines())) > 80  # a pipe is broad unless COLUMNS says otherwise
    monkeypatch.setenv("COLUMNS", str(columns))
    ran = unseen("data", "check", call)
    tables = ran.out[ran.out.index("examples") :]
    framed = [line for line in tables.splitlines() if line.startswith(("│", "┃"))]
    assert max(map(len, framed)) <= columns and not any("…" in line for line in framed)
    for text in ("219967", "219975", "219971", "2.4675e+09", "target: deviation",
                 "target: upper quartile"):  # fmt: skip
        assert any(re.search(rf"{re.escape(text)} *[│┃]", line) for line in framed), text


def test_many_columns_are_listed_when_asked_for(wide: Path, unseen: Command) -> None:
    names = ",".join(f"x{i}" for i in range(70))
    rows = [f"{site},{i % 2},{','.join(['1'] * 70)}" for site in "ab" for i in range(4)]
    (wide / "wide.csv").write_text(f"site,label,{names}\n" + "\n".join(rows) + "\n")
    call = "table(path='wide.csv', domain='site', label='label')"
    short, long = unseen("data", "check", call).out, unseen("data", "check", call, "--all").out
    assert "12 more columns, 12 numeric; --all lists them" in short
    assert "│ x69 " not in short and "│ x69 " in long


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_file_alone_is_shown_with_the_command_to_go_on_with(
    separator: str, wide: Path, unseen: Command
) -> None:
    visits(wide, separator)
    ran = unseen("data", "check", "visits.csv")
    assert ran.code == 0 and f"90 rows, 8 columns separated by '{separator}'" in ran.out
    call = f"table({ROLES}, unit='patient_id', {DROP})"
    assert f'unseen data check "{call}"' in ran.out
    assert "'hospital' and 'died' are guesses" in ran.out
    assert unseen("data", "check", call).code == 0
    elsewhere = unseen("data", "check", "visits.csv", "--data-dir", wide / "other")
    assert f"path='{wide / 'visits.csv'}'" in elsewhere.out
    (wide / "plain.csv").write_text("a,b\n1,2\n3,4\n")
    assert "site='SITE', label='LABEL'" in unseen("data", "check", "plain.csv").out


def test_what_is_no_study_is_answered_with_the_command_for_it(wide: Path, unseen: Command) -> None:
    visits(wide)
    said = unseen("study", "visits.csv").err
    assert "unseen data check visits.csv" in said and "unseen study table" in said
    (wide / "photos").mkdir()
    assert "unseen study images --data-dir photos" in unseen("study", "photos").err
    assert "folder(path='./photos')" in unseen("data", "check", "./photos").err
    assert "there is no file or folder none.csv" in unseen("data", "check", "none.csv").err
    (wide / "a.xlsx").write_bytes(b"PK")
    assert "is not a csv or Parquet file" in unseen("data", "check", "a.xlsx").err


def photos(root: Path, n: int = 3) -> Path:
    for site in ("x", "y"):
        for label in ("cat", "dog"):
            (root / site / label).mkdir(parents=True)
            for i in range(n):
                Image.new("RGB", (4, 4), (i, 0, 0)).save(root / site / label / f"{i:02}.png")
    return root


def test_images_that_cannot_be_read_leave_the_others_counted(wide: Path, unseen: Command) -> None:
    root = photos(wide / "photos")
    (root / "x" / "dog" / "01.png").write_bytes(b"<html>")
    ran = unseen("data", "check", "folder(path='photos')")
    assert ran.code == 1 and ran.out.count("unreadable: ") == 1
    assert "unreadable: the image x/dog/01.png cannot be read" in ran.out
    assert re.search(r"│ x +│ 5 +│.*│ 2 of 2 +│ 2 to 3 +│", ran.out)
    assert re.search(r"│ y +│ 6 +│", ran.out)
    with pytest.raises(UnseenError, match=r"x/dog/01\.png cannot be read"):
        load("folder", root)


def test_twenty_unreadable_images_are_named_and_the_rest_counted(
    wide: Path, unseen: Command
) -> None:
    root = photos(wide / "photos", 12)
    for label in ("cat", "dog"):
        for path in (root / "x" / label).iterdir():
            path.write_bytes(b"")
    ran = unseen("data", "check", "folder(path='photos')")
    assert ran.out.count("unreadable: the image") == 20
    assert "unreadable: 4 more files; --all names them" in ran.out
    ran = unseen("data", "check", "folder(path='photos')", "--all")
    assert ran.out.count("unreadable: the image") == 24


def test_a_data_set_is_loaded_by_the_expression_that_studies_have(tmp_path: Path) -> None:
    visits(tmp_path)
    expression = f"table({ROLES}, unit='patient_id', {DROP})"
    data = load(expression, tmp_path)
    assert data.names == ("north", "south", "west")
    assert load(expression, tmp_path, task="regression").classes is None
    assert load("Rotated_Digits").names == load("rotated-digits()").names
    with pytest.raises(UnseenError, match="expected one data set; found 2"):
        load("folder()+table()")
    with pytest.raises(UnseenError, match=r"table\(path=\.\.\., domain=\.\.\., label=\.\.\.\)"):
        load("table()")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("drops=['age']", "has no option 'drops'; did you mean 'drop'"),
        ("domain='hospital', label='hospital'", "the column 'hospital' is named twice"),
    ],
)
def test_options_that_cannot_be_are_refused_in_words(
    options: str, words: str, wide: Path, unseen: Command
) -> None:
    visits(wide)
    roles = "path='visits.csv'" if "label" in options else ROLES
    ran = unseen("data", "check", f"table({roles}, {options})")
    assert ran.code == 2 and words in ran.err


def test_a_number_may_stand_for_a_missing_value(wide: Path, unseen: Command) -> None:
    path = visits(wide)
    path.write_text(path.read_text().replace(",,", ",-9,"))
    ran = unseen("data", "check", f"table({ROLES}, unit='patient_id', {DROP}, missing=-9)")
    assert ran.code == 0 and cells(ran.out, "pressure")[2].startswith("9 ")


def test_a_table_of_one_site_is_not_enough_for_a_study(wide: Path, unseen: Command) -> None:
    path = visits(wide)
    path.write_text("\n".join(path.read_text().splitlines()[:31]) + "\n")
    ran = unseen("data", "check", f"table({ROLES}, unit='patient_id', {DROP})")
    assert ran.code == 1 and "needs two domains or more" in " ".join((ran.out + ran.err).split())


def test_a_column_of_one_site_alone_is_said_to_be_of_one(wide: Path, unseen: Command) -> None:
    path = visits(wide)
    lines = path.read_text().splitlines()
    there = [f"{line},{i if line.startswith('south') else ''}" for i, line in enumerate(lines[1:])]
    path.write_text("\n".join([lines[0] + ",lactate", *there]) + "\n")
    call = f"table({ROLES}, unit='patient_id', {DROP})"
    ran = unseen("data", "check", call)
    assert cells(ran.out, "lactate")[4] == "mean 44.5, at 1 of 3 sites (south)"  # of 30 to 59
    study = ("study", "table", f"dataset={call}", "methods=['glm']", "--dry-run")
    out = " ".join(unseen(*study, "--targets", "south").out.split())
    assert "no training site has a value of 'lactate' (task 'south')" in out
    assert "no training site" not in unseen(*study, "--targets", "west").out


def test_dates_with_times_are_not_read_as_text(wide: Path, unseen: Command) -> None:
    path = visits(wide)
    lines = path.read_text().splitlines()
    seen = [
        f"{line},2020-01-{1 + i // 24:02} {i % 24:02}:15:00" for i, line in enumerate(lines[1:])
    ]
    path.write_text("\n".join([lines[0] + ",seen", *seen]) + "\n")
    ran = unseen("data", "check", str(path))
    assert "looks like dates" in " ".join(cells(ran.out, "seen"))
    assert "text=" not in ran.out and "'seen'" in ran.out.rpartition("drop=[")[2]


def test_words_are_categories_beside_those_that_are_named(wide: Path) -> None:
    visits(wide)
    options = {"unit": "patient_id", "drop": ["visit_id", "note"], "categorical": ["age"]}
    data = load("table", None, path="visits.csv", domain="hospital", label="died", **options)
    assert data.schema is not None and [*data.schema.categories] == ["age", "ward"]


def test_zeros_in_front_may_be_codes(wide: Path, unseen: Command) -> None:
    path = visits(wide)
    lines = path.read_text().splitlines()
    codes = [f"{line},{i % 12:02}" for i, line in enumerate(lines[1:])]
    path.write_text("\n".join([lines[0] + ",region", *codes]) + "\n")
    ran = unseen("data", "check", f"table({ROLES}, unit='patient_id', {DROP})")
    assert cells(ran.out, "region")[-1] == "zeros in front: codes?"  # and how, on the next line
    assert cells(ran.out, "age")[-1] == ""


def test_a_folder_here_is_one_without_a_slash(wide: Path, unseen: Command) -> None:
    (wide / "photos").mkdir()
    ran = unseen("data", "check", "photos")
    assert ran.code == 2 and "photos is a folder" in ran.err and "folder(path=" in ran.err
