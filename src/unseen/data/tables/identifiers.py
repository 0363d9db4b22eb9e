"""Columns that look like identifiers by their names and cells, and cells that look like numbers."""

import re
import tomllib
from collections.abc import Sequence
from importlib import resources

from pydantic import TypeAdapter

from unseen.data.tables.cells import Cells
from unseen.data.tables.dialect import number, ungrouped
from unseen.data.tables.hashing import looks_like_text
from unseen.data.tables.remarks import dates, measured_in
from unseen.data.tables.sheet import Sheet, UnfitCells
from unseen.errors import UnseenError

#: More different values than this are many: below, a column may be anything.
MANY = 20
#: Words in the names of columns -> what such columns are: ids, units, sites, labels.
WORDS = TypeAdapter(dict[str, set[str]]).validate_python(
    tomllib.loads((resources.files("unseen.data.tables") / "words.toml").read_text("utf-8"))
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?", re.ASCII)


def identifier(sheet: Sheet, name: str) -> str | None:
    """Return why a column looks like an identifier of rows, or None.

    Note:
        Either words of which more than half of the rows have a different one each, or whole numbers
        that are different in every row, under a name such as `id`. Numbers of any other name may be
        measurements.
    """
    cells = sheet.column(name)
    values, rows = len(cells.arrow), cells.present
    if values <= MANY:
        return None
    if _texts(cells):
        many = 2 * values > rows
        return f"{values:,} different texts in {rows:,} rows" if many else None
    named = named_id(name) or counts_rows(name)
    if values == rows and named and all(map(_WHOLE.fullmatch, cells.texts)):
        return f"{rows:,} whole numbers, all different"
    return None


def unit(sheet: Sheet, name: str) -> str | None:
    """Return why rows of a column's equal cells may belong together, or None.

    Note:
        It shows in the name, such as `patient` or `lesion_id`, and in values that occur more than
        once and are many.
    """
    if not (named_id(name) or words(name) & WORDS["units"]):
        return None
    cells = sheet.column(name)
    values, rows = cells.texts, cells.present
    repeat = MANY < len(values) < rows
    if not repeat or any(number(v) is not None and not _WHOLE.fullmatch(v) for v in values):
        return None
    return f"{len(values):,} different values in {rows:,} rows"


def _texts(cells: Cells) -> bool:
    """Whether half of the values or more are not numbers, whatever their decimal sign."""
    if cells.all_numbers:
        return not len(cells.arrow)
    near = (text for text, near in zip(cells.texts, cells.are_almost, strict=True) if near)
    nearly = sum("_" not in text or number(text) is not None for text in near)
    return 2 * (int(cells.are_numbers.sum()) + nearly) <= len(cells.texts)


def named_id(name: str) -> bool:
    """Return whether a column is named like an identifier.

    Example:
        >>> [named_id(n) for n in ("patient_id", "patientunitstayid", "age", "steroid")]
        [True, True, False, True]
    """
    return bool(words(name) & WORDS["ids"]) or (len(name) > 4 and name.lower().endswith("id"))


def counts_rows(name: str) -> bool:
    """Return whether a column is named like numbers of rows, and by nothing else.

    Example:
        >>> [counts_rows(n) for n in ("Nr.", "rownames", "No.", "row_number", "num-pills", "NO")]
        [True, True, True, True, False, False]
    """
    return re.sub(r"[\s_-]", "", name.lower()) in WORDS["counters"]


def words(name: str) -> set[str]:
    """Return the words that a column's name is made of.

    Example:
        >>> sorted(words("Lesion_ID")), sorted(words("uniquePatientId"))
        (['id', 'lesion'], ['id', 'patient', 'unique'])
    """
    return {word.lower() for word in _WORD.findall(name)}


def repeated(sheet: Sheet, names: Sequence[str]) -> dict[str, str]:
    """Return the columns of words that name units, one indicator each as features, and why."""
    reasons = {name: why for name in names if (why := unit(sheet, name))}
    return {n: why for n, why in reasons.items() if _texts(sheet.column(n))}


def suspects(sheet: Sheet, names: Sequence[str]) -> dict[str, str]:
    """Return the columns that look like identifiers, with the reason."""
    return {name: why for name in names if (why := identifier(sheet, name))}


def check_identifiers(sheet: Sheet, names: Sequence[str]) -> None:
    """Refuse features that look like identifiers."""
    reasons = suspects(sheet, names)
    if not reasons:
        return
    listed = " and ".join(f"{name!r} ({why})" for name, why in reasons.items())
    looks = "looks like an identifier" if len(reasons) == 1 else "look like identifiers"
    together = next((name for name in reasons if unit(sheet, name)), None)
    hint = f" If rows of one {together} belong together: unit={together!r}." if together else ""
    if days := [name for name in reasons if dates(sheet, name)]:
        listed_days = " and ".join(map(repr, days))
        hint += f" Make a number of the dates in {listed_days}, such as days since one."
    if measures := [f"{m!r} of {n!r}" for n in reasons if (m := measured_in(sheet, n))]:
        hint += f" To have numbers, write {' and '.join(measures)} into the column's name alone."
    if texts := [n for n in reasons if n not in days and looks_like_text(sheet, n)]:
        hint += f" To have as features by their words: text={texts!r}."
    raise UnseenError(
        f"{listed} of {sheet.name} {looks}, which no other site shares.",
        remedy=f"To leave out: drop={[*reasons]!r}. To have as features: identifiers='keep', or "
        f"their names in categorical=[...].{hint}",
    )


def check_almost(sheet: Sheet, name: str) -> None:
    """Refuse a column without true words, in which some cells are nearly numbers: 1_000, 0x10."""
    cells = sheet.column(name)
    if not (cells.are_numbers | cells.are_almost).all():
        return
    row = cells.first_row(cells.are_almost)
    cell = cells[row]
    raise UnfitCells(
        f"{sheet.at_row(row)} of {sheet.name} has {cell!r} in the column {name!r}, nearly a "
        "number:",
        remedy=f"{spelling_remedy(sheet, str(cell))}. If not a number, add it to 'categorical'.",
    )


def spelling_remedy(sheet: Sheet, cell: str) -> str:
    """Return how to write a cell that is nearly a number, or which decimal sign to set."""
    comma = sheet.dialect.decimal == ","
    if sheet.place != Sheet.place and ("," in cell or ungrouped(cell)):
        return (
            "read the file by pandas.read_csv(..., decimal=',') or thousands=',', as it is written"
        )
    if grouped := ungrouped(cell):
        plain, sign = grouped
        wrong = sign != sheet.dialect.decimal
        return f"write it without thousands, {plain}" + (f", and set decimal={sign!r}" * wrong)
    if comma and number(cell) is not None:
        return "write it with a decimal comma and no thousands, or set decimal='.'"
    if comma or cell.count(",") != 1 or "." in cell:
        sign = "comma" if comma else "point"
        return f"write it in plain digits, with a {sign} for decimals"
    numeric = (name for name, cells in sheet.columns.items() if cells.all_numbers)
    other = next((name for name in numeric if sheet.columns[name].have_point), None)
    if other is not None:
        return f"write it with a decimal point, as in the column {other!r}, or all with decimal=','"
    return "if that is a decimal comma, write decimal=','; if not, write it in plain digits"
