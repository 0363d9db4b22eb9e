"""What deserves a remark in columns that a study takes: names of people, dates, constants."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from unseen.data.tables.cells import identity
from unseen.data.tables.check_matrix import ALONE, SPELLING, Remark, tagged
from unseen.data.tables.encoding import Schema, unscaled
from unseen.data.tables.sheet import Sheet
from unseen.data.tables.spellings import LARGEST

#: A categorical column of more values than this, half of which or more have fewer rows than that.
LEVELS, ROWS = 50, 5
#: A categorical column of more values than this is remarked upon, however frequent each is.
MANY = 200
#: Days, alone or with a time: 2021-01-14, 2021/1/14, 14.01.2021, 14.1.21, 1/14/2021.
_DATE = re.compile(
    r"(?:\d{4}([-/])\d{1,2}\1\d{1,2}|\d{1,2}([./-])\d{1,2}\2(?:\d{4}|\d{2}))"
    r"(?:[T ]+\d{1,2}:\d\d.*)?",
    re.ASCII,
)
#: A number and what it is measured in: 75.5 kg, 45%, -3 °C.
_MEASURED = re.compile(r"[+-]?\d+(?:[.,]\d+)?\s*([^\d\s.,+-](?:.*\D)?)", re.ASCII)
#: Different values from which a column of such cells is one of numbers, and not of a few doses.
MEASURED = 10
#: The share of a column's values that are dates, where it is one of dates.
SHARE = 0.9


def dates(sheet: Sheet, name: str) -> bool:
    """Return whether a column's values look like dates, in one of the usual spellings."""
    values = sheet.column(name).texts
    return bool(values) and sum(map(is_date, values)) >= SHARE * len(values)


def is_date(cell: str) -> bool:
    """Return whether a cell looks like a date.

    Example:
        >>> [is_date(text) for text in ("2021-01-14 08:30", "14.01.2021", "1/14/2021", "1.2.3")]
        [True, True, True, False]
    """
    return _DATE.fullmatch(cell) is not None


def measured_in(sheet: Sheet, name: str) -> str | None:
    """Return the text behind the number in each of a column's cells, such as kg, or None."""
    values = sheet.column(name).texts
    first = _MEASURED.fullmatch(values[0]) if len(values) >= MEASURED else None
    matches = map(_MEASURED.fullmatch, values if first else ())
    same = first and all(match and match[1] == first[1] for match in matches)
    return first[1] if first and same else None


def many_levels(sheet: Sheet, name: str) -> str | None:
    """Return how many values a column of names has, if they are many, or None.

    They are many where most are rare, and beyond `MANY` levels whatever their rows.
    """
    levels, codes = sheet.column(name).levels
    if len(levels) <= LEVELS:
        return None
    rare = int((np.bincount(codes[codes >= 0]) < ROWS).sum())
    if 2 * rare >= len(levels):
        return f"{len(levels):,} values, {rare:,} of them in fewer than {ROWS} rows"
    return f"{len(levels):,} values" if len(levels) > MANY else None


def constant(sheet: Sheet, name: str) -> bool:
    """Return whether all rows have the same value."""
    cells = sheet.column(name)
    different = cells.all_numbers and len({*cells.values[:MANY].tolist()}) > 1
    return not different and cells.present == len(cells) and len(cells.levels[0]) == 1


def drowns(sheet: Sheet, name: str) -> bool:
    """Return whether a column's numbers differ, but too little beside their size to be scaled."""
    cells = sheet.column(name)
    if not (np.abs(cells.values) <= LARGEST).all() or np.ptp(cells.values) == 0:
        return False
    schema = Schema((name,))
    numbers = torch.from_numpy(cells.numbers[~cells.missing])
    return bool(unscaled(schema, schema.sums(numbers[:, None])))


def respelled(cells: Sequence[str], what: str) -> list[str]:
    """Return a remark on numbers that are spelled in several ways, and so count as one value.

    Args:
        cells: The values of a column.
        what: What they are, such as a site.

    Example:
        >>> respelled(["01", "2", "1"], "site")[0].partition(":")[0]
        "the site '1' is also written '01'"
    """
    texts = sorted({*cells}, key=lambda text: (len(text), text))
    groups = [list(group) for group in _alike(texts) if len(group) > 1]
    return [
        f"the {what} {first!r} is also written {' and '.join(map(repr, others))}: these rows are "
        f"taken as one {what}{_and_more(len(groups) - 1)}; write letters in names that differ"
        for first, *others in groups[:1]
    ]


