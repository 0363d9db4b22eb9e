"""`unseen data`: what is counted and compared, what an archive may do, what is written where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.sketches import SKETCHES, write_stand_in
from typer.testing import CliRunner

from unseen.cli.data import show
from unseen.cli.main import app
from unseen.data import OWN, datasets, load
from unseen.data.summary import DomainCounts, Report
from unseen.errors import UnseenError

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The commands in this process: the exit code, and what was printed or why not."""
    monkeypatch.delenv("UNSEEN_DATA", raising=False)

    def call(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["data", *map(str, arguments)])
        if isinstance(result.exception, UnseenError):
            return 2, str(result.exception)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    return call


@pytest.mark.parametrize("name", [name for name in SKETCHES if name != "domainnet"])
def test_a_stand_in_is_written_checked_and_read(name: str, tmp_path: Path, run: Run) -> None:
    write_stand_in(name, tmp_path / "new")
    code, out = run("check", name, "--data-dir", tmp_path / "new")
    assert datasets()[name].licence.split(";")[0] in out
    assert code in (0, 1)  # a stand-in has fewer examples than the totals say
    assert load(name, tmp_path / "new").stand_in
    assert f"a synthetic stand-in: no result counts ({tmp_path / 'new'}" in out


def test_stand_ins_serve_the_other_forms_of_their_data(tmp_path: Path, run: Run) -> None:
    """FedBN's pickled lists."""
    write_stand_in("domainnet10", tmp_path / "ten")
    ten = load("domainnet10", tmp_path / "ten", split="official", size=12)
    assert {(len(d.y), len(d.validation)) for d in ten.domains} == {(30, 10)}


def test_what_cannot_be_found_is_said(tmp_path: Path, run: Run) -> None:
    assert "did you mean 'pacs'" in run("check", "pcas")[1]
    assert "lacks the domain folder" in run("check", "pacs", "--data-dir", tmp_path)[1]


def test_a_check_counts_and_names_what_cannot_be_read(tmp_path: Path, run: Run) -> None:
    write_stand_in("office-home", tmp_path)
    root = tmp_path / "OfficeHomeDataset_10072016"
    (root / "Art" / "Mug" / "0.png").write_bytes(b"<html>")
    (root / "Product" / "TV" / "1.png").unlink()
    code, out = run("check", "office-home", "--data-dir", tmp_path)
    assert code == 1
    assert "unreadable: the image Art/Mug/0.png" in out
    row = next(line for line in out.splitlines() if "Product" in line)
    assert "194" in row and "4,439 !" in row and "65 of 65" in row and "2 to 3" in row
    assert "counts differ from the known totals: Art, Clipart, Product, Real_World" in out


@pytest.mark.parametrize("name", [i.name for i in OWN if i.cells or i.classes])
def test_known_numbers_add_up(name: str) -> None:
    info = datasets()[name]
    for domain, cells in info.cells.items():
        assert sum(cells.values()) == info.totals[domain]
    if info.layout is not None:
        for cells in info.cells.values():
            assert list(cells) == list(info.layout.labels)
    if info.classes:
        assert sum(info.classes.values()) == sum(info.totals.values())


def test_pacs_per_class_is_that_of_the_official_lists(real_data: Path) -> None:
    layout = datasets()["pacs"].layout
    assert layout is not None
    for domain, cells in layout.cells.items():
        lines = (real_data / "pacs_splits" / f"{domain}_test_kfold.txt").read_text().split("\n")
        labels = [line.split("/")[1] for line in lines if line]
        assert {label: labels.count(label) for label in cells} == cells


@pytest.mark.parametrize(
    ("name", "compared"),
    [
        ("pacs", "examples per domain, examples per domain and class"),
        ("heart-disease", "examples per domain, examples per domain and class"),
        ("rotated-digits", "examples per domain, examples per class"),
    ],
)
def test_real_files_are_what_is_known(
    name: str, compared: str | None, real_data: Path, run: Run
) -> None:
    code, out = run("check", name, "--data-dir", real_data)
    assert code == 0
    last = f"compared: {compared}" if compared else "no total is known"
    assert out.rstrip().endswith(f"nothing is wrong; {last}")


def test_lists_that_a_study_needs_and_lacks_are_a_finding(tmp_path: Path, run: Run) -> None:
    write_stand_in("pacs", tmp_path)
    (tmp_path / "kfold" / "pacs_splits" / "photo_train_kfold.txt").unlink()
    code, out = run("check", "pacs", "--data-dir", tmp_path)
    assert code == 1 and "nothing is wrong" not in out and "pacs(split='none') draws" in out
    assert "no official split of photo: the official split needs the list photo_train" in out
    assert "official split" not in run("check", "pacs(split='none')", "--data-dir", tmp_path)[1]
    with pytest.raises(UnseenError, match="needs the list photo_train"):
        load("pacs", tmp_path, size=8)


def test_lists_that_nobody_asked_for_may_be_missing(
    real_data: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "PACS_64.tar").symlink_to(real_data / "pacs_64" / "PACS_64.tar")
    code, out = run("check", "pacs(split='none')", "--data-dir", tmp_path)
    assert code == 0 and "nothing is wrong" in out
    code, out = run("check", "pacs", "--data-dir", tmp_path)
    assert code == 1 and "no official split of art_painting, cartoon, photo, sketch: " in out


def test_a_wrong_class_is_named_although_the_domain_is_complete(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = DomainCounts("one", {"cat": 2, "dog": 3}, 5, "", {"cat": 3, "dog": 2})
    two = DomainCounts("two", {"cat": 1, "dog": 0}, None, "", {"cat": 1})
    report = Report("pacs", datasets()["pacs"], (one, two), expected={"dog": 3, "owl": 1})
    assert one.sound and one.wrong == ["cat", "dog"] and two.wrong == []
    assert report.counts == {"cat": 3, "dog": 3} and report.wrong == ["owl"] and not report.sound
    show(report)
    out = capsys.readouterr().out
    assert "2, known 3 !" in out and "differ from the known ones: cat in one, dog in one" in out
    assert "over all sites differ: owl" in out and "nothing is wrong" not in out
    right = DomainCounts("one", {"cat": 3, "dog": 2}, 5, "", {"cat": 3, "dog": 2})
    show(Report("pacs", datasets()["pacs"], (right,)))
    assert "nothing is wrong; compared: examples per domain, examples" in capsys.readouterr().out


def test_names_that_are_near_are_those_that_are_meant(run: Run) -> None:
    assert "did you mean 'rotated-digits'" in run("check", "digits")[1]


def test_every_data_set_of_files_knows_where_to_look() -> None:
    own = {info.name: info for info in OWN}
    assert {name for name, info in own.items() if info.locate} == {"heart-disease", "lung"}
    bare = {name for name, info in own.items() if info.layout is info.locate is None}
    assert bare == {"rotated-digits", "folder", "table", "masks", "ellipses"}
