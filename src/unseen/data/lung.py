"""NCCTG lung cancer: survival of patients of several institutions."""

from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from unseen.data.dataset import DataSet
from unseen.data.entry import Facts, Info
from unseen.data.tables.cells import Cells
from unseen.data.tables.delimited import assemble
from unseen.data.tables.sheet import Sheet
from unseen.data.tables.table_files import read
from unseen.errors import UnseenError, absent
from unseen.ranges import Range, check_all

FACTS = Facts.of("lung")
FILE = "lung.csv"
#: How R writes the status, censored and dead, and how lifelines does.
STATUS = {frozenset("12"): {"1": "0", "2": "1"}, frozenset("01"): {"0": "0", "1": "1"}}


def load(data_dir: str | Path | None = None, *, least: Annotated[int, Range(1)] = 10) -> DataSet:
    """Load the days until death of patients with advanced lung cancer, by institution.

    Args:
        data_dir: A folder with `lung.csv`, as R's package survival or lifelines has it; else that
            of the installed lifelines is read.
        least: Institutions with fewer patients are left out, as is a patient of an unknown one.

    Returns:
        Domains "institution-1", ... with seven findings, raw columns as in `encoding.Schema`.
    """
    check_all(load, locals())
    sheet = read(path_of(data_dir), ["inst", "time", "status"])
    columns = dict(sheet.columns)
    features = [name for name in columns if name in FACTS.names["columns"]]
    if len(features) < len(FACTS.names["columns"]):
        missing = sorted({*FACTS.names["columns"]} - {*features})
        raise UnseenError(f"{sheet.name} lacks the columns {', '.join(missing)}.")
    columns = {name: columns[name] for name in features}
    columns["status"] = Cells.of(dead(sheet))
    owners = [site_of(cell) for cell in sheet.column("inst")]
    columns["inst"], sizes = Cells.of(owners), Counter(owners)
    rows = [i for i, name in enumerate(owners) if name and sizes[name] >= least]
    whole = replace(sheet, columns=columns)
    if not rows:
        raise UnseenError(f"no institution of {sheet.name} has {least} patients or more.")
    options = {"domain": "inst", "label": "time", "event": "status", "categorical": ("sex",)}
    data = assemble(whole.take(rows), **options)
    few = len(sheet.lines) - len(rows)
    note = f"{few} patients left out, of institutions with fewer than {least} or of unknown ones"
    ordered = sorted(data.domains, key=lambda domain: int(domain.name.rpartition("-")[2]))
    about = {**FACTS.about, "domains": tuple(ordered), "times": ("days", "death")}
    return replace(data, notes=(*data.notes, *[note] * bool(few)), **about)


def path_of(data_dir: str | Path | None) -> Path:
    """Return the file of the user's folder, else that of the installed package."""
    folders = [Path(data_dir) / folder for folder in FACTS.folders] if data_dir is not None else []
    if data_dir is not None and any((folder / FILE).is_file() for folder in folders):
        return FACTS.find(data_dir, FILE)
    package = find_spec("lifelines")  # the package itself takes seconds to import
    for place in (package.submodule_search_locations or ()) if package is not None else ():
        return Path(place) / "datasets" / FILE
    raise absent("lifelines", "data set 'lung' needs", "survival", f"name a folder with {FILE}")


def dead(sheet: Sheet) -> list[str | None]:
    """Return 1 where a patient died and 0 where the row is censored, as R or lifelines write it."""
    cells = [sheet.dialect.plain(str(cell)) for cell in sheet.full("status", "event")]
    codes = [cell.removesuffix(".0") for cell in cells]
    for words, values in STATUS.items():
        if {*codes} <= words:
            return [values[code] for code in codes]
    raise UnseenError(f"status in {sheet.name} is 1 and 2, or 0 and 1; found {sorted({*codes})}.")


def site_of(cell: str | None) -> str | None:
    """Return the name of an institution's domain; None where it is unknown."""
    return None if cell is None else f"institution-{int(float(cell))}"


INFO = Info(**vars(FACTS), loader=load, locate=lambda d: FACTS.find(d, FILE))
