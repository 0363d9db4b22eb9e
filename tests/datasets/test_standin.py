"""Synthetic stand-ins: how they are known, what studies on them say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from support.sketches import SKETCHES, write_stand_in
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.data import load, standin
from unseen.studies.execution import Study
from unseen.studies.report.read import Choice, part
from unseen.studies.report.study_report import Folder, read_folder
from unseen.studies.report.table_rows import page_tables
from unseen.studies.report.write import run_lines

SAID = "a synthetic stand-in: no result"
PAPER = {"accuracy": {"fedavg": {"va": ("50.0", "0.2"), "average": "51.0"}}}


def command(*arguments: object) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def study(**settings: object) -> Study:
    """A short study of the four hospitals beside figures that somebody printed."""
    usual = {"dataset": "heart-disease", "rounds": 1, "seeds": 1, "methods": ("fedavg",)}
    recipe = {"batch_size": 2, "drop_last": True}
    return Study(**{**usual, "published": PAPER, "training": recipe, **settings})  # type: ignore[arg-type]


def test_several_stand_ins_in_one_folder_are_read_as_alone(tmp_path: Path) -> None:
    names = ("pacs", "heart-disease", "office-home", "office-caltech-home", "vlcs")
    for name in names:
        write_stand_in(name, tmp_path / "all")
    for name in names:
        alone = load(name, write_stand_in(name, tmp_path / name))
        among = load(name, tmp_path / "all")
        assert among.stand_in and among.names == alone.names
        pairs = zip(among.domains, alone.domains, strict=True)
        assert all(a.x.nan_to_num().equal(b.x.nan_to_num()) and a.y.equal(b.y) for a, b in pairs)


def test_the_marker_is_found_where_the_files_are(tmp_path: Path) -> None:
    out = write_stand_in("pacs", tmp_path / "data" / "PACS")  # a place where the loader looks too
    assert load("pacs", tmp_path / "data" / "PACS", size=8).stand_in
    assert load("pacs", tmp_path / "data", size=8, path=out / "kfold").stand_in
    assert load("folder", tmp_path, size=8, path=out / "kfold").stand_in
    assert not load("rotated-digits", out).stand_in  # reads no file
    copied = tmp_path / "copied"
    shutil.copytree(out / "kfold", copied / "kfold")
    assert load("pacs", copied, size=8).stand_in
    (copied / "kfold" / standin.MARKER).unlink()
    assert not load("pacs", copied, size=8).stand_in


def test_files_without_a_marker_are_no_stand_in_although_one_lies_beside(tmp_path: Path) -> None:
    SKETCHES["heart-disease"](tmp_path)
    write_stand_in("pacs", tmp_path / "trials")
    assert not load("heart-disease", tmp_path).stand_in
    assert load("pacs", tmp_path, size=8, path="trials/kfold").stand_in


def test_a_study_says_so_and_shows_no_published_figure(tmp_path: Path) -> None:
    SKETCHES["heart-disease"](tmp_path / "plain")
    data = write_stand_in("heart-disease", tmp_path / "data")
    before = study().run(out=tmp_path / "before", data_dir=tmp_path / "plain").table()
    assert "(published)" in str(before) and "− published" in str(before) and SAID not in str(before)
    results = study().run(out=tmp_path / "out", data_dir=data)
    made = results.table()
    for text in (str(made), made.to_markdown(), made.to_latex(), made.to_notes()):
        assert SAID in " ".join(text.split()) and "ublished" not in text
    assert made.published == {} == results.published("accuracy")
    assert SAID in (tmp_path / "out" / "table.md").read_text()
    assert json.loads((tmp_path / "out" / "study.json").read_text())["stand_in"] is True


def test_the_records_keep_it(tmp_path: Path) -> None:
    """The table is printed later; the marker may be gone, and older records do not have it."""
    data, out = write_stand_in("heart-disease", tmp_path / "data"), tmp_path / "out"
    study().run(out=out, data_dir=data)
    for path in data.rglob(standin.MARKER):
        path.rename(path.with_suffix(".gone"))
    kept = str(study().run(out=out, data_dir=data).table())
    assert SAID in kept and "published" not in kept
    about = json.loads((out / "study.json").read_text())
    del about["stand_in"]
    (out / "study.json").write_text(json.dumps(about))
    forgotten = str(study().run(out=out, data_dir=data).table())
    assert SAID not in forgotten and "(published)" in forgotten
    for path in data.rglob("STAND-IN.gone"):
        path.rename(path.with_suffix(".txt"))
    again = str(study().run(out=out, data_dir=data).table())
    assert SAID in again and "published" not in again


def test_a_report_says_so_and_shows_no_published_figure(tmp_path: Path) -> None:
    study().run(out=tmp_path, data_dir=write_stand_in("heart-disease", tmp_path / "data"))
    folder = read_folder(tmp_path)
    assert isinstance(folder, Folder) and folder.stand_in
    made = part(folder, Choice())
    assert any(SAID in line for line in made.main.notes) and not made.main.published
    (shown,) = page_tables(made, made.main)
    assert not any(cell.paper for row in shown.rows for cell in row.cells)
    said = dict(run_lines(made))
    assert said["data and checksum"].endswith(SAID) and "source of the data" not in said


def test_dry_runs_and_tables_of_the_command_line(tmp_path: Path) -> None:
    write_stand_in("heart-disease", tmp_path / "d")
    settings = ["rounds=1", "training.batch_size=2", "training.drop_last=true"]
    words = ["study", "heart", *settings, "--seeds", "1", "--data-dir", tmp_path / "d"]
    words += ["--methods", "fedavg", "--targets", "va", "--out", tmp_path / "o"]
    assert SAID in command(*words, "--dry-run")
    assert SAID in " ".join(command(*words).split())
    assert SAID in command("table", *words[1:], "--format", "csv")
