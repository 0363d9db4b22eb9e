"""The four hospitals of the UCI heart disease data."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.pooled import by_scikit_learn

from unseen.data import heart, load
from unseen.data.dataset import DataSet
from unseen.data.tables.encoding import encode, feature_names
from unseen.errors import UnseenError

FILES = ("cleveland", "hungarian", "switzerland", "va")


@pytest.fixture
def data() -> DataSet:
    return load("heart-disease")


def write(folder: Path, rows: dict[str, str]) -> None:
    healthy = "50,1,1,120,200,0,0,150,0,1,1,0,3,0\n"
    for name in FILES:
        (folder / f"processed.{name}.data").write_text(rows.get(name, healthy))


def test_impossible_zeros_are_missing_and_codes_are_one_however_written(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "cleveland": "63.0,1.0,4.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n",
            "va": "60,1,4,0,0.0,?,2,?,?,?,?,?,?,3\n40,0,1,110,0,0,0,100,0,0,1,0,3,0\n",
        },
    )
    data = load("heart-disease", tmp_path)
    assert data.names == ("cleveland", "hungary", "switzerland", "va")
    assert data.classes == ("absent", "present")
    assert data["va"].y.tolist() == [1, 0]
    column = {name: j for j, name in enumerate(data.schema.columns)}  # type: ignore[union-attr]
    va, cleveland = data["va"].x, data["cleveland"].x
    assert va[:, column["trestbps"]].nan_to_num(-1).tolist() == [-1, 110]
    assert va[:, column["chol"]].isnan().tolist() == [True, True]
    assert va[:, column["fbs"]].nan_to_num(-1).tolist() == [-1, 0]  # here 0 means no
    assert float(va[1, column["oldpeak"]]) == 0 and float(va[1, column["ca"]]) == 0
    for name in ("cp", "restecg"):
        assert float(va[0, column[name]]) == float(cleveland[0, column[name]])


def test_the_package_holds_the_files_as_distributed_with_their_attribution() -> None:
    """The digests of ATTRIBUTION.txt are those of the files of the repository."""
    text = (heart.SHIPPED / "ATTRIBUTION.txt").read_text("utf-8")
    for name in FILES:
        file = heart.SHIPPED / f"processed.{name}.data"
        assert f"{hashlib.md5(file.read_bytes()).hexdigest()}  {file.name}" in text
    for words in ("CC BY 4.0", "Janosi", "Steinbrunn", "Pfisterer", "Detrano", "10.24432/C52P4X"):
        assert words in text


def test_the_bits_are_those_of_a_data_folder(data: DataSet, real_data: Path) -> None:
    given = load("heart-disease", real_data)
    assert given.schema == data.schema and given.names == data.names
    for one, other in zip(given.domains, data.domains, strict=True):
        assert torch.equal(one.x.nan_to_num(-1), other.x.nan_to_num(-1))
        assert torch.equal(one.x.isnan(), other.x.isnan()) and torch.equal(one.y, other.y)


def test_a_folder_with_the_files_wins_one_without_any_does_not(
    data: DataSet, tmp_path: Path
) -> None:
    found = load("heart-disease", tmp_path)
    assert [len(d.y) for d in found.domains] == [len(d.y) for d in data.domains]
    write(tmp_path, {})
    assert [len(d.y) for d in load("heart-disease", tmp_path).domains] == [1, 1, 1, 1]
    (tmp_path / "processed.va.data").unlink()
    with pytest.raises(UnseenError, match=r"needs the file processed\.va\.data"):
        load("heart-disease", tmp_path)


def test_a_site_never_reads_the_copy_of_the_package(tmp_path: Path) -> None:
    with pytest.raises(UnseenError, match=r"processed\.va\.data"):
        heart.path_of(tmp_path, "va")


def test_a_wheel_has_the_files(tmp_path: Path) -> None:
    """As setuptools fills it, from a copy of what it reads."""
    root, out = Path(__file__).parents[2], tmp_path / "built"
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, tmp_path)
    shutil.copytree(root / "src" / "unseen", tmp_path / "src" / "unseen")
    build = "from setuptools import setup; setup()"
    command = [sys.executable, "-c", build, "-q", "build_py", "--build-lib", str(out)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    packed = {path.name for path in (out / "unseen" / "data" / "heart_disease").iterdir()}
    assert packed == {"ATTRIBUTION.txt", *(f"processed.{name}.data" for name in FILES)}


def test_patients_and_diagnoses_are_those_of_the_documentation(data: DataSet) -> None:
    """Counts of heart-disease.names: patients, and class 0 among them."""
    patients = {"cleveland": 303, "hungary": 294, "switzerland": 123, "va": 200}
    healthy = {"cleveland": 164, "hungary": 188, "switzerland": 8, "va": 51}
    assert data.classes == ("absent", "present")
    assert {d.name: len(d.y) for d in data.domains} == patients
    assert data.stand_in is False
    assert {d.name: int((d.y == 0).sum()) for d in data.domains} == healthy


def test_missing_cells_are_counted_as_in_the_files(data: DataSet) -> None:
    """Counts made with cut, sort and uniq: cells "?", and zeros of chol and trestbps."""
    expected = {
        "cleveland": {"ca": 4, "thal": 2},
        "hungary": {"ca": 291, "thal": 266, "slope": 190, "chol": 23, "fbs": 8},
        "switzerland": {"chol": 123, "ca": 118, "fbs": 75, "thal": 52, "slope": 17},
        "va": {"ca": 198, "thal": 166, "slope": 102, "chol": 49 + 7, "trestbps": 56 + 1},
    }
    assert data.schema is not None
    assert set(data.schema.categories) == {"cp", "restecg", "slope", "thal"}
    assert data.schema.categories["thal"] == ("3", "6", "7")
    for name, counts in expected.items():
        missing = data[name].x.isnan().sum(0).tolist()
        found = dict(zip(data.schema.columns, missing, strict=True))
        assert {column: found[column] for column in counts} == counts


@pytest.mark.parametrize("target", ["cleveland", "hungary", "switzerland", "va"])
def test_features_are_those_of_scikit_learn_for_every_target(data: DataSet, target: str) -> None:
    assert data.schema is not None
    sources = [d.x for d in data.domains if d.name != target]
    statistics = torch.stack([data.schema.sums(x) for x in sources]).sum(0)
    for x in (*sources, data[target].x):
        found = encode(data.schema, statistics, x)
        assert found.shape[1] == len(feature_names(data.schema, statistics))
        expected = by_scikit_learn(data.schema, torch.cat(sources), x)
        np.testing.assert_allclose(found.numpy(), expected, atol=2e-6)
