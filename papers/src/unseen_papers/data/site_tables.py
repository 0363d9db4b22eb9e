"""Tables with natural sites: hospitals' regions, schools, people, cities, makers of cars.

One loader for all: `catalogue/sites/NAME.toml` says how the files as distributed become a column of
sites, one of labels and features. A set may also lie in one csv file `sites/NAME.csv.gz` with a
column `site`, a column `label` and the features; where both are there, the files as distributed are
read.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Literal, cast

import numpy as np
from pydantic import ConfigDict

from unseen.data.dataset import DataSet
from unseen.data.entry import Facts, Info, either
from unseen.data.tables.cells import Cells
from unseen.data.tables.delimited import assemble
from unseen.data.tables.sheet import MISSING, Sheet, joined
from unseen.data.tables.table_files import read
from unseen.errors import UnseenError, choice

NAMES = ("gusto", "school", "wisdm", "vowel", "pm25", "communities", "cars", "youtube")
#: Where an export lies below the data folder, and the columns that it has besides the features.
EXPORTS = ("sites", ".")
SITE, LABEL = "site", "label"


@dataclass(frozen=True, kw_only=True)
class Original:
    """How files as distributed become a table.

    Attributes:
        form: A key of `FORMS`.
        file: The file, unless `Facts.files` names one of each site.
        header: Names of the columns where the file has none.
        spelt: Column -> its names in the files, where it is called otherwise there.
        features: The columns of features; empty for all but those of `drop`, site and label.
        drop: Columns that are left out.
        site: The column of the sites.
        sites: The name of a site, made of the cell for {}; or site -> cells.
        label: The column of the label.
        above: What a label must exceed to be 1, else 0: "median" is that of all rows that are kept.
        where: Column -> the cells of rows that are kept.
        complete: Columns in which rows that are kept have a value.
        least: The fewest rows of a site that is kept.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    form: str
    file: str = ""
    header: tuple[str, ...] = ()
    spelt: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    site: str = ""
    sites: str | Mapping[str, tuple[str, ...]] = "{}"
    label: str
    above: float | Literal["median"] | None = None
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    complete: tuple[str, ...] = ()
    least: int = 1


@dataclass(frozen=True, kw_only=True)
class SiteTable(Facts):
    """A set of the catalogue.

    Attributes:
        original: How its files as distributed are read.
        export: Its csv file.
        number: The column that may be predicted as a number instead of the label; otherwise it is
            left out.
        options: Options of `table`.
        exported: Rows per site and class of the csv file, where they are others than the files'.
        note: How the csv file differs.
    """

    original: Original
    export: str
    number: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    exported: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    note: str = ""

    @property
    def paths(self) -> dict[str, str]:
        """Site -> file; one file of all sites has no site."""
        return dict(self.files) or {"": self.original.file}

    def locate(self, data_dir: str | Path | None) -> dict[str, Path]:
        """Return the files as distributed: all of them, or an error."""
        return {site: self.find(data_dir, file) for site, file in self.paths.items()}

    def find_export(self, data_dir: str | Path | None) -> Path:
        return self.find(data_dir, self.export, folders=EXPORTS)

    def load(self, data_dir: str | Path | None, task: str) -> DataSet:
        """Read the set; `task` as in `table`."""
        choice("task", task, ("classification", "regression"))
        if task == "regression" and not self.number:
            raise UnseenError(
                f"{self.name} has no number to predict.", remedy="Take task='classification'."
            )
        self.data_folder(data_dir)
        place = either(partial(self.locate, data_dir), partial(self.find_export, data_dir))
        notes: tuple[str, ...] = ()
        if isinstance(place, Path):
            sheet = exported(place)
            notes = (f"read from {place.name}: {self.note}",) if self.note else ()
        else:
            sheet = pooled(self, cast("Mapping[str, Path]", place))
        label, other = (LABEL, self.number) if task == "classification" else (self.number, LABEL)
        data = assemble(
            sheet, domain=SITE, label=label, task=task, drop=[other] if other else [],
            identifiers="keep", **self.options,
        )  # fmt: skip
        return replace(data, **self.about, notes=(*data.notes, *notes))

    def variants(
        self, data: DataSet, *, task: str = "classification"
    ) -> Mapping[str, Mapping[str, int]]:
        """Return the known rows per site and class of the form in which the data were found."""
        other = self.exported and any(self.export in note for note in data.notes)
        cells = self.exported if other else self.cells
        if task == "classification":
            return cells
        return {site: {"": sum(own.values())} for site, own in cells.items()}


def exported(path: Path) -> Sheet:
    """Read a csv file of sites, labels and features; no site begins with a dash."""
    sheet = read(path, needs=[SITE, LABEL])
    sites = [str(cell).lstrip("-") for cell in sheet.full(SITE, "site")]
    return replace(sheet, columns={**sheet.columns, SITE: Cells.of(sites)})


def pooled(facts: SiteTable, paths: Mapping[str, Path]) -> Sheet:
    """Return files as distributed as such a table.

    Args:
        facts: The set.
        paths: Site -> file; one file of all sites has no site.
    """
    parts = [part(facts.original, path, site) for site, path in paths.items()]
    columns = joined(parts)
    sheet = Sheet(facts.name, columns, [line for own in parts for line in own.lines])
    return replace(sheet, columns={**columns, LABEL: labels(sheet, facts.original.above)})


