"""A user's own table: one csv file with a header, one row per example."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from unseen.datasets.columns import (
    MANY,
    check_almost,
    check_identifiers,
    spelling_remedy,
    unit_notes,
)
from unseen.datasets.dataset import DataSet, Domain, lone_classes, shared_units
from unseen.datasets.dialect import Dialect, almost
from unseen.datasets.encoding import Schema
from unseen.datasets.entry import Info
from unseen.datasets.files import below
from unseen.datasets.sheet import MISSING, Sheet, coded, number, read, rows_of
from unseen.errors import UnseenError, choice, nearest

#: Options of `load` that say how the file is read; the others say what its columns are.
READING = ("missing", "separator", "decimal", "encoding")


def load(
    data_dir: str | Path | None,
    *,
    path: str | Path,
    domain: str,
    label: str,
    task: str = "classification",
    missing: Sequence[str] = MISSING,
    categorical: Sequence[str] | None = None,
    groups: Sequence[str] = (),
    drop: Sequence[str] = (),
    standardise: bool = True,
    unit: str | None = None,
    missing_label: str = "refuse",
    identifiers: str = "refuse",
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
) -> DataSet:
    """Load a csv or csv.gz file with a header: raw features float64 [N, C] and their `Schema`.

    Columns that are not the label, domain or unit, a group or dropped are features. Domains and
    classes are in numeric order if all are numbers, else in alphabetic order.

    Args:
        data_dir: The data folder.
        path: The file, absolute or relative to `data_dir`.
        domain: The column that names the domain.
        label: The column that holds the label.
        task: "classification" or "regression".
        missing: Cells that hold no value.
        categorical: The categorical columns (default: those in which every domain has a value that
            is not a number).
        groups: Columns of metadata, kept for grouped metrics and not used as features; one called
            "environment" names the environments inside a domain.
        drop: Columns to leave out.
        standardise: For regression, train on labels less the training clients' mean and over their
            deviation; predictions and metrics are in the label's own units all the same.
        unit: The column of patients, or of whatever rows belong to: rows of one unit are never
            split between training and validation.
        missing_label: "refuse", or "drop" the rows without a label.
        identifiers: "refuse" features that look like identifiers (`columns.identifier`), unless
            they are named in `categorical`, or "keep" them.
        separator: What separates cells; this and the next two are detected by default, where that
            is safe (`dialect`).
        decimal: The decimal sign.
        encoding: The encoding of the file.
    """
    file = below(data_dir, path, "table")
    needs = [name for name in (domain, label, unit) if name is not None]
    sheet = opened(file, needs, missing, separator, decimal, encoding)
    wanted = None if categorical is None else _names(categorical)
    return assemble(
        sheet,
        domain=domain,
        label=label,
        task=task,
        categorical=wanted,
        groups=_names(groups),
        drop=_names(drop),
        standardise=standardise,
        unit=unit,
        missing_label=missing_label,
        identifiers=identifiers,
    )


def opened(
    file: Path,
    needs: Sequence[str],
    missing: Sequence[str] = MISSING,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
) -> Sheet:
    """Read the sheet of a file, by the options `READING` of `load`.

    Args:
        file: The file.
        needs: Columns that it must have.
        missing: This and the others as for `load`.
        separator: As for `load`.
        decimal: As for `load`.
        encoding: As for `load`.
    """
    return read(file, _names(missing), (), Dialect(separator, decimal, encoding), needs)


def assemble(
    sheet: Sheet,
    *,
    domain: str,
    label: str,
    task: str = "classification",
    categorical: Sequence[str] | None = None,
    groups: Sequence[str] = (),
    drop: Sequence[str] = (),
    standardise: bool = True,
    unit: str | None = None,
    missing_label: str = "refuse",
    identifiers: str = "refuse",
) -> DataSet:
    """Make the data set of a sheet; the options are those of `load`."""
    choice("task", task, ("classification", "regression"))
    choice("missing_label", missing_label, ("refuse", "drop"))
    choice("identifiers", identifiers, ("refuse", "keep"))
    for name in (*groups, *drop):
        sheet.column(name)
    sheet, notes = _labelled(sheet, domain, label, missing_label == "drop")
    names, owners = coded(sheet.full(domain, "domain"))
    classes, y = _labels(sheet, label, task)
    units = None if unit is None else _units(sheet, unit, {domain, label})
    others = {domain, label, *groups, *drop, *([] if unit is None else [unit])}
    if identifiers == "refuse":
        named_columns = {*others, *(categorical or ())}
        check_identifiers(sheet, [name for name in sheet.columns if name not in named_columns])
        notes += unit_notes(
            sheet, [name for name in sheet.columns if name not in named_columns], unit
        )
    schema, x = _features(sheet, others, categorical, owners)
    meta = {name: _levels(sheet.plain(name)) for name in groups}
    domains = []
    for code, name in enumerate(names):
        rows = (owners == code).nonzero().flatten()
        codes = {column: codes[rows] for column, (_, codes) in meta.items()}
        of_units = None if units is None else units[1][rows]
        domains.append(Domain(name, x[rows], y[rows], meta=codes, units=of_units))
    levels = {column: levels for column, (levels, _) in meta.items()}
    source, licence = f"the table {sheet.name}", "the user's own"
    standardised = label if classes is None and standardise else None
    notes += _numeric_classes(label, classes) or lone_classes(domains, classes)
    notes += [] if units is None else shared_units(domains, units[0], str(unit))
    return DataSet(
        "table", tuple(domains), classes, source, licence, "", schema, levels,
        standardise=standardised, dialect=sheet.dialect, notes=tuple(notes),
    )  # fmt: skip


def _labelled(sheet: Sheet, domain: str, label: str, drop: bool) -> tuple[Sheet, list[str]]:
    """The rows with a label, and a remark on the others; refuses them unless they are dropped."""
    cells, owners = sheet.column(label), sheet.full(domain, "domain")
    gaps = [i for i, cell in enumerate(cells) if cell is None]
    if not gaps:
        return sheet, []
    every, without = Counter(owners), Counter(owners[i] for i in gaps)
    sites = sorted(without.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{name} {count:,} of {every[name]:,}" for name, count in sites[:MANY])
    listed += f" and {len(sites) - MANY} more sites" if len(sites) > MANY else ""
    rows = rows_of(len(gaps), len(cells))
    if not drop or len(gaps) == len(cells):
        remedy = "" if drop else ", or leave these rows out by missing_label='drop'"
        raise UnseenError(
            f"{rows} of {sheet.name} have no value in {label!r}, the column of the label "
            f"({listed}), the first in line {sheet.lines[gaps[0]]}. Fill in the values{remedy}."
        )
    gone = [name for name in every if every[name] == without[name]]
    lost = f"; nothing is left of {', '.join(gone)}" if gone else ""
    labelled = [i for i, cell in enumerate(cells) if cell is not None]
    return sheet.take(labelled), [f"{rows} left out, which have no label: {listed}{lost}"]


def _units(sheet: Sheet, unit: str, others: set[str]) -> tuple[tuple[str, ...], Tensor]:
    """Names of the units and the code of every row's."""
    if unit in others:
        raise UnseenError(f"the unit {unit!r} cannot be the column of the domain or of the label.")
    return coded(sheet.full(unit, "unit"))


