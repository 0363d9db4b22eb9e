"""Predictions for files: equal to the model's, and everything that can be wrong with an input."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.command_line import Command
from support.federations import SITES, write_photos, write_table

from unseen.data import load
from unseen.serving.answer_options import AnswerOptions, PredictOptions
from unseen.serving.directory import Trained
from unseen.serving.evaluate import beaten
from unseen.serving.evaluation.breakdown import Answers
from unseen.serving.policy import policy_of
from unseen.serving.predict import predict

HEAD = "age,dose,drug"


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_rows_are_predicted_as_the_model_predicts_them(
    of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    """Against the data set as training reads it, in a batch of another size."""
    table = write_table(tmp_path / "visits.csv")
    options = {"domain": "site", "label": "died", "drop": ["id", "score"]}
    data = load("table", path=str(table), **options)
    ran = unseen("predict", of_rows.folder, table, "--accept-unseen", "--keep", "id")
    found = rows(ran.out)
    assert ran.code == 0 and len(found) == 72
    assert [r["id"] for r in found[:2]] == ["north-0", "north-1"] and found[0]["line"] == "2"
    assert data.schema is not None
    for k, site in enumerate(SITES):
        x = of_rows.inputs.recode(data.schema, data[site].x)  # type: ignore[union-attr]
        expected = of_rows.outputs(x).softmax(-1)
        own = found[24 * k : 24 * k + 24]
        shares = torch.tensor([[float(r["p(no)"]), float(r["p(yes)"])] for r in own])
        torch.testing.assert_close(shares, expected, rtol=1e-5, atol=1e-6)
        assert [r["prediction"] for r in own] == [("no", "yes")[k] for k in expected.argmax(1)]


def test_a_number_is_predicted_as_a_number(
    of_numbers: Trained, tmp_path: Path, unseen: Command
) -> None:
    (tmp_path / "new.csv").write_text(f"{HEAD}\n61,0.5,a\n70,,b\n")
    found = rows(unseen("predict", of_numbers.folder, tmp_path / "new.csv").out)
    assert list(found[0]) == ["input", "line", "prediction", "ood", "error", "unusual"]
    x = of_numbers.inputs.encode([[61, 0.5, 0], [70, float("nan"), 1]])  # type: ignore[union-attr]
    expected = of_numbers.outputs(x).flatten().tolist()
    assert [float(r["prediction"]) for r in found] == pytest.approx(expected, rel=1e-6)


def test_faulty_rows_are_named_and_the_others_predicted(
    of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    path = tmp_path / "new.csv"
    path.write_bytes(
        f"{HEAD}\n61,0.5,a\nold,1,a\n61,0.5,zz\n61,0.5\n61,0.5,c\n".encode()
        + b"\xff1,0.5,a\n61,inf,a\n\n?,NA,\n"
    )
    (tmp_path / "short.csv").write_text("age,dosis,drug\n61,0.5,a\n")
    (tmp_path / "empty.csv").write_text(f"{HEAD}\n")
    inputs = [path, tmp_path / "short.csv", tmp_path / "empty.csv", tmp_path / "none.csv", tmp_path]
    out = tmp_path / "out" / "answers.jsonl"
    ran = unseen("predict", of_rows.folder, *inputs, "--out", out)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert ran.code == 1 and ran.out == "" and "2 rows used, 6 not; 4 files not used" in ran.err
    said = {(Path(f["input"]).name, f.get("line")): f.get("error") for f in found}
    assert said.pop(("new.csv", 2)) is None and said.pop(("new.csv", 10)) is None
    words = {
        ("new.csv", 3): "age = 'old' is not a number",
        ("new.csv", 4): "no training site had drug = 'zz'",
        ("new.csv", 5): "2 cells where 3",
        ("new.csv", 6): "no training site had drug = 'c'",
        ("new.csv", 7): "not UTF-8",
        ("new.csv", 8): "dose = 'inf' is not a number",
        ("short.csv", None): "is 'dose' called 'dosis' there?",
        ("empty.csv", None): "has no rows",
        ("none.csv", None): "no such file",
        (tmp_path.name, None): "is not a csv file",
    }
    assert said.keys() == words.keys()
    for key, word in words.items():
        assert word in said[key]
    assert found[0]["probabilities"].keys() == {"no", "yes"}
    assert sum(found[0]["probabilities"].values()) == pytest.approx(1)


def test_a_category_that_is_new_has_no_feature_if_it_is_let_pass(
    of_rows: Trained, tmp_path: Path
) -> None:
    """West's drug c, whose code the data set had and training did not, and one that none had."""
    path = tmp_path / "new.csv"
    path.write_text(f"{HEAD}\n61,0.5,c\n61,0.5,zz\n61,0.5,a\n")
    lines = list(predict(of_rows, [path], PredictOptions(accept_unseen=True)))
    first, second, third = (line.item.x for line in lines)
    assert first is not None and second is not None and third is not None
    assert torch.equal(first, second)
    names = of_rows.spec["input"]["features"]
    assert [n for n, v in zip(names, third - first, strict=True) if v] == ["drug=a"]
    assert lines[0].item.unseen == ("drug = 'c'",)


