"""What commands say of rows and files that they cannot use, and of options that cannot be."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import torch
from support.command_line import Command
from support.federations import write_table

from unseen.errors import UnseenError
from unseen.serving.directory import Trained
from unseen.serving.http_service import Service, rows_of_json
from unseen.serving.policy import policy_of
from unseen.serving.thresholds import Counts, class_counts, describe, threshold

HEAD = "age,dose,drug"


def as_parquet(path: Path, out: Path) -> Path:
    """A csv file's rows, numbers as numbers, in a Parquet file."""
    arrow_csv = pytest.importorskip("pyarrow.csv", reason="the extra parquet is not installed")
    from pyarrow import parquet

    parquet.write_table(arrow_csv.read_csv(path), out)
    return out


def test_a_parquet_file_is_answered_as_the_csv_file(
    of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    table = write_table(tmp_path / "visits.csv")
    file = as_parquet(table, tmp_path / "visits")  # known by its content
    outs = (unseen("predict", of_rows.folder, path, "--keep", "id").out for path in (file, table))
    found, expected = (list(csv.DictReader(io.StringIO(out))) for out in outs)
    assert len(found) == 72 and [row.pop("line") for row in found[:2]] == ["1", "2"]
    for one, other in zip(found, expected, strict=True):
        assert one["id"] == other["id"] and one["error"] == other["error"]
        assert one["p(yes)"] == other["p(yes)"]
    asked = ("evaluate", of_rows.folder, "--format", "json", "--data")
    ours, theirs = (json.loads(unseen(*asked, path).out) for path in (file, table))
    assert ours["domains"] == theirs["domains"]


def test_a_parquet_file_that_cannot_be_read_is_named_as_one(
    of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    ran = unseen("predict", of_rows.folder, tmp_path / "cut.parquet")
    assert ran.code == 1 and "cut.parquet: the Parquet file cannot be read" in ran.err
    assert "0 rows used; 1 file not used" in ran.err


def test_a_parquet_file_without_columns_or_rows(
    of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    (tmp_path / "short.csv").write_text("age\n61\n")
    ran = unseen("predict", of_rows.folder, as_parquet(tmp_path / "short.csv", tmp_path / "s.parq"))
    assert ran.code == 1 and "lacks the columns dose, drug; none of its rows is used" in ran.err
    (tmp_path / "empty.csv").write_text(f"{HEAD}\n")
    ran = unseen("predict", of_rows.folder, as_parquet(tmp_path / "empty.csv", tmp_path / "e.parq"))
    assert ran.code == 1 and "has no rows" in ran.err


def test_a_column_to_copy_must_be_there(of_rows: Trained, tmp_path: Path, unseen: Command) -> None:
    (tmp_path / "new.csv").write_text(f"id;{HEAD}\n1,61,0.5,a\n".replace(",", ";"))
    out = tmp_path / "answers.csv"
    ran = unseen("predict", of_rows.folder, tmp_path / "new.csv", "--keep", "di", "--out", out)
    assert ran.code == 2 and "(for --keep) 'di'; did you mean 'id'?" in ran.err
    assert "Known: age, dose, drug, id" in ran.err and not out.exists()
    assert unseen("predict", of_rows.folder, tmp_path / "new.csv", "--keep", "id").code == 0
    ran = unseen("predict", of_rows.folder, tmp_path / "none.csv", "--keep", "di")
    assert ran.code == 1 and "no such file" in ran.err


def test_a_column_to_copy_must_be_in_a_request(of_rows: Trained) -> None:
    service = Service(of_rows, policy_of(of_rows))
    body = {"rows": [{"age": 61, "dose": None, "drug": "a", "id": 7}], "keep": ["id"]}
    asked = rows_of_json(json.dumps(body).encode())
    lines = service.of_rows(asked.rows, asked.keep)
    assert service.answer(lines, asked.keep)["predictions"][0]["id"] == "7"
    with pytest.raises(UnseenError, match=r"\(for keep\) 'di'; did you mean 'id'"):
        service.of_rows(asked.rows, ["di"])


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_all_that_is_not_used_is_counted(
    of_rows: Trained, tmp_path: Path, unseen: Command, command: str
) -> None:
    path = tmp_path / "new.csv"
    path.write_text(f"{HEAD},died\n" + "old,1,a,no\n" * 42 + "61,1,a,yes\n")
    data = ("--data", path) if command == "evaluate" else (path,)
    ran = unseen(command, of_rows.folder, *data)
    where = "the output" if command == "predict" else "--format json"
    assert ran.code == 1 and ran.err.count("not used: ") == 20
    assert f"and 22 more; {where} names all" in ran.err and "1 used, 42 not" in ran.err


def test_a_label_that_is_missing(of_rows: Trained, tmp_path: Path, unseen: Command) -> None:
    path = tmp_path / "new.csv"
    path.write_text(f"{HEAD},died\n61,1,a,yes\n61,1,a,\n61,1,a,?\n61,1,a,perhaps\n")
    ran = unseen("evaluate", of_rows.folder, "--data", path)
    assert ran.code == 1 and ran.err.count("its label died is missing") == 2
    assert "its label died = 'perhaps' is not a class of the model" in ran.err


def test_a_threshold_beyond_its_bounds_is_explained() -> None:
    y, z = torch.tensor([0, 0, 0, 1]), torch.tensor([[-2.0], [-1.0], [0.4], [1.0]])
    counts = Counts(class_counts(z, y))
    words = "a sensitivity lies between 0 and 1; found 90. Did you mean sensitivity>=0.9"
    for given in (counts, None):
        with pytest.raises(UnseenError, match=words):
            threshold("sensitivity >= 90", given)
    with pytest.raises(UnseenError, match=r"a specificity lies between 0 and 1; found -0.5\.$"):
        threshold("specificity>=-0.5", counts)
    with pytest.raises(UnseenError, match=r"a threshold lies .* found 30. Did you mean 0.3\?"):
        threshold("30", counts)


def test_a_threshold_that_is_a_number_is_said_once() -> None:
    assert (
        describe(threshold("0.3", None), "ill", {})
        == "'ill' is answered from the probability 0.3 on"
    )
    y, z = torch.tensor([0, 1]), torch.tensor([[-2.0], [1.0]])
    by_rule = threshold("youden", Counts(class_counts(z, y)))
    assert " on, by youden; on 2 rows" in describe(by_rule, "ill", {"rows": 2, "of": "sites"})


def test_an_export_says_what_it_was_checked_on(
    of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    """Of more rows than 512 every second one; rows that cannot be used are named."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="the extra onnx is not installed")
    path, out = tmp_path / "new.csv", tmp_path / "model.onnx"
    path.write_text(f"{HEAD}\n" + "61,0.5,a\n70,,b\n" * 300 + "old,1,a\n61\n")
    ran = unseen("export", of_rows.folder, "--check", path, "--out", out)
    assert (
        ran.code == 0
        and "checked on 300 of 600 usable inputs (2 others cannot be used):" in ran.out
    )
    assert "line 602: age = 'old' is not a number" in ran.err
    path.write_text(f"{HEAD}\n61,0.5,a\n61,0.5,zz\nold,1,a\n")
    ran = unseen("export", of_rows.folder, "--check", path, "--out", out)
    assert (
        "checked on 2 inputs (1 with a category that no training site had; 1 other cannot"
        in ran.out
    )


@pytest.mark.parametrize("name", ["line", "error", "unusual", "prediction", "p(yes)", "input"])
@pytest.mark.parametrize("out", ["k.csv", "k.jsonl"])
def test_a_column_of_the_answers_cannot_be_copied_over_them(
    of_rows: Trained, tmp_path: Path, unseen: Command, name: str, out: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{HEAD},{name}\n61,0.5,a,2L\n")
    ran = unseen("predict", of_rows.folder, path, "--keep", name, "--out", tmp_path / out)
    assert ran.code == 2 and "have an entry of this name" in ran.err