def _labels(sheet: Sheet, label: str, task: str) -> tuple[tuple[str, ...] | None, Tensor]:
    cells = sheet.full(label, "label")
    if task == "classification":
        return coded(cells)
    _check_targets(sheet, label)
    return None, torch.tensor(sheet.numbers(label), dtype=torch.float32)


def _check_targets(sheet: Sheet, label: str) -> None:
    """Refuse a label to regress on that is not a number."""
    for cell, line in zip(sheet.column(label), sheet.lines, strict=True):
        value = math.nan if cell is None else sheet.number(cell)
        if cell is None or (value is not None and math.isfinite(value)):
            continue
        nearly = almost(cell) or (value is None and number(cell) is not None)
        remedy = spelling_remedy(sheet, cell) if nearly else "correct it"
        raise UnseenError(
            f"the label {cell!r} in line {line} of {sheet.name}, column {label!r}, is not a "
            f"number: {remedy}. If the labels are classes, write task='classification'."
        )


def _numeric_classes(label: str, classes: tuple[str, ...] | None) -> list[str]:
    """A remark on classes that may be meant as numbers."""
    values = [number(name) for name in classes or ()]
    pointed = any("." in name for name in classes or ())
    if None in values or len(values) <= (10 if pointed else 15):
        return []
    shown = ", ".join((classes or ())[:3])
    return [
        f"the label {label!r} has {len(values)} classes and all are numbers ({shown}, ...): to "
        "predict it as a number, write task='regression'"
    ]


