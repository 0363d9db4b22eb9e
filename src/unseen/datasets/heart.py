"""UCI Heart Disease: four hospitals in three countries, thirteen findings, one diagnosis."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from unseen.core.turn import keyed
from unseen.datasets.dataset import DataSet
from unseen.datasets.delimited import assemble
from unseen.datasets.entry import Info
from unseen.datasets.files import find
from unseen.datasets.sheet import Sheet, read

#: Domain -> the name that its file uses.
HOSPITALS = {
    "cleveland": "cleveland",
    "hungary": "hungarian",
    "switzerland": "switzerland",
    "va": "va",
}
#: The package's own copy of the four files, as distributed; ATTRIBUTION.txt beside them.
SHIPPED = Path(__file__).with_name("heart_disease")
#: Where the files may lie in a data folder.
FOLDERS = (".", "heart_disease")
#: The thirteen findings in the order of heart-disease.names, then the diagnosis.
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak",
    "slope", "ca", "thal", "num",
)  # fmt: skip
#: Chest pain type, resting ECG, slope of the ST segment, thallium scan: codes without an order
#: to be relied on. sex, fbs and exang are 0 or 1, ca is a count; these stay numbers.
CATEGORICAL = ("cp", "restecg", "slope", "thal")
#: Serum cholesterol (mg/dl) and resting blood pressure (mm Hg). No living patient has 0: it was
#: written where nothing was measured, for all 123 patients of Switzerland's cholesterol.
ZERO_IS_MISSING = ("chol", "trestbps")
#: As in the table "Class Distribution" of heart-disease.names, values 1 to 4 together.
CELLS = {
    "cleveland": {"absent": 164, "present": 139},
    "hungary": {"absent": 188, "present": 106},
    "switzerland": {"absent": 8, "present": 115},
    "va": {"absent": 51, "present": 149},
}
TOTALS = {name: sum(own.values()) for name, own in CELLS.items()}
SOURCE = "Heart Disease, UCI Machine Learning Repository, doi 10.24432/C52P4X"
LICENCE = "CC BY 4.0"
OBTAIN = (
    "The four files processed.cleveland.data, processed.hungarian.data, "
    "processed.switzerland.data and processed.va.data belong to the data set Heart Disease of "
    "the UCI Machine Learning Repository, doi 10.24432/C52P4X."
)
CITATION = """@misc{janosi1989heart,
  author = {Janosi, Andras and Steinbrunn, William and Pfisterer, Matthias and Detrano, Robert},
  title = {Heart Disease},
  howpublished = {UCI Machine Learning Repository},
  year = {1989},
  doi = {10.24432/C52P4X}
}"""


def load(data_dir: str | Path | None = None) -> DataSet:
    """Load whether a coronary artery is narrowed by more than half (num > 0), at four hospitals.

    Args:
        data_dir: A folder that has files of the four is read, and must have all; otherwise those
            of the package are.

    Returns:
        Domains "cleveland" (303 patients), "hungary" (294), "switzerland" (123) and "va" (200), raw
        columns as in `encoding.Schema`. Values that one hospital does not record (in Switzerland
        and Long Beach and Hungary most of ca and thal) are missing, not zero.
    """
    folder = folder_of(data_dir)
    sheets = [hospital(path_of(folder, name), name) for name in HOSPITALS]
    columns = {c: [cell for s in sheets for cell in s.columns[c]] for c in sheets[0].columns}
    lines = [line for sheet in sheets for line in sheet.lines]
    pooled = Sheet("heart-disease", columns, lines)
    data = assemble(pooled, domain="hospital", label="num", categorical=CATEGORICAL)
    return replace(data, name="heart-disease", source=SOURCE, licence=LICENCE, citation=CITATION)


def folder_of(data_dir: str | Path | None) -> str | Path:
    """Return the user's folder if any hospital's file lies there, else the package's own."""
    if data_dir is None:
        return SHIPPED
    places = [Path(data_dir) / folder for folder in FOLDERS]
    named = [file_of(name) for name in HOSPITALS]
    return data_dir if any((p / file).is_file() for p in places for file in named) else SHIPPED


def locate(data_dir: Path) -> None:
    """Look for the four files; an error says where."""
    for name in HOSPITALS:
        path_of(data_dir, name)


def path_of(data_dir: str | Path | None, name: str) -> Path:
    """Return the file of one of the four hospitals, which must lie in this very folder.

    Note:
        A site of a federation reads its own file by this, and never the package's.
    """
    return find(data_dir, [file_of(name)], FOLDERS, dataset="heart-disease", obtain=OBTAIN)


def file_of(name: str) -> str:
    """Return the name of a hospital's file."""
    return f"processed.{HOSPITALS[name]}.data"


def hospital(path: Path, name: str) -> Sheet:
    """Read a hospital's file, the diagnosis in two words, impossible zeros as missing values."""
    sheet = read(path, header=COLUMNS)
    columns = dict(sheet.columns)
    for column in ZERO_IS_MISSING:
        values = zip(columns[column], sheet.numbers(column), strict=True)
        columns[column] = [None if value == 0 else cell for cell, value in values]
    sheet.full("num", "diagnosis")
    columns["num"] = ["present" if value > 0 else "absent" for value in sheet.numbers("num")]
    columns["hospital"] = [name] * len(sheet.lines)
    return replace(sheet, columns=columns)


def sketch(folder: Path) -> None:
    """Write a synthetic stand-in: 24 rows per hospital, drawn at random, some cells missing."""
    root = folder / "heart_disease"
    root.mkdir(parents=True, exist_ok=True)
    for name, spelling in HOSPITALS.items():
        draws = torch.randint(100, (24, len(COLUMNS)), generator=keyed(f"sketch/heart/{name}"))
        lines = []
        for i, row in enumerate(draws.tolist()):
            cells = [
                "?" if value < 10 else str(value % 3 + 1 if column in CATEGORICAL else value)
                for column, value in zip(COLUMNS, row, strict=True)
            ]
            lines.append(",".join([*cells[:-1], str(i % 3)]))
        (root / f"processed.{spelling}.data").write_text("\n".join(lines) + "\n")


INFO = Info(
    load,
    "920 patients of four hospitals, 13 findings with gaps, diagnosis yes or no; no files needed",
    SOURCE,
    LICENCE,
    "mlp(widths=[32])",
    ("loss", "accuracy", "balanced-accuracy", "auroc", "auprc"),
    totals=TOTALS,
    cells=CELLS,
    sketch=sketch,
    locate=locate,
)