def part(how: Original, path: Path, site: str) -> Sheet:
    """Return one file's sites, features and labels, of the rows that are kept."""
    sheet = spelt(FORMS[how.form](path, how.header), how.spelt)
    for column, cells in how.where.items():
        sheet = sheet.take([i for i, cell in enumerate(sheet.column(column)) if cell in cells])
    for column in how.complete:
        sheet = sheet.take(np.flatnonzero(~sheet.column(column).missing))
    used = {*how.drop, how.site, how.label}
    features = how.features or [name for name in sheet.columns if name not in used]
    columns = {name: sheet.column(name) for name in features}
    columns |= {SITE: owners(sheet, how, site), LABEL: sheet.full(how.label, "label")}
    sheet = replace(sheet, columns=columns)
    counts = Counter(columns[SITE])
    sheet = sheet.take([i for i, own in enumerate(columns[SITE]) if counts[own] >= how.least])
    if not sheet.lines:
        raise UnseenError(f"{path} has no row that belongs to the set.")
    return sheet


def spelt(sheet: Sheet, names: Mapping[str, Sequence[str]]) -> Sheet:
    """Return the sheet with columns called as the set calls them."""
    ours = {theirs: name for name, others in names.items() for theirs in others}
    return replace(sheet, columns={ours.get(c, c): cells for c, cells in sheet.columns.items()})


def owners(sheet: Sheet, how: Original, site: str) -> Cells:
    """Return the site of each row; all are of the site that the file is of, if it is of one."""
    if site:
        return Cells.repeated(site, len(sheet.lines))
    cells = [*map(str, sheet.full(how.site, "site"))]
    if isinstance(how.sites, str):
        return Cells.of([how.sites.format(cell) for cell in cells])
    names = {cell: name for name, own in how.sites.items() for cell in own}
    for cell in cells:
        if cell not in names:
            raise UnseenError(f"{sheet.name} has {how.site} = {cell!r}, which is not a known site.")
    return Cells.of([names[cell] for cell in cells])


def labels(sheet: Sheet, above: float | Literal["median"] | None) -> Cells:
    """Return the label of each row: its cell, or whether it is above a bound."""
    if above is None:
        return sheet.columns[LABEL]
    values = sheet.numbers(LABEL).tolist()
    bound = median(values) if above == "median" else above
    return Cells.of([str(int(value > bound)) for value in values])


def blanks(path: Path, header: Sequence[str]) -> Sheet:
    """Read a text of cells with blanks or commas between them."""
    lines = enumerate(path.read_text("utf-8").splitlines(), 1)
    return table(
        path, header, [(at, re.split(r"[\s,]+", s.strip())) for at, s in lines if s.strip()]
    )


def comma(path: Path, header: Sequence[str]) -> Sheet:
    """Read a csv file."""
    return read(path, header=header)


def mat(path: Path, header: Sequence[str]) -> Sheet:
    """Read MATLAB cells X and Y of a matrix and a vector for each task, as MALSAR has them.

    The columns are x0, x1, ..., y and the number of the task.
    """
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path)
        tasks = [*zip(content["X"].ravel(), content["Y"].ravel(), strict=True)]
    except (MatReadError, KeyError, ValueError, NotImplementedError, OSError) as error:
        raise UnseenError(f"{path} is not a MATLAB file of cells X and Y: {error}.") from error
    names = [*(f"x{j}" for j in range(tasks[0][0].shape[1])), "y", "task"]
    rows = [
        [*map(str, row), str(y), str(task)]
        for task, (x, labels) in enumerate(tasks)
        for row, y in zip(x.tolist(), labels.ravel().tolist(), strict=True)
    ]
    return table(path, names, [*enumerate(rows, 1)])


def table(path: Path, names: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]]) -> Sheet:
    """Return the sheet of named columns and rows with their lines."""
    for line, row in rows:
        if len(row) != len(names):
            raise UnseenError(
                f"line {line} of {path} has {len(row)} cells where {len(names)} were expected, one "
                f"for each of {', '.join(names)}."
            )
    if not rows:
        raise UnseenError(f"{path} has no rows.")
    columns = zip(*(row for _, row in rows), strict=True)
    cells = (Cells.of(column).without(MISSING) for column in columns)
    return Sheet(path.name, dict(zip(names, cells, strict=True)), [line for line, _ in rows])


#: Forms of files as distributed.
FORMS: Mapping[str, Callable[[Path, Sequence[str]], Sheet]] = {
    "csv": comma, "blanks": blanks, "mat": mat,
}  # fmt: skip


def entry(facts: SiteTable) -> Info:
    """Return a set's entry, with its loader."""

    def load(data_dir: str | Path | None, *, task: str = "classification") -> DataSet:
        """Read the table: raw features float64 [N, C] and their `Schema`.

        Args:
            data_dir: The data folder.
            task: "classification"; "regression" predicts the number that the label is made of,
                where the set has one.
        """
        return facts.load(data_dir, task)

    shared = {own.name: getattr(facts, own.name) for own in fields(Facts)}
    return Info(**shared, loader=load, locate=facts.locate, variants=facts.variants)


TABLES = {name: SiteTable.of(f"sites/{name}", "unseen_papers.data") for name in NAMES}
INFOS = tuple(map(entry, TABLES.values()))