def test_other_spellings_of_a_file(of_rows: Trained, tmp_path: Path) -> None:
    """Packed, with a mark at its start, blanks, quotes and columns in another order."""
    with gzip.open(tmp_path / "new.csv.gz", "wt", encoding="utf-8-sig") as file:
        file.write('drug, age ,note,dose\n" a ",61.0,"x, y",0.50\n')
    (tmp_path / "new.csv").write_text(f"{HEAD}\n61,0.5,a\n")
    answers = [line.answer.probabilities for line in predict(of_rows, sorted(tmp_path.iterdir()))]
    assert answers[0] == answers[1] != ()
    (tmp_path / "cut.csv.gz").write_bytes((tmp_path / "new.csv.gz").read_bytes()[:-12])
    *_, cut = predict(of_rows, [tmp_path / "cut.csv.gz"])
    assert cut.item.error is not None and "cannot be read further" in cut.item.error


def test_images_are_predicted_as_the_model_predicts_them(
    of_photos: Trained, tmp_path: Path, unseen: Command
) -> None:
    photos = write_photos(tmp_path / "photos")
    x = load("folder", path=str(photos), size=8)["west"].x.float() / 255
    expected = of_photos.outputs(x).softmax(-1)
    found = rows(unseen("predict", of_photos.folder, photos / "west", "--batch", "7").out)
    shares = torch.tensor([[float(r["p(cat)"]), float(r["p(dog)"])] for r in found])
    torch.testing.assert_close(shares, expected, rtol=1e-5, atol=1e-6)
    assert found[0]["input"] == str(photos / "west" / "cat" / "0.png")


def test_what_is_no_image_is_named_and_the_others_predicted(
    of_photos: Trained, tmp_path: Path, unseen: Command
) -> None:
    photos = tmp_path / "photos"
    (photos / "deep" / "er").mkdir(parents=True)
    (tmp_path / "nothing").mkdir()
    Image.new("RGB", (9, 30), "red").save(photos / "deep" / "er" / "a.jpg")
    (photos / "b.jpg").write_text("this is no image")
    whole = (photos / "deep" / "er" / "a.jpg").read_bytes()
    (photos / "c.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "d.txt").write_text("passed over")
    (photos / "e.png").symlink_to(photos / "nowhere.png")
    inputs = [photos, photos / "d.txt", tmp_path / "nothing"]
    ran = unseen("predict", of_photos.folder, *inputs)
    found = {Path(r["input"]).name: r["error"] for r in rows(ran.out)}
    assert ran.code == 1 and "1 used, 5 not" in ran.err
    assert found.pop("a.jpg") == ""
    assert found.keys() == {"b.jpg", "c.jpg", "e.png", "d.txt", "nothing"}
    assert "cannot be read" in found["b.jpg"] and "cannot be opened" in found["e.png"]
    assert "0x" not in ran.out + ran.err and str(photos / "b.jpg") in found["b.jpg"]
    assert "no image files" in found["nothing"]


def test_an_archive_of_images(of_photos: Trained, tmp_path: Path) -> None:
    import tarfile

    photos = write_photos(tmp_path / "photos", each=2)
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        archive.add(photos, "photos")
    packed = [line.answer.probabilities for line in predict(of_photos, [tmp_path / "photos.tar"])]
    loose = [line.answer.probabilities for line in predict(of_photos, [photos])]
    assert sorted(packed) == sorted(loose) and len(packed) == 12


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--format", "xml"), "--format must be one of 'csv', 'jsonl', 'parquet'"),
        (("--runtime", "tflite"), "--runtime must be one of"),
        (("--out", "x.xlsx"), "it may end in .csv, .jsonl, .ndjson, .json, .parquet"),
        (("--out", "x.csv.gz"), "it may end in .csv"),
        (("--out", "x.parquet", "--format", "csv"), "its name says parquet, --format csv"),
        (("--out", "x.json", "--format", "csv"), "its name says jsonl, --format csv"),
        (("--format", "parquet"), "--out FILE.parquet"),
        (("--keep", "id"), "copies columns of a csv file"),
        (("--as-site", "north"), "no statistics of the site 'north'"),
        (("--device", "tpu"), "device must be cpu or cuda"),
    ],
)
def test_wrong_options_are_refused(
    of_photos: Trained, unseen: Command, arguments: tuple[str, ...], words: str
) -> None:
    ran = unseen("predict", of_photos.folder, "x.png", *arguments)
    assert ran.code == 2 and words in ran.err