def twins(names: Sequence[str], what: str) -> list[str]:
    """Return a remark on names that differ in their spelling alone, and count as several.

    They differ in capitals, spaces, invisible characters or the Unicode form of letters.

    Args:
        names: The different names.
        what: What they are, such as a site.

    Example:
        >>> twins(["Ulm", "ulm", "Bonn"], "site")[0].partition(":")[0]
        "the sites 'Ulm' and 'ulm' differ in capitals or spaces alone"
    """
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(spelled(name), []).append(name)
    alike = [group for group in groups.values() if len(group) > 1]
    plural = "classes" if what == "class" else f"{what}s"
    if what.startswith("category"):
        plural = what.replace("category", "categories", 1)
    same = alike and len({*map(_plain, alike[0])}) == 1
    how = "capitals or spaces" if same else "spelling"
    return [
        f"the {plural} {' and '.join(map(repr, group))} differ in {how} alone: they "
        f"are taken as {len(group)} {plural}{_and_more(len(alike) - 1)}; write them alike in the "
        "file if they are one"
        for group in alike[:1]
    ]


def spelled(name: str) -> str:
    """Return what the spellings of one name have in common.

    Example:
        >>> spelled("Ma\u0302LE \u200b") == spelled("m\u00e2le")
        True
    """
    return _plain(unicodedata.normalize("NFKC", "".join(c for c in name if ord(c) != 0x200B)))


def levels_apart(
    name: str, levels: Sequence[str], codes: Tensor, owners: Tensor, sites: Sequence[str]
) -> list[Remark]:
    """Return remarks on categories that sites spell differently, or that one site has alone.

    Args:
        name: The column.
        levels: Its categories.
        codes: The category of each row [N], below 0 or NaN where it is missing.
        owners: The site of each row [N], as numbers.
        sites: The names of the sites.

    Example:
        >>> codes, owners = torch.tensor([0, 1, 0, 1, 2, 2]), torch.tensor([0, 0, 1, 1, 2, 2])
        >>> levels_apart("sex", ["f", "m", "male"], codes, owners, "abc")[0].partition(":")[0]
        "2 of 2 rows of site 'c' have a category of 'sex' that no other site has, such as 'male'"
    """
    notes = tagged(twins(levels, f"category of {name!r}"), SPELLING, "category")
    has_value = codes >= 0
    pairs = codes[has_value].long() * len(sites) + owners[has_value]
    counts = pairs.bincount(minlength=len(levels) * len(sites)).view(len(levels), len(sites))
    lone = (counts > 0).sum(1) == 1
    rows, apart = counts.sum(0).tolist(), counts[lone].sum(0).tolist()
    for code, site in enumerate(sites if len(sites) > 1 else ()):
        if 2 * apart[code] >= max(1, rows[code]):
            own = codes[has_value & (owners == code)].long()
            text = (
                f"{apart[code]:,} of {rows[code]:,} rows of site {site!r} have a category of "
                f"{name!r} that no other site has, such as {levels[int(own[lone[own]][0])]!r}: "
                "write the categories alike at all sites if they are one"
            )
            notes.append(Remark.of(text, ALONE, "category"))
    return notes


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()


def _alike(texts: Sequence[str]) -> Iterable[list[str]]:
    groups: dict[object, list[str]] = {}
    for text in texts:
        groups.setdefault(identity(text), []).append(text)
    return groups.values()


def _and_more(count: int) -> str:
    return f", and so are those of {count:,} more" if count else ""


def of_categories(sheet: Sheet, names: Sequence[str]) -> dict[str, Remark]:
    """Return the remarks on categorical features, by column."""
    notes = dict[str, Remark]()
    for name in names:
        if dates(sheet, name):
            text = (
                f"the column {name!r} looks like dates: each becomes a category, which a new site "
                f"will not have; write drop={[name]!r}, or make a number of it, such as days since "
                "a date"
            )
            notes[name] = Remark.of(text, "date", "category", drop=[name])
        elif measure := measured_in(sheet, name):
            text = (
                f"the column {name!r} has {measure!r} behind the number in every cell: each value "
                "becomes a category; write it into the column's name to have numbers"
            )
            notes[name] = Remark.of(text, "unit of measurement in cells", "category")
        elif many := many_levels(sheet, name):
            text = (
                f"the column {name!r} has {many}: each value becomes a feature, whose name the "
                f"model's files list; write drop={[name]!r} if they name people or places, or "
                f"text={[name]!r} to have their words without names"
            )
            notes[name] = Remark.of(text, "identifier or name", "category", drop=[name])
    return notes
