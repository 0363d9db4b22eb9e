"""What is said of columns that would put names, days or nothing into a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Command

from unseen.data import load
from unseen.data.summary import inspect
from unseen.data.tables import columns as overview
from unseen.data.tables.table_files import read
from unseen.errors import UnseenError
from unseen.expression import parse

CALL = "table(path='t.csv', domain='site', label='died'{})"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write(folder: Path, name: str, cells: list[str]) -> Path:
    rows = [f"{'ab'[i % 2]},{cell},{i / 7},{i // 2 % 2}\n" for i, cell in enumerate(cells)]
    (folder / "t.csv").write_text(f"site,{name},age,died\n" + "".join(rows))
    return folder


def notes(folder: Path, options: str = "") -> tuple[str, ...]:
    return load(CALL.format(options), folder).notes


def names(levels: int, rows: int) -> list[str]:
    """That many names, in each of so many rows, so that no half of the rows differ."""
    every = [a + b for a in LETTERS for b in LETTERS][:levels]
    return [every[i % levels] for i in range(levels * rows)]


def remark(folder: Path, column: str) -> str:
    report = inspect(parse(CALL.format(""))[0], folder)
    return next(c.remark for c in report.columns if c.name == column)


def test_many_rare_values_are_remarked_upon(tmp_path: Path) -> None:
    write(tmp_path, "first_name", names(60, 3))
    (note,) = notes(tmp_path)
    assert "'first_name' has 60 values, 60 of them in fewer than 5 rows" in note
    assert "whose name the model's files list" in note and "drop=['first_name']" in note
    assert "many values" in remark(tmp_path, "first_name")
    report = inspect(parse(CALL.format(""))[0], tmp_path)
    assert report.sound and report.doubts == ("first_name",)
    for options in ("drop", "text"):
        assert not notes(tmp_path, f", {options}=['first_name']")
    assert not notes(tmp_path, ", identifiers='keep'")
    assert notes(tmp_path, ", categorical=['first_name']") == (note,)
    for levels, rows in ((50, 3), (60, 5)):
        write(tmp_path, "first_name", names(levels, rows))
        assert not any("each value becomes" in note for note in notes(tmp_path))
        assert not remark(tmp_path, "first_name")


@pytest.mark.parametrize(
    "form", ["2021-01-{:02}", "{:02}.01.2021", "1/{}/2021", "2021-01-{:02}T08:30:00"]
)
def test_dates_are_remarked_upon(tmp_path: Path, form: str) -> None:
    write(tmp_path, "admitted", [form.format(1 + i % 28) for i in range(90)])
    (note,) = notes(tmp_path)
    assert "'admitted' looks like dates" in note and "a new site will not have" in note
    assert "looks like dates" in remark(tmp_path, "admitted")
    write(tmp_path, "admitted", [form.format(1 + i) for i in range(24)])
    with pytest.raises(UnseenError, match=r"looks like an identifier.* number of the dates in"):
        notes(tmp_path)


def test_words_with_digits_are_no_dates(tmp_path: Path) -> None:
    write(tmp_path, "code", [f"1.2.{i % 9}-b" for i in range(60)])
    assert not notes(tmp_path)


@pytest.mark.parametrize("name", ["Nr.", "rownames", "No.", "row_number", "Serial No"])
def test_numbers_of_rows_are_identifiers_by_their_name(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, [str(1000 + 3 * i) for i in range(30)])
    with pytest.raises(UnseenError, match="30 whole numbers, all different"):
        notes(tmp_path)
    for other in ("education-num", "NO", "obs_hours"):
        write(tmp_path, other, [str(1000 + 3 * i) for i in range(30)])
        assert not notes(tmp_path)
    write(tmp_path, name, [str(i // 2) for i in range(60)])
    assert not notes(tmp_path)


def test_a_constant_column_is_remarked_upon(tmp_path: Path) -> None:
    for cell in ("covid", "7"):
        write(tmp_path, "kind", [cell] * 30)
        assert remark(tmp_path, "kind") == "the same in every row: drop=['kind']?"
    write(tmp_path, "kind", [*["covid"] * 29, ""])
    assert not remark(tmp_path, "kind")


def test_a_value_that_is_cut_says_so(tmp_path: Path) -> None:
    write(tmp_path, "status", ["Married-civ-spouse", "Not-in-family", "Never-marriedx"] * 10)
    sheet = read(tmp_path / "t.csv")
    (status,) = (c for c in overview.columns(sheet, {}) if c.name == "status")
    assert status.values == "3 different: Married-civ-s…, Never-marriedx, Not-in-family"


def test_a_column_called_by_the_usual_word_is_guessed_first(
    tmp_path: Path, unseen: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{'xy'[i % 2]},{'ab'[i % 2]},{i / 7},{'pq'[i % 2]},{i // 2 % 2}" for i in range(30)]
    for label in ("class", "Outcome", "died"):
        head = f"marital-status,home-country,age,country,{label}"
        (tmp_path / "t.csv").write_text("\n".join([head, *rows]) + "\n")
        assert f"site='country', label='{label}'" in unseen("data", "check", "t.csv").out
    (tmp_path / "t.csv").write_text("\n".join(["marital-status,b,c,d,e", *rows]) + "\n")
    out = unseen("data", "check", "t.csv").out
    assert "write the column of the sites in place of SITE; 'marital-status' is a guess" in out


def test_sites_that_are_spelled_in_several_ways_are_remarked_upon(tmp_path: Path) -> None:
    """A table of two files, one of which a spreadsheet wrote: 1.0 for 1."""
    sites = ["1", "1.0", "01", "2", "2.0", "south"]
    rows = [f"{site},{i / 7},{i % 2}\n" for i, site in enumerate(sites * 10)]
    (tmp_path / "t.csv").write_text("site,age,died\n" + "".join(rows))
    (note,) = notes(tmp_path)
    assert "the site '1' is also written '01' and '1.0'" in note and "1 more" in note
    data = load(CALL.format(""), tmp_path)
    assert data.names == ("1", "2", "south") and len(data["1"].y) == 30
    (tmp_path / "t.csv").write_text("site,age,died\n" + "".join(rows).replace("\n1.0,", "\nb,"))
    assert "'01'" in notes(tmp_path)[0] and "1.0" not in notes(tmp_path)[0]
    alike = [row for i, row in enumerate(rows) if sites[i % 6] in ("1", "2", "south")]
    (tmp_path / "t.csv").write_text("site,age,died\n" + "".join(alike))
    assert not any("also written" in note for note in notes(tmp_path))


def test_names_that_differ_in_capitals_or_spaces_alone_are_named(tmp_path: Path) -> None:
    rows = [f"{site},{i},{label}" for i in range(4) for site, label in (
        ("1_UM", "Yes"), ("1_um", "no"), ("2_Bonn", "yes"), ("2  Bonn", "no"),
    )]  # fmt: skip
    (tmp_path / "t.csv").write_text("\n".join(["site,x,died", *rows, ""]))
    text = " ".join(notes(tmp_path))
    assert "the sites '1_UM' and '1_um' differ in capitals or spaces alone" in text
    assert "taken as 2 sites" in text
    assert "the classes 'Yes' and 'yes' differ in capitals or spaces alone" in text


def test_nan_among_words_is_no_number_and_is_named(tmp_path: Path) -> None:
    rows = [f"{site},{name},{i}" for i, (site, name) in enumerate(
        [("a", "ann"), ("a", "bob"), ("b", "ann"), ("b", "bob"), ("c", "nan"), ("c", "nan")] * 4
    )]  # fmt: skip
    lines = [f"{row},{i // 6 % 2}" for i, row in enumerate(rows)]
    (tmp_path / "t.csv").write_text("\n".join(["site,name,x,died", *lines, ""]))
    with pytest.warns(UserWarning, match="'nan' as one of its categories.*'missing'"):
        data = load(CALL.format(""), tmp_path)
    assert data.schema is not None and data.schema.categories["name"] == ("ann", "bob", "nan")
    plain = load(CALL.format(", missing=['nan']"), tmp_path)
    assert plain.schema is not None and plain.schema.categories["name"] == ("ann", "bob")


@pytest.mark.parametrize("form", ["{} kg", "{}%", "-{}.5 °C"])
def test_a_unit_behind_every_number_is_remarked_upon(tmp_path: Path, form: str) -> None:
    write(tmp_path, "weight", [form.format(60 + i % 20) for i in range(60)])
    unit = form.replace("{}", "").removeprefix("-").removeprefix(".5").strip()
    (note,) = notes(tmp_path)
    assert f"'weight' has {unit!r} behind the number in every cell" in note
    assert (
        remark(tmp_path, "weight")
        == f"{unit!r} behind each number: write it into the column's name"
    )
    write(tmp_path, "weight", [form.format(60 + i) for i in range(60)])
    with pytest.raises(UnseenError, match=f"write {unit!r} of 'weight' into the column's name"):
        notes(tmp_path)


@pytest.mark.parametrize("form", ["{} kg", "ward {}", "40-{}", "12:{}", "{}"])
def test_cells_of_two_units_or_none_are_not(tmp_path: Path, form: str) -> None:
    cells = [form.format(30 + i % 20) for i in range(60)]
    write(tmp_path, "weight", [*cells[1:], "150 lb"] if form == "{} kg" else cells)
    assert not any("behind" in note for note in notes(tmp_path))
    assert "behind" not in remark(tmp_path, "weight")


def test_hundreds_of_names_are_remarked_upon_however_frequent(tmp_path: Path) -> None:
    write(tmp_path, "first_name", names(300, 6))
    (note,) = notes(tmp_path)
    assert "'first_name' has 300 values: each value becomes a feature" in note
    assert "many values" in remark(tmp_path, "first_name")
