"""A model of a file with decimal commas: new rows are read as its own were, remarks are kept."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from support.command_line import Command
from support.federations import trained, write_study, write_table

from unseen import Study
from unseen.serving.directory import Trained
from unseen.serving.reading.inputs import TableInputs
from unseen.studies.report.study_report import Folder, read_folder

OPTIONS = "domain='site', label='died', drop=['score', 'age'], unit='id', missing_label='drop'"
LEFT_OUT = "1 of 72 rows left out, which have no label: north 1 of 24"


def written(source: Path, target: Path, separator: str, decimal: str, encoding: str) -> Path:
    """The table in another dialect."""
    rows = csv.reader(io.StringIO(source.read_text()))
    text = "\n".join(separator.join(cell.replace(".", decimal) for cell in row) for row in rows)
    target.write_text(text + "\n", encoding)
    return target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """visits.csv with decimal commas in cp1252, plain.csv with points; one row has no label."""
    folder = tmp_path_factory.mktemp("european")
    text = write_table(folder / "plain.csv").read_text()
    first = text.splitlines()[1]
    cells = first.split(",")
    text = text.replace(first, ",".join([*cells[:5], "", cells[6]])).replace("drug", "präparat")
    (folder / "plain.csv").write_text(text)
    written(folder / "plain.csv", folder / "visits.csv", ";", ",", "cp1252")
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Trained:
    dataset = f"table(path='{folder / 'visits.csv'}', {OPTIONS}, encoding='cp1252')"
    study = write_study(folder / "visits.toml", dataset, 'holdout = "west"')
    return trained(study, folder / "model")


def test_new_rows_are_read_in_the_dialect_of_training(
    model: Trained, folder: Path, tmp_path: Path, unseen: Command
) -> None:
    """Against a model of the same rows with decimal points, which no dialect touches."""
    dataset = f"table(path='{folder / 'plain.csv'}', {OPTIONS})"
    plain = trained(write_study(tmp_path / "p.toml", dataset, 'holdout = "west"'), tmp_path / "p")
    assert isinstance(model.inputs, TableInputs) and isinstance(plain.inputs, TableInputs)
    assert "dialect" not in plain.spec["input"]
    assert model.spec["input"]["dialect"] == {
        "separator": ";", "decimal": ",", "encoding": "cp1252",
    }  # fmt: skip
    assert model.inputs.statistics.equal(plain.inputs.statistics)

    def answers(model: Trained, path: Path) -> list[str]:
        ran = unseen("predict", model.folder, path, "--accept-unseen")
        assert ran.code == 0, ran.err
        return [row["p(no)"] for row in csv.DictReader(io.StringIO(ran.out))]

    expected = answers(plain, folder / "plain.csv")
    assert len(expected) == 72 and answers(model, folder / "visits.csv") == expected
    # The mark of a file counts more than the option, and another separator is found.
    for encoding in ("utf-8-sig", "utf-16"):
        other = written(folder / "plain.csv", tmp_path / "new.csv", "\t", ",", encoding)
        assert answers(model, other) == expected
    # Each model reads the other's files, and either in UTF-8.
    for separator, decimal in (("\t", "."), (";", ","), (",", ".")):
        for model_ in (plain, model):
            other = written(folder / "plain.csv", tmp_path / "o.csv", separator, decimal, "utf-8")
            assert answers(model_, other) == expected


def test_a_decimal_point_is_no_number_to_a_model_of_commas(
    model: Trained, tmp_path: Path, unseen: Command
) -> None:
    (tmp_path / "new.csv").write_text("dose;präparat\n0.5;a\n0,5;a\n", "cp1252")
    ran = unseen("predict", model.folder, tmp_path / "new.csv")
    assert "line 2: dose = '0.5' is not a number with a decimal comma" in ran.err
    assert "1 used, 1 not" in ran.err


def test_labels_are_evaluated_in_the_dialect_of_training(
    model: Trained, folder: Path, unseen: Command
) -> None:
    ran = unseen("evaluate", model.folder, "--data", folder / "visits.csv", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert [(row["domain"], row["examples"]) for row in rows] == [
        ("north", "23"), ("south", "24"), ("west", "24"),
    ]  # fmt: skip


def model_of(source: Path, options: str) -> Path:
    """A model of a csv file whose sites are in the column `site`."""
    dataset = f"table(path='{source}', domain='site', {options})"
    study = write_study(source.parent / "s.toml", dataset)
    return trained(study, source.parent / "m").folder


def test_labels_are_evaluated_in_the_dialect_of_their_own_file(
    tmp_path: Path, unseen: Command
) -> None:
    """A regression's labels with decimal commas, for a model of points."""
    source = write_table(tmp_path / "plain.csv")
    folder = model_of(source, "label='score', task='regression', drop=['id', 'died']")
    said = []
    for file in (source, written(source, tmp_path / "new.csv", ";", ",", "utf-8")):
        ran = unseen("evaluate", folder, "--data", file, "--format", "csv")
        assert ran.code == 0, ran.err
        said.append(ran.out)
    assert said[0] == said[1] and "24" in said[0]


