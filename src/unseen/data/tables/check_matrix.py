"""What is looked for in a user's data, in which role of a column, in order of importance.

`MATRIX` is what the code does: every remark names its check, and docs/your-data.md has it as a
table. A cell is how a check shows for a role, or why it does not apply.
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
SIGNS = {REFUSED: "R", NOTE: "N", COLUMN: "C", MERGED: "="}
_NO_NUMBER = "holds names and no numbers"
_NO_WORD = "holds numbers, which have no case"
_NO_CELLS = "is made of files, which have no cells"
_ONE_FEATURE = "is not a single feature"
_ROWS = "is looked at as a whole row"
#: What is wrong -> role -> how it shows, or why nothing is looked for; "else": the other roles.
MATRIX: Mapping[str, Mapping[str, str]] = {
    "gives the label away": {"feature": NOTE, "category": NOTE, "else": _ONE_FEATURE},
    "identifier or name": {
        "feature": REFUSED,
        "category": REFUSED,
        "text": "enters by hashed words",
        "else": "may name people or places",
    },
    SPELLING: {
        "site": NOTE,
        "class": NOTE,
        "category": NOTE,
        "unit": NOTE,
        "group": NOTE,
        "image": NOTE,
        "mask": NOTE,
        "text": "counts words in lower case",
        "else": _NO_WORD,
    },
    ALONE: {
        "class": NOTE,
        "category": NOTE,
        "image": NOTE,
        "mask": "has the same classes at every site",
        "text": "enters by hashed words",
        "site": "is at one site",
        "unit": "may be at one site",
        "group": "may be at one site",
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
        "text": "may hold any word",
        "else": _NO_CELLS,
    },
    "nearly a number": {
        "number": REFUSED,
        "time": REFUSED,
        "feature": REFUSED,
        "class": REFUSED,
        "category": "is one because its options say so",
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
        "text": "enters by hashed words",
        "else": _NO_CELLS,
    },
    "date": {
        "category": NOTE,
        "number": REFUSED,
        "time": REFUSED,
        "feature": "holds numbers; a date makes a category",
        "else": _NO_NUMBER,
    },
    "unit of measurement in cells": {
        "category": NOTE,
        "number": REFUSED,
        "time": REFUSED,
        "feature": "holds numbers; a measure makes a category",
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
        "number": "stays float64",
        "time": "stays float64",
        "else": _NO_NUMBER,
    },
    "constant": {
        "feature": COLUMN,
        "category": COLUMN,
        "class": REFUSED,
        "site": REFUSED,
        "else": "is neither a feature nor a class",
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
        "group": "has missing as a level",
        "image": NOTE,
        "mask": NOTE,
    },
    "class as a number": {"class": NOTE, "else": "is not a class"},
    "copies": {
        "feature": NOTE,
        "image": NOTE,
        "mask": NOTE,
        "else": _ROWS,
    },
    "unit at several sites": {"unit": NOTE, "else": "is not a unit"},
    "too small": {"site": REFUSED, "else": "is counted by site"},
    "left out": {"site": NOTE, "class": NOTE, "number": NOTE, "time": NOTE, "else": "stays"},
    "passed over": {"image": NOTE, "mask": NOTE, "else": "has every row read"},
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
        ('note', 'holds names and no numbers')
    """
    cells = MATRIX[check]
    return cells.get(role, cells.get("else", ""))


def ranked(notes: Sequence[str]) -> list[str]:
    """Return notes in order of importance; those that name no check come after all that do."""
    order = [*MATRIX]

    def rank(note: str) -> int:
        return order.index(note.check) if isinstance(note, Remark) else len(order)

    return sorted(notes, key=rank)


def unsettled(notes: Sequence[str]) -> list[Remark]:
    """Return the remarks on what may be wrong: not those on what an option leaves out."""
    remarks = (note for note in notes if isinstance(note, Remark))
    return [note for note in remarks if note.check != "left out"]


def as_markdown() -> str:
    """Return the matrix as docs/your-data.md has it: checks as rows, roles as columns."""
    marks = dict[str, int]()
    lines = [f"| | {' | '.join(ROLES)} |", f"|:--|{':-:|' * len(ROLES)}"]
    for check in MATRIX:
        ways = [way_of(check, role) for role in ROLES]
        signs = [SIGNS.get(way) or str(marks.setdefault(way, len(marks) + 1)) for way in ways]
        lines.append(f"| {check} | {' | '.join(signs)} |")
    legend = ", ".join(f"{sign} {way}" for way, sign in SIGNS.items())
    reasons = "; ".join(f"{number} {way}" for way, number in marks.items())
    return "\n".join([*lines, "", f"{legend}. Not looked for, since the role {reasons}."])
