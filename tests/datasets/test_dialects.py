"""How csv files are written: separators, decimal commas, encodings, and what is not a number."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch
from support.command_line import Command

from unseen.cli.data import first_look
from unseen.data import load
from unseen.data.dataset import DataSet
from unseen.data.tables.dialect import Dialect, dialect_like
from unseen.data.tables.table_files import cells_by_line
from unseen.errors import UnseenError

ROWS = [("site", "größe", "wert", "died"), ("a", 1.75, 3, 0), ("a", 0.125, 4, 1)]
ROWS += [("b", 2.5, 5, 0), ("b", 1.5, -6, 1)]
VALUES = {"a": [[1.75, 3], [0.125, 4]], "b": [[2.5, 5], [1.5, -6]]}


def write(path: Path, separator: str = ",", decimal: str = ".", encoding: str = "utf-8") -> Path:
    def cell(value: object) -> str:
        return str(value).replace(".", decimal) if isinstance(value, float) else str(value)

    content = "".join(separator.join(map(cell, row)) + "\n" for row in ROWS).encode(encoding)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read(path: Path, **options: object) -> DataSet:
    return load("table", path=path, **{"domain": "site", "label": "died", **options})


def is_read(data: DataSet) -> None:
    assert data.schema is not None and data.schema.columns == ("größe", "wert")
    assert not data.schema.categories
    for name, values in VALUES.items():
        assert torch.equal(data[name].x, torch.tensor(values, dtype=torch.float64))


@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_and_decimal_commas_are_found(
    separator: str, decimal: str, tmp_path: Path
) -> None:
    is_read(read(write(tmp_path / "t.csv", separator, decimal)))
    packed = write(tmp_path / "t.csv.gz", separator, decimal)
    is_read(read(packed))
    is_read(read(packed, separator=separator, decimal=decimal, encoding="utf-8"))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_mark_at_the_start_says_the_encoding(encoding: str, tmp_path: Path) -> None:
    is_read(read(write(tmp_path / "t.csv", ";", ",", encoding)))


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16-le", "utf-16-be"])
def test_other_encodings_are_refused_with_the_likely_one(encoding: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", encoding=encoding)
    likely = encoding if encoding.startswith("utf") else "cp1252"
    with pytest.raises(UnseenError, match=f"is not UTF-8: line 1 .*write encoding='{likely}'"):
        read(path)
    is_read(read(path, encoding=encoding))


def test_the_remedy_has_the_spelling_of_choose_as_well(tmp_path: Path, unseen: Command) -> None:
    rows = "".join(f"{'abc'[i % 3]},{i * 37 % 91 / 7:.3f},{i // 3 % 2}\n" for i in range(90))
    path = tmp_path / "t.csv"
    path.write_text("site,größe,died\n" + rows, "cp1252")
    choose = ("choose", str(path), "--site", "site", "--label", "died", "--dry-run")
    ran = unseen(*choose)
    assert ran.code != 0 and "encoding=cp1252 behind the file in `unseen choose`" in ran.err
    assert unseen(*choose, "encoding=cp1252", "--recipes", "glm").code == 0


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["utf-8", "utf-8-sig"])
def test_a_first_line_that_says_the_separator_is_read_as_excel_does(
    end: str, mark: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "t.csv", ";", ",", mark)
    lines = ["sep=;", *path.read_text(mark).splitlines()]
    path.write_bytes(end.join([*lines, ""]).encode(mark))
    is_read(read(path))
    is_read(read(path, separator=";"))
    pipes = [line.replace(";", "|") for line in lines[1:]]
    path.write_text("\n".join(["SEP=|", *pipes, "one cell", ""]))
    with pytest.raises(UnseenError, match=f"line {len(lines) + 1} of .* has 1 cells"):
        read(path)


def test_new_rows_may_begin_with_the_separator(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("sep=;\nage;word\n1,5;a\n")
    found = dialect_like(tmp_path / "n.csv", ["age", "word"], ["age"], Dialect())
    assert (found.separator, found.decimal) == (";", ",")
    with (tmp_path / "n.csv").open() as file:
        assert [*cells_by_line(file, ";")] == [(2, ["age", "word"]), (3, ["1,5", "a"])]


def test_an_excel_workbook_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(UnseenError, match="looks like an Excel workbook"):
        read(tmp_path / "t.csv")


def test_a_header_in_one_piece_is_refused_with_the_likely_separator(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", ";")
    with pytest.raises(UnseenError, match=r"one column when split by ','; .*separator=';'"):
        read(path, domain="centre", label="dead")
    with pytest.raises(UnseenError, match="did you mean 'died'"):
        read(path, label="die", separator=";")


def test_options_that_cannot_be(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv")
    for options, fault in (
        ({"separator": ";;"}, "separator must be one character"),
        ({"decimal": "'"}, "decimal must be one of"),
        ({"encoding": "utf-9"}, "knows no encoding 'utf-9'"),
    ):
        with pytest.raises(UnseenError, match=fault):
            read(path, **options)


def test_quoted_decimal_commas_in_a_file_of_commas_are_pointed_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('site,x,died\na,"1,5",0\na,2,1\nb,"2,5",0\nb,3,1\n')
    with pytest.raises(UnseenError, match=r"line 2 of t\.csv has '1,5' .*write decimal=','"):
        read(path)
    assert read(path, decimal=",")["a"].x.flatten().tolist() == [1.5, 2]


def test_thousands_are_not_taken_for_decimals(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("site;x;died\na;1,234;0\na;2,345;1\nb;3,456;0\nb;4,567;1\n")
    with pytest.raises(UnseenError, match="has '1,234' .*nearly a number"):
        read(path)


def test_a_point_among_decimal_commas_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("site;x;died\na;1,5;0\na;1.500;1\nb;2,5;0\nb;3,5;1\n")
    with pytest.raises(UnseenError, match=r"line 3 .* has '1\.500' .*a decimal comma"):
        read(path, decimal=",")


@pytest.mark.parametrize("cell", ["1_000", "0x10", "１２", "٣", "1 000", "1.000.000"])
def test_only_plain_digits_are_numbers(cell: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"site,x,died\na,1,0\na,{cell},1\nb,2e-3,0\nb,{cell},1\n", "utf-8")
    with pytest.raises(UnseenError, match=f"line 3 of t.csv has '{cell}' in the column 'x'"):
        read(path)
    data = read(path, categorical=["x"])
    assert data.schema is not None and data.schema.categories["x"] == ("2e-3", "1", cell)
    with pytest.raises(UnseenError, match="'x', is not a number"):
        read(path, label="x", task="regression", drop=[])


def test_codes_with_true_words_stay_categories(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("site,x,died\na,0x10,0\na,other,1\nb,0x11,0\nb,other,1\n")
    data = read(path)
    assert data.schema is not None and data.schema.categories["x"] == ("0x10", "0x11", "other")


def test_a_column_without_a_name_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(",site,x,died\n0,a,1,0\n1,b,2,1\n")
    with pytest.raises(UnseenError, match=r"no name in its first line for column 1\."):
        read(path)
    path.write_text("site,x,died,,\na,1,0,,\nb,2,1,,\n")
    with pytest.raises(UnseenError, match=r"no name in its first line for columns 4, 5"):
        read(path)


def test_columns_of_one_name_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("site,x,x,y,y,died\na,1,1,1,1,0\n")
    with pytest.raises(UnseenError, match="more than one column called x and more than one .* y"):
        read(path)


def fractions(path: Path, form: str, other: str = "") -> Path:
    """90 different numbers in a file of semicolons, 2.001 to 2.090."""
    rows = [f"s{i % 3};{form.format(i)};{other or i % 4};{i % 2}" for i in range(1, 91)]
    path.write_text("\n".join(["site;x;z;died", *rows]) + "\n")
    return path


@pytest.mark.parametrize("other", ["", "3.5"])
def test_many_decimal_commas_are_no_identifiers(other: str, tmp_path: Path) -> None:
    """2,001 may be two thousand: the option is named, and nothing is advised to be dropped."""
    path = fractions(tmp_path / "t.csv", "2,{:03d}", other)
    with pytest.raises(UnseenError, match=r"line 2 .* '2,001' .*decimal=','") as caught:
        read(path)
    assert "drop" not in str(caught.value) and ("column 'z'" in str(caught.value)) == bool(other)
    if not other:
        data = read(path, decimal=",")
        assert data["s1"].x[:2, 0].tolist() == [2.001, 2.004]


def test_points_in_a_column_of_words_leave_decimal_commas_found(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("site;x;v;died\na;1,5;3.5;0\na;2;beta;1\nb;2,5;3.5;0\nb;4;beta;1\n")
    assert read(path)["a"].x[:, 0].tolist() == [1.5, 2]


@pytest.mark.parametrize(
    ("cell", "remedy"),
    [("2.338,17", "2338,17, and set decimal=','"), ("2,338.17", "thousands, 2338.17[.]")],
)
def test_thousands_and_decimals_are_told_apart(cell: str, remedy: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"site;x;died\na;{cell};0\na;{cell};1\nb;{cell};0\nb;{cell};1\n")
    with pytest.raises(UnseenError, match=remedy):
        read(path)


def test_one_misspelt_column_hides_no_separator(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", ";")
    with pytest.raises(UnseenError, match="did you mean 'died'"):
        read(path, label="dead")


@pytest.mark.parametrize(
    ("cell", "remedy"), [("high", "correct it"), ("1,5", "write decimal=','"), ("inf", "correct")]
)
def test_a_label_that_is_not_a_number_is_called_one(cell: str, remedy: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f'site,x,cost\na,1,1\na,2,"{cell}"\nb,3,2\nb,4,3\n')
    with pytest.raises(UnseenError, match=f"label '{cell}' in line 3 .* not a number") as caught:
        read(path, label="cost", task="regression")
    said = str(caught.value)
    assert remedy in said and "task='classification'" in said and "categorical" not in said


def test_a_file_that_lies_here_and_not_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    path = write(tmp_path / "t.csv")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnseenError, match=r"data/t\.csv, which does not exist") as caught:
        load("table", tmp_path / "data", path="t.csv", domain="site", label="died")
    assert f"lies here: write path='{path}'" in str(caught.value)
    with pytest.raises(UnseenError) as caught:
        load("table", tmp_path / "data", path="u.csv", domain="site", label="died")
    assert "lies here" not in str(caught.value)


@pytest.mark.parametrize(("letter", "encoding"), [(b"\xfc", "cp1252"), (b"\x81", "latin-1")])
def test_a_first_look_reads_what_windows_wrote(
    letter: bytes, encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0x81 stands for nothing in cp1252."""
    text = "site;word;died\na;gr?n;0\na;rot;1\nb;gr?n;0\nb;rot;1\n"
    (tmp_path / "t.csv").write_bytes(text.encode().replace(b"?", letter))
    first_look(str(tmp_path / "t.csv"), None)
    out = capsys.readouterr().out
    assert f"not UTF-8: read as {encoding}" in out and f"encoding='{encoding}')" in out
    (tmp_path / "t.csv").write_text(text)
    first_look(str(tmp_path / "t.csv"), None)
    assert "UTF-8" not in capsys.readouterr().out


