"""A user's own table: one csv file with a header, one row per example."""

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from unseen.data.dataset import DataSet, Domain, lone_classes, shared_units
from unseen.data.entry import Facts, Info
from unseen.data.tables.cells import Cells
from unseen.data.tables.check_matrix import ALONE, SPELLING, tagged
from unseen.data.tables.copies import copies
from unseen.data.tables.encoding import Schema
from unseen.data.tables.events import times_of
from unseen.data.tables.frames import NAME
from unseen.data.tables.gaps import gaps
from unseen.data.tables.giveaway import giveaways
from unseen.data.tables.hashing import Hashed, check_texts
from unseen.data.tables.identifiers import MANY, check_almost, check_identifiers, repeated
from unseen.data.tables.label_column import (
    check_positive,
    labelled,
    labels,
    numeric_classes,
)
from unseen.data.tables.remarks import levels_apart, of_categories, respelled, twins
from unseen.data.tables.sheet import MISSING, Sheet, UnfitCells, coded, names_of
from unseen.data.tables.site_rows import leave_out, leave_small
from unseen.data.tables.table_files import READING, sheet_of
from unseen.errors import UnseenError, nearest
from unseen.ranges import Range, check_all

FACTS = Facts.of("table")


def load(
    data_dir: str | Path | None,
    *,
    path: str | Path | Sheet,
    domain: str,
    label: str,
    task: Literal["classification", "regression", "survival"] = "classification",
    event: str | None = None,
    positive: str | int | None = None,
    missing: Sequence[str] = MISSING,
    categorical: Sequence[str] | None = None,
    groups: Sequence[str] = (),
    drop: Sequence[str] = (),
    text: Sequence[str] = (),
    text_features: int = 1024,
    text_pairs: bool = False,
    standardise: bool = True,
    unit: str | None = None,
    missing_label: Literal["refuse", "drop"] = "refuse",
    identifiers: Literal["refuse", "keep"] = "refuse",
    least: Annotated[int, Range(1)] = 1,
    without: Sequence[str] = (),
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
) -> DataSet:
    """Load a csv or csv.gz file with a header: raw features float64 [N, C] and their `Schema`.

    Args:
        data_dir: The data folder.
        path: The file, absolute or relative to `data_dir`; or a sheet that was read.
        domain: The column that names the domain.
        label: The column that holds the label.
        task: "classification", "regression" or "survival", which `event` says as well.
        event: Where the label is the time until an event: the column that says whether the event
            was seen then (1) or the row was censored (0).
        positive: Of two classes: the one that sensitivity, predictive values, `auprc` and
            thresholds look for, by default the last.
        missing: Further cells that hold no value, beside empty cells, "?", "NA", "NaN" and ".".
        categorical: Columns whose numbers are names of categories; those in which every domain has
            a value that is not a number are categorical without being named.
        groups: Columns of metadata, kept for grouped metrics and not used as features; one called
            "environment" names the environments inside a domain.
        drop: Columns to leave out.
        text: Columns of text, each of which enters by its words, counted in `text_features` columns
            that a hash names (`hashing.Hashed`); the case of letters does not matter. A missing
            cell has no words.
        text_features: How many columns a text becomes: 8 bytes each for every row in memory, and
            4 more once they are encoded. `glm` takes at most 4,000 coefficients, a set of all
            columns for each class of more than two; `boost` 4,096 columns.
        text_pairs: Whether pairs of neighbouring words count as well as words.
        standardise: For regression, train on labels less the training clients' mean and over their
            deviation; predictions and metrics are in the label's own units all the same.
        unit: The column of patients, or of whatever rows belong to: rows of one unit are never
            split between training and validation.
        missing_label: "refuse", or "drop" the rows without a label or an event.
        identifiers: "refuse" features that look like identifiers (`identifiers.identifier`),
            unless they are named in `categorical`, or "keep" them, without remarks on categorical
            ones.
        least: Sites with fewer rows are left out.
        without: Sites to leave out.
        separator: What separates cells; this and the next two are detected by default, where that
            is safe (`dialect`).
        decimal: The decimal sign.
        encoding: The encoding of the file.

    Returns:
        Columns that are not the label, domain or unit, a group or dropped are features. Domains and
        classes are in numeric order if all are numbers, else in alphabetic order; a class named as
        `positive` is the last.
    """
    check_all(load, locals())
    needs = [name for name in (domain, label, event, unit) if name is not None]
    values = (missing, separator, decimal, encoding)
    reading = dict(zip(READING, values, strict=True))
    sheet = path if isinstance(path, Sheet) else sheet_of(data_dir, path, needs, reading)
    whole = sheet.whole
    groups, drop, text = names_of(groups), names_of(drop), names_of(text)
    categorical = None if categorical is None else names_of(categorical)
    for name in (*groups, *drop):
        sheet.column(name)
    positive = None if positive is None else str(positive)
    _check_roles(domain, label, event, unit, task, positive)
    label_role = "time" if event is not None else "number" if task == "regression" else "class"
    roles = [domain, label, *filter(None, [event, unit]), *groups, *drop]
    sheet, left = leave_out(sheet, domain, names_of(without), strict=whole)
    notes = list[str]()
    for name in (label, *filter(None, [event])):
        sheet, unlabelled = labelled(sheet, domain, name, missing_label == "drop")
        notes += tagged(unlabelled, "left out", label_role)
    sheet, small = leave_small(sheet, domain, least)
    notes += tagged(left + small, "left out", "site")
    notes += tagged(check_texts(sheet, text, [*roles, *(categorical or ())]), "empty", "text")
    names, owners = coded(sites := sheet.full(domain, "domain"))
    notes += tagged(respelled(sites.plain, "site"), "spellings of one number", "site")
    notes += tagged(twins(names, "site"), SPELLING, "site")
    if event is not None:
        classes, y = None, times_of(sheet, label, event)
    else:
        classes, y = labels(sheet, label, task, positive)
        notes += tagged(twins(classes or (), "class"), SPELLING, "class")
    unit_names, units = ((), None) if unit is None else coded(sheet.full(unit, "unit"))
    columns = [c for c in sheet.columns if c not in {*roles, *text}]
    unnamed = [name for name in columns if name not in (categorical or ())]
    repeats = _names_of_rows(sheet, unnamed, unit) if identifiers == "refuse" else {}
    for name, note in repeats.items():
        notes += tagged([note], "identifier or name", "category", drop=[name])
    texts = dict.fromkeys(text, Hashed(text_features, text_pairs))
    schema, x = _features(sheet, columns, categorical, owners, texts)
    unremarked = list[str]()
    if identifiers == "refuse":
        rest = [name for name in schema.categories if name not in repeats]
        remarks = of_categories(sheet, rest)
        notes += remarks.values()
        unremarked = [name for name in rest if name not in remarks]
    if whole and classes is not None and len(classes) < 2:
        raise UnseenError(
            f"all {len(y):,} rows of {sheet.name} have the label {classes[0]!r}: there is nothing "
            "to learn.",
            remedy=f"Look at the column {label!r}, or take another label.",
        )
    if whole:
        check_positive(classes or (), positive)
    meta = {name: _levels(sheet.column(name)) for name in groups}
    for name, (levels, _) in meta.items():
        notes += tagged(twins(levels, f"category of {name!r}"), SPELLING, "group")
    notes += tagged(twins(unit_names, "unit"), SPELLING, "unit")
    if whole:
        kinds = {domain: "site", label: label_role} | dict.fromkeys(groups, "group")
        kinds |= {name: "category" if name in schema.categories else "feature" for name in columns}
        kinds |= {} if unit is None else {unit: "unit"}
        notes += [
            note for name, kind in kinds.items() for note in gaps(name, kind, sheet.columns[name])
        ]
    for name in unremarked if whole else ():
        levels = schema.categories[name]
        codes_of_rows = x[:, schema.columns.index(name)].nan_to_num(-1)
        notes += levels_apart(name, levels, codes_of_rows, owners, names)
    notes += giveaways(schema, x, y, classes) if whole else []
    domains = []
    for code, name in enumerate(names):
        rows = (owners == code).nonzero().flatten()
        codes = {column: codes[rows] for column, (_, codes) in meta.items()}
        of_rows = None if units is None else units[rows]
        domains.append(Domain(name, x[rows], y[rows], meta=codes, units=of_rows))
    many = tagged(numeric_classes(label, classes), "class as a number", "class")
    notes += many or tagged(lone_classes(domains, classes), ALONE, "class")
    notes += tagged(shared_units(domains, unit_names, str(unit)), "unit at several sites", "unit")
    if whole:
        others = [y, *(codes for _, codes in meta.values())]
        twice = copies(sheet, x, others, owners, names, units)
        notes += tagged(twice, "copies", "feature")
    source = NAME if sheet.name == NAME else f"the table {sheet.name}"
    about = {"source": source, "licence": "the user's own"}
    return FACTS.data(
        domains, classes, schema=schema, dialect=sheet.dialect, notes=tuple(notes),
        levels={column: levels for column, (levels, _) in meta.items()},
        standardise=label if classes is None and event is None and standardise else None,
        times=(label, event) if event is not None else None, positive=positive, **about,
    )  # fmt: skip


