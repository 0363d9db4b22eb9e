"""What a column of a table looks like by its cells and its name: an identifier, a unit, neither."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unseen.datasets.dialect import almost, ungrouped
from unseen.datasets.sheet import Sheet, number
from unseen.errors import UnseenError

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


def check_identifiers(sheet: Sheet, names: Sequence[str]) -> None:
    """Refuse features that look like identifiers."""
    reasons = suspects(sheet, names)
    if not reasons:
        return
    listed = " and ".join(f"{name!r} ({reason})" for name, reason in reasons.items())
    looks = "looks like an identifier" if len(reasons) == 1 else "look like identifiers"
    together = [name for name in reasons if unit(sheet, name)]
    hint = "".join(f" If rows of one {n} belong together: unit={n!r}." for n in together[:1])
    raise UnseenError(
        f"{listed} of {sheet.name} {looks}, which no other site shares. To leave out: "
        f"drop={[*reasons]!r}. To have as features: identifiers='keep', or their names in "
        f"categorical=[...].{hint}"
    )


def unit_notes(sheet: Sheet, names: Sequence[str], unit: str | None) -> list[str]:
    """Return a remark on each feature that seems to name units."""
    return [
        f"{name!r} looks like the name of a person or thing: {reason}; write "
        + (f"unit={name!r} or " if unit is None else "")
        + f"drop={[name]!r}"
        for name, reason in repeated(sheet, names).items()
    ]


def check_almost(sheet: Sheet, name: str) -> None:
    """Refuse a column without true words, in which some cells are nearly numbers: 1_000, 0x10."""
    cells = sheet.columns[name]
    words = {cell for cell in cells if cell is not None and sheet.number(cell) is None}
    if not all(almost(word) or number(word) is not None for word in words):
        return
    first = next(i for i, cell in enumerate(cells) if cell in words)
    cell = str(cells[first])
    raise UnseenError(
        f"line {sheet.lines[first]} of {sheet.name} has {cell!r} in the column {name!r}, which is "
        f"nearly a number and is not one: {spelling_remedy(sheet, cell)}. If it is a category, "
        "name the column in the option 'categorical'."
    )


def spelling_remedy(sheet: Sheet, cell: str) -> str:
    """Return how to write a cell that is nearly a number, or which decimal sign to set."""
    comma = sheet.dialect.decimal == ","
    if grouped := ungrouped(cell):
        plain, sign = grouped
        wrong = sign != sheet.dialect.decimal
        return f"write it without thousands, {plain}" + (f", and set decimal={sign!r}" * wrong)
    if comma and number(cell) is not None:
        spelling = "its decimal sign is a comma: write it so, or set decimal='.'"
        return f"{spelling}; if the point sets thousands apart, leave it out"
    if comma or cell.count(",") != 1 or "." in cell:
        sign = "comma" if comma else "point"
        return f"write it in plain digits, with a {sign} for decimals"
    other = next((name for name in sheet.columns if _pointed(sheet.columns[name])), None)
    if other is not None:
        return (
            f"if that is a decimal comma, write it with a point, as in the column {other!r}, or "
            "all numbers with a comma and decimal=','; if not, write it in plain digits"
        )
    return "if that is a decimal comma, write decimal=','; if not, write it in plain digits"


def _pointed(cells: Sequence[str | None]) -> bool:
    """Whether a column holds nothing but numbers, some with a decimal point."""
    present = [cell for cell in cells if cell is not None]
    return any("." in cell for cell in present) and all(
        number(cell) is not None for cell in present
    )