NEARLY = {
    "minus": lambda v: f"{v}".replace("-", "\u2212"),
    "few": lambda v: f"{round(v)}".replace("-", "\u2212"),
    "exponent": lambda v: f"{v:.3E}".replace(".", ","),
    "apostrophe": lambda v: f"'{v}",
    "currency": lambda v: f"${abs(round(v))}.50",
    "thin space": lambda v: f"{abs(round(v)) + 10}\u202f000",
}


@pytest.mark.parametrize("form", NEARLY)
@pytest.mark.parametrize("label", [False, True])
def test_numbers_in_a_spelling_of_their_own_are_refused_as_such(
    form: str, label: bool, tmp_path: Path
) -> None:
    values = [((i * 37) % 101 - 50) / 10 for i in range(60)]
    rows = [f'{"ab"[i % 2]},"{NEARLY[form](v)}",{i / 8},{i // 2 % 2}' for i, v in enumerate(values)]
    (tmp_path / "t.csv").write_text("\n".join(["site,dose,age,died", *rows, ""]), "utf-8")
    options = {"label": "dose", "task": "regression"} if label else {}
    with pytest.raises(UnseenError, match="'dose'.*(nearly|not) a number") as error:
        read(tmp_path / "t.csv", **options)
    assert "identifiers" not in str(error.value) and "write it" in str(error.value)


def test_exponents_show_a_decimal_comma(tmp_path: Path) -> None:
    rows = ["site;dose;died", "a;6,125E+01;0", "a;1,250E+00;1", "b;2,500E+00;0", "b;-1,5e1;1"]
    (tmp_path / "t.csv").write_text("\n".join([*rows, ""]))
    data = read(tmp_path / "t.csv")
    assert data["a"].x.tolist() == [[61.25], [1.25]] and data["b"].x.tolist() == [[2.5], [-15]]


@pytest.mark.parametrize("options", [{"drop": ["note"]}, {"text": ["note"]}])
def test_a_cell_may_be_longer_than_the_csv_module_allows(
    options: dict[str, list[str]], tmp_path: Path
) -> None:
    long = "word " * 100_000
    rows = [f"{'ab'[i % 2]},{long if i == 2 else 'ok then'},{i},{i // 2}" for i in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(["site,note,age,died", *rows, ""]))
    assert len(read(tmp_path / "t.csv", **options)["a"].y) == 2
