"""`unseen data`: what is counted and compared, what an archive may do, what is written where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.sketches import SKETCHES, write_stand_in
from typer.testing import CliRunner

from unseen.cli.data import show
from unseen.cli.main import app
from unseen.data import DATASETS, load
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


#: color-mnist reads the same files as rotated-mnist, and faster.
SLOW = ("domainnet", "rotated-mnist")
SKETCHED = [name for name in SKETCHES if name not in SLOW]
#: Hundreds of arrays of eight bands; its reader has tests of its own.
SKETCHED[SKETCHED.index("povertymap")] = pytest.param("povertymap", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", SKETCHED)
def test_a_stand_in_is_written_checked_and_read(name: str, tmp_path: Path, run: Run) -> None:
    write_stand_in(name, tmp_path / "new")
    code, out = run("check", name, "--data-dir", tmp_path / "new")
    assert DATASETS[name].licence.split(";")[0] in out
    assert code in (0, 1)  # a stand-in has fewer examples than the totals say
    assert load(name, tmp_path / "new").stand_in
    assert f"a synthetic stand-in: no result counts ({tmp_path / 'new'}" in out


def test_stand_ins_serve_the_other_forms_of_their_data(tmp_path: Path, run: Run) -> None:
    """Ghifary's views beside MNIST's files, and FedBN's pickled lists."""
    write_stand_in("rotated-mnist", tmp_path / "digits")
    views = load("rotated-mnist", tmp_path / "digits", protocol="ghifary")
    assert [len(d.y) for d in views.domains] == [1000] * 6
    write_stand_in("domainnet10", tmp_path / "ten")
    ten = load("domainnet10", tmp_path / "ten", split="official", size=12)
    assert {(len(d.y), len(d.validation)) for d in ten.domains} == {(30, 10)}
    code, out = run("check", "rotated-mnist(protocol='ghifary')", "--data-dir", tmp_path / "digits")
    assert code == 0 and "ghif/mtae" in out


def test_every_image_that_a_table_names_and_nobody_can_read_is_named(
    tmp_path: Path, run: Run
) -> None:
    write_stand_in("fmow", tmp_path / "new")
    used = sum(len(domain.y) for domain in load("fmow", tmp_path / "new", size=8).domains)
    for path in (tmp_path / "new").rglob("*.png"):
        path.unlink()
    code, out = run("check", "fmow", "--data-dir", tmp_path / "new", "--all")
    assert code == 1 and out.count("unreadable: ") == used > 20


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


def test_checksums_are_compared(tmp_path: Path, run: Run) -> None:
    write_stand_in("color-mnist", tmp_path)
    code, out = run("check", "color-mnist", "--data-dir", tmp_path)
    assert code == 1 and out.count(": differs") == 4


def test_the_real_mnist_is_as_distributed(real_data: Path, run: Run) -> None:
    code, out = run("check", "color-mnist", "--data-dir", real_data)
    assert code == 0 and out.count(": as distributed") == 4


@pytest.mark.parametrize("name", [n for n, i in DATASETS.items() if i.cells or i.classes])
def test_known_numbers_add_up(name: str) -> None:
    info = DATASETS[name]
    for domain, cells in info.cells.items():
        assert sum(cells.values()) == info.totals[domain]
    if info.layout is not None:
        for cells in info.cells.values():
            assert list(cells) == list(info.layout.labels)
    if info.classes:
        assert sum(info.classes.values()) == sum(info.totals.values())


def test_pacs_per_class_is_that_of_the_official_lists(real_data: Path) -> None:
    layout = DATASETS["pacs"].layout
    assert layout is not None
    for domain, cells in layout.cells.items():
        lines = (real_data / "pacs_splits" / f"{domain}_test_kfold.txt").read_text().split("\n")
        labels = [line.split("/")[1] for line in lines if line]
        assert {label: labels.count(label) for label in cells} == cells


EICU = "rows of patient.csv.gz, rows of medication.csv.gz, rows of hospital.csv.gz"


