"""What is looked for in a user's data, in which role of a column, in order of importance.

`MATRIX` is what the code does: every remark names its check, and docs/your-data/checks.md is made
of it. A cell is how a check shows for a role, or why it does not apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

#: Roles of columns, and of files.
ROLES = (
    "site", "class", "number", "time", "feature", "category", "text", "unit", "group", "image",
    "mask",
)  # fmt: skip
#: Checks of names.
SPELLING, ALONE = "spelling of names", "level of one site alone"
#: How a check shows.
REFUSED, NOTE, COLUMN, MERGED = "refused", "note", "column's remark", "read as one"
_NO_NUMBER = "names are words"
_NO_WORD = "numbers have one spelling"
_NO_TABLE = "files have no cells"
#: What is wrong -> role -> how it shows; a role that is not there has the reason of "else".
MATRIX: Mapping[str, Mapping[str, str]] = {
    "gives the label away": {
        "feature": NOTE,
        "category": NOTE,
        "else": "it is no feature alone, or the label itself",
    },
    "identifier or name": {
        "feature": REFUSED,
        "category": REFUSED,
        "text": NOTE,
        "else": "names are what the role is for",
    },
    SPELLING: {
        "site": NOTE,
        "class": NOTE,
        "category": NOTE,
        "unit": NOTE,
        "group": NOTE,
        "image": NOTE,
        "mask": NOTE,
        "text": "words count in lower case",
        "else": _NO_WORD,
    },
    ALONE: {
        "class": NOTE,
        "category": NOTE,
        "unit": NOTE,
        "image": NOTE,
        "mask": NOTE,
        "site": "a site is at one site",
        "group": "a group may be at one site",
        "text": "words are hashed",
        "else": _NO_WORD,
    },
    "word or code for missing": {
        "site": NOTE,
        "class": NOTE,
        "number": NOTE,
        "time": NOTE,
        "feature": NOTE,
        "category": NOTE,
        "unit": NOTE,
        "group": NOTE,
        "text": "it has no word, or one among many",
        "else": _NO_TABLE,
    },
    "nearly a number": {
        "number": REFUSED,
        "time": REFUSED,
        "feature": REFUSED,
        "class": REFUSED,
        "category": "it was named as a category",
        "else": _NO_NUMBER,
    },
    "words among numbers": {
        "number": REFUSED,
        "time": REFUSED,
        "feature": REFUSED,
        "else": _NO_NUMBER,
    },
    "spellings of one number": {
        "site": NOTE,
        "class": MERGED,
        "category": MERGED,
        "unit": MERGED,
        "group": MERGED,
        "number": MERGED,
        "time": MERGED,
        "feature": MERGED,
        "text": "words are hashed",
        "else": _NO_TABLE,
    },
    "date": {"category": NOTE, "feature": "a number of days is a number", "else": _NO_NUMBER},
    "unit of measurement in cells": {
        "category": NOTE,
        "feature": "it is then a category",
        "number": REFUSED,
        "time": REFUSED,
        "else": _NO_NUMBER,
    },
    "too large to be squared": {
        "number": REFUSED,
        "time": REFUSED,
        "feature": REFUSED,
        "else": _NO_NUMBER,
    },
    "spread drowns in size": {
        "feature": COLUMN,
        "number": "labels stay float64",
        "time": "labels stay float64",
        "else": _NO_NUMBER,
    },
    "constant": {
        "feature": COLUMN,
        "category": COLUMN,
        "class": REFUSED,
        "site": REFUSED,
        "number": "a constant is learnt",
        "time": "events may share a day",
        "else": "it changes no feature",
    },
    "empty": {
        "feature": COLUMN,
        "category": COLUMN,
        "text": NOTE,
        "class": REFUSED,
        "number": REFUSED,
        "time": REFUSED,
        "site": REFUSED,
        "unit": REFUSED,
        "group": "missing is a level",
        "image": NOTE,
        "mask": NOTE,
    },
    "class as a number": {"class": NOTE, "else": "it is no class"},
    "copies": {
        "feature": NOTE,
        "else": "rows are compared as wholes",
        "image": "",
        "mask": "",
    },
    "unit at several sites": {"unit": NOTE, "else": "only units stay together"},
    "too small": {"site": REFUSED, "else": "rows are counted by site"},
    "left out": {"site": NOTE, "class": NOTE, "number": NOTE, "time": NOTE, "else": "rows stay"},
    "passed over": {"image": NOTE, "mask": NOTE, "else": "every row is read"},
}


class Remark(str):
    """A remark on data in words, which knows its check and the options that settle it.

    Attributes:
        check: A key of `MATRIX`.
        role: The column's role.
        options: Options of `table` -> what they are given, such as drop -> the column.
    """

    check: str
    role: str
    options: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, text: str, check: str, role: str, **options: Sequence[str]) -> Self:
        if way_of(check, role) not in (NOTE, COLUMN, REFUSED):
            raise KeyError(f"{check} is not said of {role}")
        remark = cls(text)
        remark.check, remark.role, remark.options = check, role, MappingProxyType(dict(options))
        return remark

    def __reduce__(self) -> Any:
        return _restored, (str(self), self.check, self.role, dict(self.options))


def tagged(notes: Iterable[str], check: str, role: str, **options: Sequence[str]) -> list[Remark]:
    """Return notes as remarks of a check."""
    return [Remark.of(note, check, role, **options) for note in notes]


def _restored(text: str, check: str, role: str, options: Mapping[str, Sequence[str]]) -> Remark:
    return Remark.of(text, check, role, **options)


def way_of(check: str, role: str) -> str:
    """Return how a check shows for a role, or why it does not apply.

    Example:
        >>> way_of("date", "category"), way_of("date", "site")
        ('note', 'names are words')
    """
    cells = MATRIX[check]
    return cells.get(role, cells.get("else", ""))


def ranked(notes: Sequence[str]) -> list[str]:
    """Return notes in order of importance; those that name no check come after all that do."""
    order = [*MATRIX]

    def rank(note: str) -> int:
        return order.index(note.check) if isinstance(note, Remark) else len(order)

    return sorted(notes, key=rank)