#: Options of a table beside its file, its domain, its label and what this is; no setting of a study
#: has one of these names.
OPTIONS = tuple(
    name
    for name in signature(load).parameters
    if name not in ("data_dir", "path", "domain", "label", "task", "groups")
)


def assemble(sheet: Sheet, **options: Any) -> DataSet:
    """Make the data set of a sheet; the options are those of `load`."""
    return load(None, path=sheet, **options)


def _check_roles(
    domain: str, label: str, event: str | None, unit: str | None, task: str, positive: str | None
) -> None:
    """Refuse a column in two roles, an event without its task, and a positive number."""
    if (task == "regression" and event is not None) or (task == "survival" and event is None):
        why = "has no event" if event is not None else "needs the column of the event"
        raise UnseenError(
            f"task = {task!r} {why}.",
            remedy="Times until an event are written label='days', event='died'.",
        )
    if positive is not None and (task != "classification" or event is not None):
        what = f"positive = {positive!r} names a class, and the labels here are numbers or times."
        raise UnseenError(what, remedy="Leave it out.")
    if unit in (domain, label):
        raise UnseenError(f"the unit {unit!r} cannot be the column of the domain or of the label.")
    named = [name for name in (domain, label, event) if name is not None]
    if twice := [name for name in named if named.count(name) > 1]:
        raise UnseenError(
            f"the column {twice[0]!r} is named twice: as domain, label and event there are "
            f"{', '.join(map(repr, named))}.",
            remedy="Each of them is a column of its own.",
        )