def test_a_header_in_another_encoding_and_a_mistyped_column_of_sites_are_refused(
    tmp_path: Path, unseen: Command
) -> None:
    source = write_table(tmp_path / "plain.csv")
    folder = model_of(source, "label='died', drop=['id', 'score']")
    refused = unseen("evaluate", folder, "--data", source, "--site", "sitte")
    assert refused.code and "did you mean 'site'?" in refused.err
    lines = source.read_text().splitlines()
    text = "\n".join([f"{lines[0]},Größe", *(f"{line},1" for line in lines[1:]), ""])
    (tmp_path / "new.csv").write_text(text, encoding="cp1252")
    for words in (("predict", folder), ("evaluate", folder, "--data")):
        said = unseen(*words, tmp_path / "new.csv").err
        assert "is not UTF-8: its header holds the byte 0xf6; save it as UTF-8" in said


def test_only_the_missing_column_is_named(folder: Path, tmp_path: Path, unseen: Command) -> None:
    dataset = f"table(path='{folder / 'plain.csv'}', {OPTIONS})"
    model = trained(write_study(tmp_path / "p.toml", dataset), tmp_path / "p").folder
    (tmp_path / "new.csv").write_text("age;dose;x\n60,5;0,5;1\n")
    ran = unseen("predict", model, tmp_path / "new.csv")
    assert "lacks the column präparat;" in ran.err
    (tmp_path / "empty.csv").write_text("")
    assert "is not a csv file" in unseen("predict", model, tmp_path / "empty.csv").err


def test_columns_of_one_name_are_named(model: Trained, tmp_path: Path, unseen: Command) -> None:
    (tmp_path / "new.csv").write_text("dose;dose;a;a\n1;2;3;4\n")
    ran = unseen("predict", model.folder, tmp_path / "new.csv")
    assert "has more than one column called 'a' and more than one called 'dose'" in ran.err


def test_what_was_left_out_stands_in_card_table_and_report(
    model: Trained, folder: Path, tmp_path: Path
) -> None:
    assert LEFT_OUT in (model.folder / "README.md").read_text()
    dataset = f"table(path='{folder / 'plain.csv'}', {OPTIONS})"
    study = Study(
        dataset=dataset, methods=["fedavg"], targets=["west"], rounds=1, seeds=1,
        training={"batch_size": 9},
    )  # fmt: skip
    with pytest.warns(UserWarning, match=LEFT_OUT):
        results = study.run(out=tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert f"of the data: {LEFT_OUT}" in text
    assert "examples of one unit (id) never split" in text
    assert f"of the data: {LEFT_OUT}" in results.protocol("source-validation")
    found = read_folder(tmp_path)
    assert isinstance(found, Folder) and found.notes == (LEFT_OUT,)