@pytest.mark.parametrize(
    ("name", "compared"),
    [
        ("pacs", "examples per domain, examples per domain and class"),
        ("heart-disease", "examples per domain, examples per domain and class"),
        ("eicu", f"examples per domain, examples per domain and class, {EICU}"),
        ("eicu(edition='demo', domain='rank')", EICU),
        ("rotated-digits", "examples per domain, examples per class"),
        ("rotated-mnist", "examples per domain, examples per class, checksums"),
        ("rotated-mnist(size=28)", "examples per domain, examples per class, checksums"),
        (
            "rotated-mnist(protocol='ghifary')",
            "examples per domain, examples per domain and class",
        ),
        (
            "rotated-mnist(protocol='ghifary', size=28, per_class=7)",
            "examples per domain, examples per domain and class",
        ),
    ],
)
def test_real_files_are_what_is_known(
    name: str, compared: str | None, real_data: Path, run: Run
) -> None:
    code, out = run("check", name, "--data-dir", real_data)
    assert code == 0
    last = f"compared: {compared}" if compared else "no total is known"
    assert out.rstrip().endswith(f"nothing is wrong; {last}")


def test_rows_that_are_missing_from_a_file_are_said(tmp_path: Path, run: Run) -> None:
    write_stand_in("eicu", tmp_path)
    code, out = run("check", "eicu(edition='full')", "--data-dir", tmp_path)
    assert code == 1 and "rows of patient.csv: 9,600, known 200,859" in out
    assert "rows of hospital.csv: 60, known 208" in out and "nothing is wrong" not in out


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


def test_many_domains_are_rows_and_not_columns(tmp_path: Path, run: Run) -> None:
    write_stand_in("eicu", tmp_path)
    _, out = run("check", "eicu(edition='full', domain='hospital')", "--data-dir", tmp_path)
    head = next(line for line in out.splitlines() if "expired" in line)
    assert [cell.strip() for cell in head.strip("┃").split("┃")] == ["site", "alive", "expired"]


def test_names_that_are_near_are_those_that_are_meant(tmp_path: Path, run: Run) -> None:
    assert "did you mean 'rotated-mnist'" in run("check", "mnist")[1]
    for name in ("rotated-mnist", "color-mnist"):
        _, out = run("check", name, "--data-dir", tmp_path)
        assert out.startswith(f"data set '{name}' needs the file train-images-idx3-ubyte.gz")


def test_a_wrong_class_is_named_although_the_domain_is_complete(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = DomainCounts("one", {"cat": 2, "dog": 3}, 5, "", {"cat": 3, "dog": 2})
    two = DomainCounts("two", {"cat": 1, "dog": 0}, None, "", {"cat": 1})
    report = Report("pacs", DATASETS["pacs"], (one, two), expected={"dog": 3, "owl": 1})
    assert one.sound and one.wrong == ["cat", "dog"] and two.wrong == []
    assert report.counts == {"cat": 3, "dog": 3} and report.wrong == ["owl"] and not report.sound
    show(report)
    out = capsys.readouterr().out
    assert "2, known 3 !" in out and "differ from the known ones: cat in one, dog in one" in out
    assert "over all sites differ: owl" in out and "nothing is wrong" not in out
    right = DomainCounts("one", {"cat": 3, "dog": 2}, 5, "", {"cat": 3, "dog": 2})
    show(Report("pacs", DATASETS["pacs"], (right,)))
    assert "nothing is wrong; compared: examples per domain, examples" in capsys.readouterr().out


#: Data sets without a layout of images, and what is looked for first.
SOUGHT = {
    "rotated-mnist": "train-images-idx3-ubyte.gz",
    "color-mnist": "train-images-idx3-ubyte.gz",
    "rotated-cifar10": "data_batch_1",
    "heart-disease": "processed.cleveland.data",
    "camelyon17": "metadata.csv",
    "povertymap": "dhs_metadata.csv",
    "fmow": "rgb_metadata.csv",
    "ham10000": "HAM10000_metadata",
    "eicu": "patient.csv.gz",
    "lung": "lung.csv",
    "sites/gusto": "gusto.csv",
    "sites/school": "school.mat",
    "sites/wisdm": "WISDM_ar_v1.1_transformed.csv",
    "sites/vowel": "vowel-context.data",
    "sites/pm25": "BeijingPM20100101_20151231.csv",
    "sites/communities": "communities.data",
    "sites/cars": "audi.csv",
    "sites/youtube": "Youtube01-Psy.csv",
    "sites/digit-makers": "train-images-idx3-ubyte.gz",
}


def test_every_data_set_of_files_knows_where_to_look() -> None:
    assert {name for name, info in DATASETS.items() if info.locate is not None} == set(SOUGHT)
    bare = {name for name, info in DATASETS.items() if info.layout is info.locate is None}
    assert bare == {"rotated-digits", "folder", "table", "masks", "ellipses"}
