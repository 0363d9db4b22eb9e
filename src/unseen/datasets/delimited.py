"""A user's own table: one csv file with a header, one row per example."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from unseen.datasets.base import DataSet, Domain
from unseen.datasets.files import below
from unseen.datasets.sheet import MISSING, Sheet, coded, number, read
from unseen.datasets.table import Schema
from unseen.errors import UnseenError, choice, nearest

#: A column of numbers and words with more different values than this is more likely a slip.
MANY = 20


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
) -> DataSet:
    """A csv or csv.gz file with a header: raw features float64 [N, C] and their `Schema`.

    path: absolute or relative to `data_dir`. domain, label: the columns that hold them. task:
    "classification" or "regression". missing: cells that stand for no value. categorical: the
    categorical columns (default: those in which every domain has a value that is not a number).
    groups: columns of metadata, kept for grouped metrics and not used as features; one called
    "environment" names the environments inside a domain. drop: columns to leave out. The rest are
    features. standardise: for regression, train on labels less the training clients' mean and over
    their deviation; predictions and metrics are in the label's own units all the same.

    Domains and classes stand in numeric order if all are numbers, else in alphabetic order.
    """
    file = below(data_dir, path, "table")
    choice("task", task, ("classification", "regression"))
    sheet = read(file, _names(missing))
    roles = {"domain": domain, "label": label}
    wanted = None if categorical is None else _names(categorical)
    return assemble(
        sheet,
        task=task,
        categorical=wanted,
        groups=_names(groups),
        drop=_names(drop),
        standardise=standardise,
        **roles,
    )


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
) -> DataSet:
    """The data set of a sheet; the options are those of `load`."""
    for name in (*groups, *drop):
        sheet.column(name)
    names, owners = coded(sheet.full(domain, "domain"))
    classes, y = _labels(sheet, label, task)
    schema, x = _features(sheet, {domain, label, *groups, *drop}, categorical, owners)
    meta = {name: _levels(sheet.column(name)) for name in groups}
    domains = []
    for code, name in enumerate(names):
        own = (owners == code).nonzero().flatten()
        codes = {column: codes[own] for column, (_, codes) in meta.items()}
        domains.append(Domain(name, x[own], y[own], meta=codes))
    levels = {column: levels for column, (levels, _) in meta.items()}
    source, licence = f"the table {sheet.name}", "the user's own"
    named = label if classes is None and standardise else None
    return DataSet(
        "table", tuple(domains), classes, source, licence, "", schema, levels, standardise=named
    )


def _labels(sheet: Sheet, label: str, task: str) -> tuple[tuple[str, ...] | None, Tensor]:
    cells = sheet.full(label, "label")
    if task == "classification":
        return coded(cells)
    return None, torch.tensor(sheet.numbers(label), dtype=torch.float32)


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
        categories[name], codes = coded(sheet.columns[name])
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
            is_word = number(cell) is None
            worded[owner] = worded.get(owner, False) or is_word
            word = cell if is_word and not word else word
    if len(set(worded.values())) == 2:
        line = sheet.lines[sheet.columns[name].index(word)]
        raise UnseenError(
            f"column {name!r} of {sheet.name} holds only numbers in some domains and words in "
            f"others, such as {word!r} in line {line}. If that stands for no value, add it to the "
            "option 'missing'; if the column is categorical, name it in the option 'categorical'."
        )
    known = {cell for cell in sheet.columns[name] if cell is not None}
    words = sum(number(cell) is None for cell in known)
    if words and 2 * words < len(known) and len(known) > MANY:
        warnings.warn(
            f"column {name!r} of {sheet.name} is taken as categorical, with {len(known)} "
            f"categories, although most of its values are numbers: it also holds {word!r}. If "
            "that stands for no value, add it to the option 'missing'; if the column is meant to "
            "be categorical, name it in the option 'categorical'.",
            stacklevel=4,
        )
    return bool(words)


def _names(value: Sequence[str]) -> tuple[str, ...]:
    """Several names; a lone string is one name, not a list of letters."""
    return (value,) if isinstance(value, str) else tuple(map(str, value))
