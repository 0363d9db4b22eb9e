"""What a column of a table looks like by its cells and its name: an identifier, a unit, neither."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unseen.datasets.dialect import almost
from unseen.datasets.sheet import Sheet, number

#: More different values than this are many: below, a column may be anything.
MANY = 20
#: Words in the names of columns that number rows or name people and things.
IDS = {
    "id", "ids", "uid", "uuid", "guid", "pid", "mrn", "ssn", "identifier", "index", "key", "row",
    "accession", "record", "barcode", "unnamed",
}  # fmt: skip
#: Words in the names of columns whose equal cells belong together.
UNITS = {
    "patient", "patients", "subject", "person", "participant", "individual", "lesion", "animal",
    "donor", "specimen", "customer", "user", "speaker", "family", "household", "slide", "case",
}  # fmt: skip
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?", re.ASCII)


def identifier(sheet: Sheet, name: str) -> str | None:
    """Return why a column looks like an identifier of rows, or None.

    Either words of which more than half of the rows have a different one each, or whole numbers
    that are different in every row, under a name such as `id`. Numbers of any other name may be
    measurements.
    """
    cells = [cell for cell in sheet.column(name) if cell is not None]
    values = set(cells)
    if len(values) <= MANY:
        return None
    if _texts(values, sheet.dialect.decimal):
        if 2 * len(values) <= len(cells):
            return None
        return f"{len(values):,} different texts in {len(cells):,} rows"
    if len(values) == len(cells) and named_id(name) and all(map(_WHOLE.fullmatch, values)):
        return f"{len(cells):,} whole numbers, all different"
    return None


def _texts(values: set[str], decimal: str | None) -> bool:
    """Whether half of the values or more are not numbers, whatever their decimal sign."""
    numbers = 0
    for value in values:
        numbers += (
            number(value, decimal) is not None
            or number(value) is not None
            or ("_" not in value and almost(value))
        )
        if 2 * numbers > len(values):
            return False
    return True


def unit(sheet: Sheet, name: str) -> str | None:
    """Return why rows of a column's equal cells may belong together, or None.

    By its name, such as `patient` or `lesion_id`, and by values that occur more than once and are
    many.
    """
    if not (named_id(name) or words(name) & UNITS):
        return None
    cells = [cell for cell in sheet.column(name) if cell is not None]
    values = set(cells)
    if not MANY < len(values) < len(cells):
        return None
    if not all(number(v) is None or _WHOLE.fullmatch(v) for v in values):
        return None
    return f"{len(values):,} different values in {len(cells):,} rows"


def named_id(name: str) -> bool:
    """Return whether a column is called like an identifier.

    >>> [named_id(n) for n in ("patient_id", "patientID", "patientunitstayid", "age", "steroid")]
    [True, True, True, False, True]
    """
    return bool(words(name) & IDS) or (len(name) > 4 and name.lower().endswith("id"))


def words(name: str) -> set[str]:
    """Return the words that a column's name is made of.

    >>> sorted(words("Lesion_ID")), sorted(words("uniquePatientId"))
    (['id', 'lesion'], ['id', 'patient', 'unique'])
    """
    return {word.lower() for word in _WORD.findall(name)}


def repeated(sheet: Sheet, names: Sequence[str]) -> dict[str, str]:
    """Return the columns of words that name units, with the reason.

    As features they would become one indicator per patient.
    """
    reasons = {}
    for name in names:
        reason = unit(sheet, name)
        values = {cell for cell in sheet.column(name) if cell is not None}
        if reason is not None and _texts(values, sheet.dialect.decimal):
            reasons[name] = reason
    return reasons


def suspects(sheet: Sheet, names: Sequence[str]) -> dict[str, str]:
    """Return the columns that look like identifiers, with the reason."""
    reasons = {name: identifier(sheet, name) for name in names}
    return {name: reason for name, reason in reasons.items() if reason is not None}
