"""Words and numbers that often stand for a missing value, and are none of the usual ones."""

from collections.abc import Sequence

import numpy as np

from unseen.data.tables.cells import Cells
from unseen.data.tables.check_matrix import Remark

#: Words for a missing value, in lower case.
WORDS = frozenset(
    ("n/a", "#n/a", "n.a.", "null", "#null!", "(null)", "<na>", "na", "nan", "missing", "--",
     "not available")
)  # fmt: skip
#: Numbers for one: nothing but nines.
CODES = tuple(sign * float(digits) for sign in (1, -1) for digits in ("99", "999", "9999", "99999"))
#: Rows that a code has, and different other numbers, before it is taken for one.
ROWS, OTHERS = 2, 5


def gaps(name: str, role: str, cells: Cells) -> list[Remark]:
    """Return a remark on a column with words or a number that often mean a missing value.

    Example:
        >>> cells = Cells.of(["61", "70", "-999", "55", "-999", "48", "66"])
        >>> gaps("age", "feature", cells)[0].partition(":")[0]
        "2 rows have -999 in the column 'age', far from all other numbers (48 to 70)"
    """
    return _words(name, role, cells) or _codes(name, role, cells)


def _words(name: str, role: str, cells: Cells) -> list[Remark]:
    words = [text for text in cells.not_numbers if text.lower() in WORDS]
    words += ["nan"] if role != "feature" and "nan" in cells.texts else []
    return [
        _remark(f"{_count(cells, words)} {words[0]!r} in the column {name!r}", role, words)
        for _ in words[:1]
    ]


def _codes(name: str, role: str, cells: Cells) -> list[Remark]:
    """A number of nines is a code where it is as far from all others as they are apart."""
    values = cells.values
    if role not in ("feature", "number", "time") or not np.isfinite(values).all():
        return []
    for code in CODES:
        own, others = values == code, values[values != code]
        if not own.any() or len(others) < OTHERS:
            continue
        low, high = float(others.min()), float(others.max())
        texts = [cells.texts[i] for i in np.flatnonzero(own)]
        apart = low - code if code < 0 else code - high
        far = apart > high - low or (code < 0 <= low)
        if far and int(cells.counts[own].sum()) >= ROWS:
            what = f"{_count(cells, texts)} {texts[0]} in the column {name!r}"
            return [
                _remark(f"{what}, far from all other numbers ({low:g} to {high:g})", role, texts)
            ]
    return []


def _count(cells: Cells, texts: Sequence[str]) -> str:
    rows = int(cells.rows_of(np.isin(cells.texts, texts)).sum())
    return f"{rows:,} rows have" if rows > 1 else "1 row has"


def _remark(what: str, role: str, texts: Sequence[str]) -> Remark:
    text = f"{what}: if that means a missing value, write missing={[*texts]!r}"
    return Remark.of(text, "word or code for missing", role, missing=texts)
