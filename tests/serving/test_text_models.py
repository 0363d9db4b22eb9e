"""A model that reads text: from rows to words to answers, at files, sites and exports."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import HashingVectorizer
from support.command_line import Command
from support.federations import trained, write_study

from unseen.core.turn import keyed
from unseen.errors import UnseenError
from unseen.serving import directory, export
from unseen.serving.directory import Trained
from unseen.serving.reading.inputs import TableInputs

GOOD = ("slept well", "no pain today", "walks again, eats well", "went home")
BAD = ("Severe pain", "no sleep; pain all night", "fever and pain", "was transferred")


def write_notes(path: Path, age: bool = True) -> Path:
    """Three sites of 20 rows: an age, a note that nearly says the outcome, some of them missing."""
    lines = [f"site{',age' * age},note,died"]
    for site in ("north", "south", "west"):
        draws = torch.randint(100, (20, 3), generator=keyed(site)).tolist()
        for i, (years, which, luck) in enumerate(draws):
            died = (i + (luck < 10)) % 2
            note = "" if luck > 95 else (GOOD, BAD)[i % 2][which % 4]
            lines.append(f'{site}{f",{years}" * age},"{note}",{("no", "yes")[died]}')
    path.write_text("\n".join(lines) + "\n")
    return path


def dataset(path: Path, more: str = "") -> str:
    options = f"domain='site', label='died', text='note', text_features=32{more}"
    return f"table(path='{path}', {options})"


@pytest.fixture(scope="module")
def of_notes(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("notes")
    table = write_notes(folder / "notes.csv")
    file = write_study(folder / "s.toml", dataset(table), 'holdout = "west"')
    return trained(file, folder / "model")


def test_rows_are_predicted_by_the_words_of_their_notes(
    of_notes: Trained, tmp_path: Path, unseen: Command
) -> None:
    notes = ["PAIN and fever", "", "words that nobody wrote", "12"]
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("note", "age"), *((note, 40) for note in notes)])
    ran = unseen("predict", of_notes.folder, tmp_path / "new.csv")
    found = list(csv.DictReader(io.StringIO(ran.out)))
    assert ran.code == 0 and not any(row["error"] for row in found)
    assert isinstance(of_notes.inputs, TableInputs)
    mean, deviation = of_notes.inputs.moments["age"]
    words = HashingVectorizer(n_features=32).transform(notes).toarray()
    age = np.full((4, 1), (40 - mean) / deviation)
    x = torch.from_numpy(np.concatenate([age, words], 1)).float()
    expected = of_notes.outputs(x).softmax(-1)[:, 1].tolist()
    assert [float(row["p(yes)"]) for row in found] == pytest.approx(expected, rel=1e-5)


def test_a_file_without_the_notes_is_refused_and_odd_bytes_are_named(
    of_notes: Trained, tmp_path: Path, unseen: Command
) -> None:
    (tmp_path / "new.csv").write_text("age,nots\n40,pain\n")
    ran = unseen("predict", of_notes.folder, tmp_path / "new.csv")
    assert ran.code == 1 and "lacks the column note (is 'note' called 'nots' there?)" in ran.out
    (tmp_path / "new.csv").write_bytes(b"age,note\n40,pain \xff\n50,fever\n")
    ran = unseen("predict", of_notes.folder, tmp_path / "new.csv")
    assert ran.out.count("holds bytes that are not UTF-8") == 1 and ran.out.count("yes,") >= 1


def test_evaluation_reads_the_notes_of_a_file_as_those_of_the_data_set(
    of_notes: Trained, tmp_path: Path, unseen: Command
) -> None:
    table = write_notes(tmp_path / "notes.csv")
    held_out = next(r for r in of_notes.spec["results"] if r["site"] == "west")
    for data in (table, tmp_path):  # rows of a csv file; the data set of training
        ran = unseen("evaluate", of_notes.folder, "--data", data, "--format", "json")
        told = {d["domain"]: d for d in json.loads(ran.out)["domains"]}
        value, *ends = told["west"]["loss"]
        recorded, *recorded_ends = held_out["metrics"]["loss"]
        assert value == pytest.approx(recorded, rel=1e-5)
        assert ends == recorded_ends == [None, None]  # too few notes of the rarer class


def test_the_directory_says_what_becomes_of_a_note(of_notes: Trained) -> None:
    spec = of_notes.spec["input"]
    assert spec["columns"][-1] == {"name": "note", "kind": "text", "features": 32, "pairs": False}
    assert spec["features"] == ["age", *(f"note#{f}" for f in range(32))]
    again = directory.from_json(spec)
    assert isinstance(again, TableInputs) and again.schema == of_notes.inputs.schema  # type: ignore[union-attr]
    card = (of_notes.folder / "README.md").read_text()
    assert "HashingVectorizer(n_features=32, ngram_range=(1, 1))" in card
    assert "of note the model sees which words occur" in card
    assert "sum of squares of each numeric column" in card  # of age


def test_an_export_begins_behind_the_hashing(of_notes: Trained, tmp_path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="the extra onnx is not installed")
    out = tmp_path / "model.onnx"
    made = export.export(of_notes.folder, [write_notes(tmp_path / "n.csv")], out=out)
    assert made.inputs == 60 and made.difference <= 1e-4
    note = (tmp_path / "model.onnx.md").read_text()
    assert "`age`, `note#0` to `note#31`." in note and "float32 [N, 33]" in note
    assert "The graph begins behind the hashing: it takes no text." in note


def test_other_hashing_of_the_data_is_refused(of_notes: Trained) -> None:
    inputs = of_notes.inputs
    assert isinstance(inputs, TableInputs)
    other = directory.from_json(
        json.loads(json.dumps(of_notes.spec["input"]).replace("32,", "16,"))
    )
    with pytest.raises(UnseenError, match="features=16.*features=32"):
        inputs.recode(other.schema, torch.zeros(1, 17))  # type: ignore[union-attr]


def test_of_text_alone_nothing_leaves_before_training(tmp_path: Path, unseen: Command) -> None:
    table = write_notes(tmp_path / "notes.csv", age=False)
    file = write_study(tmp_path / "s.toml", dataset(table), 'holdout = "west"')
    model = trained(file, tmp_path / "model", "glm")
    left = model.spec["left the sites"]["what"]
    assert not any("before training" in line for line in left)
    assert not any("far from training" in line for line in left)  # no column has a range
    card = (model.folder / "README.md").read_text()
    assert "summed statistics" not in card and "names a number" not in card
    (tmp_path / "new.csv").write_text("note\nfever and pain\n")
    assert "yes" in unseen("predict", model.folder, tmp_path / "new.csv").out
