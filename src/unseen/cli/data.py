"""`unseen data check`: the files of a data set, a table or images of your own."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli.console import Columns, Settings, console, flattened, group, print_fitted

if TYPE_CHECKING:
    from rich.console import Console

    from unseen.data.summary import Report
    from unseen.data.tables.columns import Column

data = group("data", "Check data sets. Nothing is ever downloaded.")

#: Columns and rows up to which a table of classes and domains can be read.
WIDE, LONG = 16, 70
#: Unreadable files and columns that are listed unless all are asked for.
SHOWN, WIDEST = 20, 60
#: Remarks that are printed unless all are asked for, the most important ones first.
MOST_NOTES = 10

Name = Annotated[str, typer.Argument(metavar="NAME")]


@data.command()
@flattened
def check(
    name: Name,
    columns: Columns,
    settings: Settings = None,
    data_dir: Path | None = None,
    everything: Annotated[bool, typer.Option("--all")] = False,
) -> None:
    """Count examples per site and class, compare checksums, name unreadable files.

    Lists the columns of a table. NAME may be a csv file or a folder of images, with the options of
    `unseen choose`; the last line is then the command that chooses a recipe for these data.

    Ends with code 1 if something differs from what is known, or if a study would refuse the data.

    Args:
        name: Such as pacs or 'pacs(path="x")', a csv file or a folder of images.
        settings: Of a csv file options of its table, such as "drop=['id']"; of a folder those of
            its images, such as size=28.
        columns: The columns of a csv file.
        data_dir: Where data files are (default: $UNSEEN_DATA).
        everything: List all columns and all files that cannot be read.
    """
    from unseen.data.summary import inspect
    from unseen.expression import parse

    folder = data_dir or os.environ.get("UNSEEN_DATA")
    from unseen.studies.choice.choice_request import of_images

    images = _is_path(name) and of_images(name) and any(Path(name).glob("*/*/*"))
    if columns.label is not None or images:
        from unseen.cli.own_data import check_own

        report, command = check_own(name, settings or [], columns)
        show(report, everything)
        print(f"next: {command}")
        if not report.sound:
            raise typer.Exit(1)
        return
    if _is_path(name):
        first_look(name, folder, everything)
        return
    (call,) = parse(name)
    report = inspect(call, folder)
    show(report, everything)
    if not report.sound:
        raise typer.Exit(1)


def _is_path(name: str) -> bool:
    from unseen.data import datasets
    from unseen.expression import fold

    if fold(name) in datasets() or ("(" in name and not Path(name).exists()):
        return False
    ends = (".csv", ".csv.gz", ".tsv", ".txt", ".parquet", ".xlsx")
    return name.lower().endswith(ends) or "/" in name or Path(name).is_dir()


def first_look(name: str, folder: str | Path | None, everything: bool = False) -> None:
    """Print the columns of a csv file of which nothing is known, and the command to go on with."""
    from unseen import plugins
    from unseen.data import datasets
    from unseen.data.tables import columns as overview
    from unseen.data.tables.dialect import SEPARATORS
    from unseen.data.tables.sheet import Sheet
    from unseen.errors import UnseenError

    below = Path(folder or ".") / name
    file = below if below.exists() else Path(name)
    path = name if below.exists() else str(file.absolute())
    if not file.exists():
        head = name.partition("/")[0]
        if head in plugins.PAPERS["data set"] or any(o.startswith(f"{head}/") for o in datasets()):
            raise plugins.unknown("data set", name, datasets())
        raise UnseenError(f"there is no file or folder {name} here or in the data folder.")
    if file.is_dir():
        command = f'unseen data check "folder(path={path!r})"'
        remedy = f"If it holds images as SITE/CLASS/image.png, write: {command}"
        raise UnseenError(f"{name} is a folder.", remedy=remedy)
    if not name.lower().endswith((".csv", ".csv.gz", ".tsv", ".txt", ".parquet")):
        what = f"{name} is not a csv or Parquet file."
        raise UnseenError(what, remedy="Save its rows as csv.")
    sheet = overview.survey(file)
    columns_of(console(), overview.columns(sheet, {}), everything)
    lines = sheet.place == Sheet.place
    separated = f" separated by {SEPARATORS[str(sheet.dialect.separator)]}" if lines else ""
    print(f"{len(sheet.lines):,} rows, {len(sheet.columns)} columns{separated}")
    if overview.guessed_encoding(sheet):
        print(f"not UTF-8: read as {sheet.dialect.encoding}, which is a guess; look at the letters")
    text, guessed = overview.command(sheet, path)
    print(f"next ({guessed}):\n    {text}")


def columns_of(where: Console, columns: Sequence[Column], everything: bool) -> None:
    """Print the columns of a table."""
    from rich.table import Table

    table = Table("column", "kind", "gaps", "values", "by site", "remark")
    most = len(columns) if everything else WIDEST
    for c in columns[:most]:
        table.add_row(c.name, c.kind, c.gaps, c.values, c.sites, c.remark)
    where.print(table, markup=False)
    if more := columns[most:]:
        kinds = Counter(c.kind for c in more).items()
        print(
            f"{len(more)} more columns, {', '.join(f'{n} {kind}' for kind, n in kinds)}; "
            "--all lists them"
        )
        for c in more:
            if c.remark:
                print(f"column {c.name}, {c.kind}: {c.remark}")


def show(report: Report, everything: bool = False) -> None:
    """Print what was found; columns and unreadable files up to `SHOWN` unless all are asked for."""
    from unseen.core.templates import render
    from unseen.data.standin import NO_RESULT
    from unseen.data.summary import TARGETS
    from unseen.data.tables.check_matrix import ranked, unsettled

    where = console()
    if report.columns:
        columns_of(where, report.columns, everything)
    if report.domains:
        print_fitted(where, *_domains(report))
    if any(domain.targets for domain in report.domains):
        targets = [[d.name, *(f"{value:.6g}" for value in d.targets)] for d in report.domains]
        print_fitted(where, ["site", *(f"target: {what}" for what in TARGETS)], targets)
    turned = len(report.domains) > WIDE
    if 1 < len(report.counts) <= (WIDE if turned else LONG):
        head, *rows = zip(*_cells(report), strict=True) if turned else _cells(report)
        print_fitted(where, ["site" if turned else "class", *head[1:]], rows)
    most = len(report.unreadable) if everything else SHOWN
    wrong = {
        "domains": [domain.name for domain in report.domains if not domain.sound],
        "cells": [f"{label} in {d.name}" for d in report.domains for label in d.wrong],
    }
    notes = ranked(report.notes)
    lines = len(notes) if everything else MOST_NOTES - bool(report.refused)
    values = {"notes": notes, "lines": lines, "unsettled": unsettled(notes)}
    values |= {"report": report, "most": most, "wrong": wrong, "no_result": NO_RESULT}
    print(render("unseen.cli", "templates/check.txt.jinja", **values), end="")


def _domains(report: Report) -> tuple[list[str], list[list[str]]]:
    head = ["site", "examples", "known", "train / validation", "classes", "per class", "units"]
    rows = []
    for domain in report.domains:
        total = "" if domain.total is None else f"{domain.total:,}{'' if domain.sound else ' !'}"
        sizes = [size for size in domain.counts.values() if size]
        span = f"{min(sizes):,} to {max(sizes):,}" if sizes and "" not in domain.counts else ""
        classes = "" if "" in domain.counts else f"{len(sizes)} of {len(domain.counts)}"
        units = "" if domain.units is None else f"{domain.units:,}"
        cells = [domain.name, f"{domain.count:,}", total, domain.split, classes, span, units]
        rows.append(cells)
    without = any("" in domain.counts for domain in report.domains)
    spare = set(head[2:] if without else ["units"])
    columns = [j for j, name in enumerate(head) if name not in spare or any(row[j] for row in rows)]
    return [head[j] for j in columns], [[row[j] for j in columns] for row in rows]


def _cells(report: Report) -> list[list[str]]:
    rows = [["class", *(domain.name for domain in report.domains), "all sites"]]
    for label, total in report.counts.items():
        cells = [(d.counts.get(label, 0), d.expected.get(label)) for d in report.domains]
        cells.append((total, report.expected.get(label)))
        texts = (
            f"{n:,}" if usual in (None, n) else f"{n:,}, known {usual:,} !" for n, usual in cells
        )
        rows.append([label, *texts])
    return rows
