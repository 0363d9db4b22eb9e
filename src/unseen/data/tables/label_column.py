"""The labels of a table: rows that lack one, classes or numbers."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unseen.core.labels import exact_numbers
from unseen.data.tables.cells import identity
from unseen.data.tables.dialect import almost, number
from unseen.data.tables.identifiers import MANY, spelling_remedy
from unseen.data.tables.sheet import Sheet, UnfitCells, WrongNumber, coded, codes_of
from unseen.errors import UnseenError, nearest

#: Classes up to which numbers that are not whole may be names.
MOST = 10


def labelled(sheet: Sheet, domain: str, label: str, drop: bool) -> tuple[Sheet, list[str]]:
    """Return the rows with a label and a remark on the others, which are refused or dropped."""
    cells, owners = sheet.column(label), sheet.full(domain, "domain")
    if cells.present == len(cells):
        return sheet, []
    gaps = np.flatnonzero(cells.missing)
    every, without = Counter(owners), Counter(owners.take(gaps))
    sites = sorted(without.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{name} {count:,} of {every[name]:,}" for name, count in sites[:MANY])
    listed += f" and {len(sites) - MANY} more sites" if len(sites) > MANY else ""
    rows = f"{len(gaps):,} of {len(cells):,} rows"
    if not drop or len(gaps) == len(cells):
        other = "" if drop else ", or leave these rows out by missing_label='drop'"
        raise UnseenError(
            f"{rows} of {sheet.name} have no value in {label!r}, the column of the label "
            f"({listed}), the first in {sheet.at_row(gaps[0])}.",
            remedy=f"Fill in the values{other}.",
        )
    empty = [str(name) for name in every if every[name] == without[name]]
    remark = f"; nothing is left of {', '.join(empty)}" if empty else ""
    return sheet.take(np.flatnonzero(~cells.missing)), [
        f"{rows} left out, which have no label: {listed}{remark}"
    ]


def labels(
    sheet: Sheet, label: str, task: str, positive: str | None = None
) -> tuple[tuple[str, ...] | None, Tensor]:
    """Return the classes and each row's code, or None and numbers, which must be finite."""
    if task == "classification":
        names, y = coded(sheet.full(label, "label"))
        _check_numbers(sheet, label, names)
        classes = positive_last(names, positive)
        return classes, torch.tensor([classes.index(name) for name in names])[y]
    try:
        return None, exact_numbers(sheet.numbers(label))
    except WrongNumber as error:
        cell = error.cell
        nearly = almost(cell) or (sheet.number(cell) is None and number(cell) is not None)
        remedy = spelling_remedy(sheet, cell) if nearly else "correct it"
        raise UnfitCells(
            f"the label {cell!r} in {sheet.at(error.line)} of {sheet.name}, {label!r}, is not a "
            "number:",
            remedy=f"{remedy}. If the labels are classes, write task='classification'.",
        ) from None


def _check_numbers(sheet: Sheet, label: str, names: Sequence[str]) -> None:
    """Refuse many classes that are all numbers, some of them in a spelling that is not read."""
    nearly = [name for name in names if number(name) is None]
    if len(names) <= MOST or not nearly or not all(map(almost, nearly)):
        return
    raise UnfitCells(
        f"the label {label!r} of {sheet.name} has {len(names):,} classes, and all are nearly "
        f"numbers, such as {nearly[0]!r}:",
        remedy=f"{spelling_remedy(sheet, nearly[0])}. To predict it as a number: "
        "task='regression'. If the labels are classes, write letters in their names.",
    )


def positive_last(classes: Sequence[str], positive: str | None) -> tuple[str, ...]:
    """Return the classes with the positive one in the last place, where there is one.

    Example:
        >>> positive_last(["died", "survived"], "died")
        ('survived', 'died')
    """
    if positive is None:
        return tuple(classes)
    code = codes_of(classes).get(identity(positive))
    return tuple(sorted(classes, key=lambda name: classes.index(name) == code))


def check_positive(classes: Sequence[str], positive: str | None) -> None:
    """Refuse a positive class that is not one of two."""
    if positive is None:
        return
    if identity(positive) not in codes_of(classes):
        raise nearest("class (for positive)", positive, classes)
    if len(classes) != 2:
        raise UnseenError(
            f"positive = {positive!r} names the one of two classes that metrics look for; found "
            f"{len(classes)} classes: {', '.join(map(repr, classes[:MANY]))}"
            f"{', ...' if len(classes) > MANY else ''}.",
            remedy="Leave it out.",
        )


def numeric_classes(label: str, classes: tuple[str, ...] | None) -> list[str]:
    """Return a remark on classes that are many and all numbers."""
    names = classes or ()
    most = MOST if any("." in name for name in names) else 15
    if len(names) <= most or any(number(name) is None for name in names):
        return []
    return [
        f"the label {label!r} has {len(names)} classes and all are numbers "
        f"({', '.join(names[:3])}, ...): to predict it as a number, write task='regression'"
    ]