def _levels(cells: Sequence[str | None]) -> tuple[tuple[str, ...], Tensor]:
    """Names and codes of a metadata column, where missing is a level like any other."""
    names, codes = coded(cells)
    if bool((codes < 0).any()):
        names, codes = (*names, "missing"), codes.where(codes >= 0, len(names))
    return names, codes


def _features(
    sheet: Sheet, others: set[str], categorical: Sequence[str] | None, owners: Tensor
) -> tuple[Schema, Tensor]:
    """The schema, and the raw features [N, C] in float64."""
    columns = tuple(name for name in sheet.columns if name not in others)
    if not columns:
        raise UnseenError(f"{sheet.name} has no column left to be a feature.")
    if categorical is None:
        categorical = [name for name in columns if _looks_categorical(sheet, name, owners)]
    categories, values = {}, []
    for name in columns:
        if name not in categorical:
            values.append(torch.tensor(sheet.numbers(name), dtype=torch.float64))
            continue
        categories[name], codes = coded(sheet.plain(name))
        values.append(codes.double().masked_fill(codes < 0, math.nan))
    for name in categorical:
        if name not in columns:
            raise nearest("feature named as categorical", name, columns)
    return Schema(columns, categories), torch.stack(values, dim=1)


def _looks_categorical(sheet: Sheet, name: str, owners: Tensor) -> bool:
    """Whether a column holds words, as every domain must see it alone.

    Were one domain's word enough, a target could turn the sources' numbers into categories.
    """
    worded: dict[int, bool] = {}
    word = ""
    for cell, owner in zip(sheet.columns[name], owners.tolist(), strict=True):
        if cell is not None:
            is_word = sheet.number(cell) is None
            worded[owner] = worded.get(owner, False) or is_word
            word = cell if is_word and not word else word
    if word:
        check_almost(sheet, name)
    if len(set(worded.values())) == 2:
        line = sheet.lines[sheet.columns[name].index(word)]
        raise UnseenError(
            f"column {name!r} of {sheet.name} holds only numbers in some domains and words in "
            f"others, such as {word!r} in line {line}. If it means a missing value, add it to the "
            "option 'missing'; if the column is categorical, name it in the option 'categorical'."
        )
    if not word:
        return False
    distinct = {cell for cell in sheet.columns[name] if cell is not None}
    words = sum(sheet.number(cell) is None for cell in distinct)
    if 2 * words < len(distinct) and len(distinct) > MANY:
        warnings.warn(
            f"column {name!r} of {sheet.name} is taken as categorical, with {len(distinct)} "
            f"categories, although most of its values are numbers: it also holds {word!r}. If "
            "it means a missing value, add it to the option 'missing'; if the column is meant to "
            "be categorical, name it in the option 'categorical'.",
            stacklevel=4,
        )
    return True


def _names(value: Sequence[str]) -> tuple[str, ...]:
    """Several names; a lone string is one name, not a list of letters."""
    return (value,) if isinstance(value, str) else tuple(map(str, value))


INFO = Info(
    load,
    "your own csv file: a domain column, a label column, features with gaps",
    "your file",
    "yours",
    "mlp(widths=[32])",
)
