"""UCI Heart Disease: four hospitals in three countries, thirteen findings, one diagnosis."""

from dataclasses import replace
from pathlib import Path

from unseen.data.dataset import DataSet
from unseen.data.entry import Facts, Info
from unseen.data.tables.cells import Cells
from unseen.data.tables.delimited import assemble
from unseen.data.tables.sheet import Sheet, joined
from unseen.data.tables.table_files import read

#: The package's own copy of the four files, as distributed; ATTRIBUTION.txt beside them.
SHIPPED = Path(__file__).with_name("heart_disease")
FACTS = Facts.of("heart-disease")
HOSPITALS = FACTS.files
COLUMNS, CATEGORICAL = FACTS.names["columns"], FACTS.names["categorical"]
ZERO_IS_MISSING = FACTS.names["zero_is_missing"]


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
    columns = joined(sheets)
    lines = [line for sheet in sheets for line in sheet.lines]
    pooled = Sheet("heart-disease", columns, lines)
    data = assemble(pooled, domain="hospital", label="num", categorical=CATEGORICAL)
    return replace(data, **FACTS.about)


def folder_of(data_dir: str | Path | None) -> str | Path:
    """Return the user's folder if any hospital's file lies there, else the package's own."""
    if data_dir is None:
        return SHIPPED
    places = [Path(data_dir) / folder for folder in FACTS.folders]
    own = any((place / file).is_file() for place in places for file in HOSPITALS.values())
    return data_dir if own else SHIPPED


def path_of(data_dir: str | Path | None, name: str) -> Path:
    """Return the file of one of the four hospitals, which must lie in this very folder.

    Note:
        A site of a federation reads its own file by this, and never the package's.
    """
    return FACTS.find(data_dir, HOSPITALS[name])


def hospital(path: Path, name: str) -> Sheet:
    """Read a hospital's file, the diagnosis in two words, impossible zeros as missing values."""
    sheet = read(path, header=COLUMNS)
    columns = dict(sheet.columns)
    for column in ZERO_IS_MISSING:
        sheet.numbers(column)
        columns[column] = columns[column].without(["0"])
    sheet.full("num", "diagnosis")
    columns["num"] = Cells.of(["present" if v > 0 else "absent" for v in sheet.numbers("num")])
    columns["hospital"] = Cells.repeated(name, len(sheet.lines))
    return replace(sheet, columns=columns)


INFO = Info(**vars(FACTS), loader=load, locate=lambda d: [path_of(d, n) for n in HOSPITALS])