def test_parquet_holds_what_csv_holds(
    of_rows: Trained, of_numbers: Trained, tmp_path: Path, unseen: Command
) -> None:
    """Read back by pyarrow: numbers as numbers, what is not there as null."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    path = tmp_path / "new.csv"
    path.write_text(f"id,{HEAD}\n1,61,0.5,a\n02,old,1,a\n3,70,,b\n4,7e4,1,b\n")
    for trained in (of_rows, of_numbers):
        arguments = ("predict", trained.folder, path, "--keep", "id")
        expected = rows(unseen(*arguments).out)
        out = tmp_path / trained.folder.parent.name / "answers.parquet"
        ran = unseen(*arguments, "--out", out)
        table = parquet.read_table(out)
        assert ran.code == 1 and ran.out == "" and table.column_names == list(expected[0])
        found = table.to_pylist()
        for one, other in zip(found, expected, strict=True):
            assert one.keys() == other.keys()
            for name, value in one.items():
                if isinstance(value, float):
                    assert value == pytest.approx(float(other[name]), rel=1e-8)
                else:
                    assert ("" if value is None else str(value)) == other[name]
        assert [r["line"] for r in found] == [2, 3, 4, 5] and found[1]["id"] == "02"
        assert [p.name for p in out.parent.iterdir() if "part" in p.name] == []
    kinds = {f.name: str(f.type) for f in table.schema}
    assert kinds["prediction"] == "double" and kinds["line"] == "int64" and kinds["id"] == "string"
    path.write_text(f"line,{HEAD}\n1,61,0.5,a\n")
    ran = unseen("predict", of_rows.folder, path, "--keep", "line", "--out", tmp_path / "o.parquet")
    assert ran.code == 2 and "have an entry of this name" in ran.err


def test_evaluation_of_folders_and_of_rows(
    of_photos: Trained, of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    photos = write_photos(tmp_path / "photos")
    (photos / "west" / "cat" / "x.png").write_text("no image")
    ran = unseen("evaluate", of_photos.folder, "--data", photos, "--format", "json")
    told = {d["domain"]: d for d in json.loads(ran.out)["domains"]}
    recorded = of_photos.spec["results"][-1]["metrics"]
    assert ran.code == 1 and "x.png" in ran.err
    assert told["west"]["loss"] == pytest.approx(recorded["loss"], rel=1e-5)
    assert told["north"]["in training"] == "trained on" and told["north"]["examples"] == 20
    one = unseen("evaluate", of_photos.folder, "--data", photos / "north", "--format", "csv")
    assert one.out.splitlines()[1].startswith("north,trained on,20,")
    table = write_table(tmp_path / "visits.csv")
    ran = unseen("evaluate", of_rows.folder, "--data", table, "--sites", "west")
    assert "west" in ran.out and "north" not in ran.out
    assert "used without it: 8" in ran.out
    ran = unseen("evaluate", of_rows.folder, "--data", table, "--sites", "wset")
    assert ran.code == 2 and "did you mean 'west'" in ran.err
    ran = unseen("evaluate", of_rows.folder, "--data", table, "--label", "daed")
    assert ran.code == 2 and "unknown column" in ran.err
    ran = unseen("evaluate", of_rows.folder, "--data", table, "--label", "drug")
    assert ran.code == 1 and "is not a class of the model" in ran.err


def test_a_model_of_classes_that_the_most_frequent_class_beats(
    of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    """All answers turned round at the rows of one site: an accuracy below a half."""
    table = write_table(tmp_path / "visits.csv")
    turned = {"yes": "no", "no": "yes"}
    lines = [line.split(",") for line in table.read_text().splitlines()]
    at = lines[0].index("died")
    for cells in lines[1:]:
        if cells[1] == "north":
            cells[at] = turned[cells[at]]
    table.write_text("\n".join(map(",".join, lines)) + "\n")
    ran = unseen("evaluate", of_rows.folder, "--data", table, "--sites", "north", "--metrics",
                 "accuracy")  # fmt: skip
    (line,) = (text for text in ran.out.splitlines() if "constant" in text)
    share = max(sum(c[1] == "north" and c[at] == k for c in lines) for k in turned) / 24
    assert line.startswith("worse than a constant in accuracy: north (")
    assert line.endswith(f"its most frequent class: {100 * share:.1f})")


def test_a_threshold_counts_where_a_constant_is_compared(of_rows: Trained) -> None:
    """One that never answers yes is as good as always answering no."""
    outputs, y = torch.tensor([[0.0, 1.0]] * 3), torch.tensor([0, 0, 1])
    answers = {"north": Answers(outputs, y, {})}
    assert "north (33.3" in beaten(of_rows, ["accuracy"], answers, policy_of(of_rows))
    assert beaten(of_rows, ["accuracy"], answers, policy_of(of_rows, AnswerOptions("0.99"))) == ""