def _names_of_rows(sheet: Sheet, columns: Sequence[str], unit: str | None) -> dict[str, str]:
    """Return a remark on columns that name persons or things; refuses those that name rows."""
    check_identifiers(sheet, columns)
    group = "unit={0!r} or " if unit is None else ""
    form = "{0!r} looks like the name of a person or thing: {1}; write " + group + "drop=[{0!r}]"
    return {name: form.format(name, why) for name, why in repeated(sheet, columns).items()}


def _levels(cells: Cells) -> tuple[tuple[str, ...], Tensor]:
    """Names and codes of a metadata column, where missing is a level like any other."""
    names, codes = coded(cells)
    if bool((codes < 0).any()):
        names = names if "missing" in names else (*names, "missing")
        codes = codes.where(codes >= 0, names.index("missing"))
    return names, codes


def _features(
    sheet: Sheet,
    columns: Sequence[str],
    categorical: Sequence[str] | None,
    owners: Tensor,
    texts: Mapping[str, Hashed],
) -> tuple[Schema, Tensor]:
    if not columns and not texts:
        raise UnseenError(f"{sheet.name} has no column left to be a feature.")
    categorical = [
        name for name in columns
        if name in (categorical or ()) or _looks_categorical(sheet, name, owners)
    ] + [name for name in categorical or () if name not in columns]  # fmt: skip
    for name in categorical:
        if name not in columns:
            raise nearest("feature named as categorical", name, columns)
    levels = {name: sheet.column(name).levels for name in columns if name in categorical}
    categories = {name: names for name, (names, _) in levels.items()}
    schema = Schema(tuple(columns), categories, texts=texts)
    x = torch.empty(len(sheet.lines), schema.width, dtype=torch.float64)
    for j, name in enumerate(columns):
        if name in levels:
            codes = torch.from_numpy(levels[name][1])
            x[:, j] = codes.double().masked_fill(codes < 0, math.nan)
        else:
            x[:, j] = torch.from_numpy(sheet.numbers(name))
    end = len(columns)
    for name, hashed in texts.items():
        x[:, end : end + hashed.features] = hashed([*sheet.columns[name]])
        end += hashed.features
    return schema, x


def _looks_categorical(sheet: Sheet, name: str, owners: Tensor) -> bool:
    """Whether a column holds words, as every domain must see it alone.

    Note:
        Were one domain's word enough, a target could turn the sources' numbers into categories.
    """
    cells = sheet.columns[name]
    if cells.all_numbers:
        return False
    check_almost(sheet, name)
    # `nan` and `inf` are read as numbers, and are none that says what a column holds.
    endless = cells.are_numbers & ~np.isfinite(cells.values)
    with_values, with_words = (
        np.bincount(owners.numpy()[cells.rows_of(texts)], minlength=int(owners.max()) + 1) > 0
        for texts in (~endless, ~cells.are_numbers)
    )
    word, different = cells.not_numbers[0], len(cells.arrow)
    remedy = (
        "If it means a missing value, add it to the option 'missing'; if the column is {}"
        "categorical, name it in the option 'categorical'."
    )
    if (with_words != with_values).any():
        raise UnfitCells(
            f"column {name!r} of {sheet.name} holds only numbers in some domains and words in "
            f"others, such as {word!r} in {sheet.at_row(cells.first_row(~cells.are_numbers))}.",
            remedy=remedy.format(""),
        )
    for odd in sorted(itertools.compress(cells.texts, endless)):
        warnings.warn(
            f"column {name!r} of {sheet.name} is taken as categorical, and {odd!r} as one of its "
            f"categories. " + remedy.format("meant to be "),
            stacklevel=4,
        )
    if 2 * len(cells.not_numbers) < different and different > MANY:
        warnings.warn(
            f"column {name!r} of {sheet.name} is taken as categorical, with {different} "
            f"categories, although most of its values are numbers: it also holds {word!r}. "
            + remedy.format("meant to be "),
            stacklevel=4,
        )
    return True


INFO = Info(**vars(FACTS), loader=load)
