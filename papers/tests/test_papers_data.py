"""Benchmarks of the papers by `unseen data check`: what is counted, compared and refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from paper_sketches import SKETCHES, write_stand_in
from support import sketches
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.core.metrics.evaluation import METRICS
from unseen.data import load
from unseen.errors import UnseenError
from unseen_papers.data import INFOS

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
SKETCHED = [name for name in SKETCHES if name not in {*sketches.SKETCHES, "rotated-mnist"}]
#: Hundreds of arrays of eight bands; its reader has tests of its own.
SKETCHED[SKETCHED.index("povertymap")] = pytest.param("povertymap", marks=pytest.mark.slow)
LICENCES = {info.name: info.licence for info in INFOS}


@pytest.mark.parametrize("name", SKETCHED)
def test_a_stand_in_is_written_checked_and_read(name: str, tmp_path: Path, run: Run) -> None:
    write_stand_in(name, tmp_path / "new")
    code, out = run("check", name, "--data-dir", tmp_path / "new")
    assert LICENCES[name].split(";")[0] in out
    assert code in (0, 1)  # a stand-in has fewer examples than the totals say
    assert load(name, tmp_path / "new").stand_in
    assert f"a synthetic stand-in: no result counts ({tmp_path / 'new'}" in out


def test_every_data_set_says_what_it_is() -> None:
    for info in INFOS:
        assert all((info.description, info.source, info.licence, info.model)), info.name
        assert set(info.metrics) <= set(METRICS), info.name
        assert all(sum(own.values()) == info.totals[site] for site, own in info.cells.items())
        assert not info.classes or sum(info.classes.values()) == sum(info.totals.values())
        assert len(info.about["citation"].split("\n\n")) == max(1, len(info.cite))
        assert info.locate is not None


@pytest.mark.parametrize(
    ("name", "options", "hint"),
    [
        ("rotated-mnist", {"protocl": "ghifary"}, "did you mean 'protocol'"),
        ("rotated-mnist", {"protocol": "ghifari"}, "did you mean 'ghifary'"),
        ("color-mnist", {"ood_flip": 1.5}, "flipping probability"),
    ],
)
def test_a_wrong_option_is_answered_with_the_right_one(
    tmp_path: Path, name: str, options: dict[str, object], hint: str
) -> None:
    with pytest.raises(UnseenError) as caught:
        load(name, tmp_path, **options)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "file"),
    [
        ("rotated-mnist", {}, "train-images-idx3-ubyte.gz"),
        ("rotated-mnist", {"protocol": "ghifary"}, "mnist_6rot_16x16_float32.npz"),
        ("color-mnist", {}, "train-images-idx3-ubyte.gz"),
        ("rotated-cifar10", {}, "data_batch_1"),
        ("camelyon17", {}, "metadata.csv"),
        ("povertymap", {}, "dhs_metadata.csv"),
        ("fmow", {}, "rgb_metadata.csv"),
        ("ham10000", {}, "HAM10000_metadata"),
        ("eicu", {}, "patient.csv.gz"),
        ("sites/gusto", {}, "gusto.csv"),
        ("sites/school", {}, "school.mat"),
        ("sites/wisdm", {}, "WISDM_ar_v1.1_transformed.csv"),
        ("sites/vowel", {}, "vowel-context.data"),
        ("sites/pm25", {}, "BeijingPM20100101_20151231.csv"),
        ("sites/communities", {}, "communities.data"),
        ("sites/cars", {}, "audi.csv"),
        ("sites/youtube", {}, "Youtube01-Psy.csv"),
        ("sites/digit-makers", {}, "train-images-idx3-ubyte.gz"),
    ],
)
def test_a_missing_file_is_named_with_its_places_and_its_source(
    tmp_path: Path, name: str, options: dict[str, object], file: str
) -> None:
    with pytest.raises(UnseenError) as caught:
        load(name, tmp_path, **options)
    message = str(caught.value)
    assert file in message and str(tmp_path) in message and "\n" not in message
    with pytest.raises(UnseenError, match="UNSEEN_DATA"):
        load(name, None, **options)


def test_stand_ins_serve_the_other_forms_of_their_data(tmp_path: Path, run: Run) -> None:
    """Ghifary's views beside MNIST's files."""
    write_stand_in("rotated-mnist", tmp_path / "digits")
    views = load("rotated-mnist", tmp_path / "digits", protocol="ghifary")
    assert [len(d.y) for d in views.domains] == [1000] * 6
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


def test_checksums_are_compared(tmp_path: Path, run: Run) -> None:
    write_stand_in("color-mnist", tmp_path)
    code, out = run("check", "color-mnist", "--data-dir", tmp_path)
    assert code == 1 and out.count(": differs") == 4


def test_the_real_mnist_is_as_distributed(real_data: Path, run: Run) -> None:
    code, out = run("check", "color-mnist", "--data-dir", real_data)
    assert code == 0 and out.count(": as distributed") == 4


def test_rows_that_are_missing_from_a_file_are_said(tmp_path: Path, run: Run) -> None:
    write_stand_in("eicu", tmp_path)
    code, out = run("check", "eicu(edition='full')", "--data-dir", tmp_path)
    assert code == 1 and "rows of patient.csv: 9,600, known 200,859" in out
    assert "rows of hospital.csv: 60, known 208" in out and "nothing is wrong" not in out


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


EICU = "rows of patient.csv.gz, rows of medication.csv.gz, rows of hospital.csv.gz"


@pytest.mark.parametrize(
    ("name", "compared"),
    [
        ("eicu", f"examples per domain, examples per domain and class, {EICU}"),
        ("eicu(edition='demo', domain='rank')", EICU),
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
