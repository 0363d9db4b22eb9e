"""What the columns of a table look like by their cells and names; a summary for a first look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unseen.data.tables.cells import Cells
from unseen.data.tables.dialect import OtherEncoding
from unseen.data.tables.hashing import looks_like_text
from unseen.data.tables.identifiers import MANY, WORDS, identifier, suspects, unit, words
from unseen.data.tables.remarks import constant, dates, drowns, many_levels, measured_in
from unseen.data.tables.sheet import Sheet
from unseen.data.tables.table_files import read

#: Sites up to which each is named; beyond, the range over all is said.
FEW = 5
#: Levels of a column that are shown, and letters of each.
LEVELS, LETTERS = 4, 14
#: Digits that a number would not begin with: codes of wards, of regions, of drugs.
CODE = r"^0\d+$"


@dataclass(frozen=True)
class Column:
    """A column in words.

    Attributes:
        name: The column.
        kind: Its role in the data set, or what it is as a feature.
        gaps: Missing cells.
        values: Range or levels.
        sites: How these differ between sites.
        remark: What to do.
    """

    name: str
    kind: str
    gaps: str
    values: str
    sites: str
    remark: str = ""


def columns(
    sheet: Sheet,
    roles: Mapping[str, str],
    domain: str | None = None,
    categorical: Sequence[str] = (),
    identifiers: bool = True,
) -> tuple[Column, ...]:
    """Summarise all columns, in their order.

    Args:
        sheet: The table.
        roles: Column -> what it is if not a feature.
        domain: The column of sites, where it is known.
        categorical: The columns that the data set declares categorical.
        identifiers: Whether to name features that look like identifiers so.
    """
    owners = Owners.of(sheet, domain)
    summaries = []
    for name, cells in sheet.columns.items():
        numeric = cells.all_numbers and name not in categorical
        kind = roles.get(name) or ("numeric" if numeric else "categorical")
        suspect = identifiers and name not in categorical and identifier(sheet, name)
        if suspect and name not in roles:
            kind = "identifier"
        summaries.append(_column(sheet, name, kind, numeric, owners))
    return tuple(summaries)


def command(sheet: Sheet, path: str) -> tuple[str, str]:
    """Return the command that checks a table seen for the first time, and what is guessed in it."""
    domain = _guess(sheet, "sites", "") or "SITE"
    label = _guess(sheet, "labels", domain) or "LABEL"
    rest = [name for name in sheet.columns if name not in (domain, label)]
    together = next((name for name in rest if unit(sheet, name)), None)
    drop = [name for name in suspects(sheet, rest) if name != together]
    texts = [n for n in drop if looks_like_text(sheet, n) and not dates(sheet, n)]
    drop = [name for name in drop if name not in texts]
    options = [f"path={path!r}", f"site={domain!r}", f"label={label!r}"]
    options += [f"unit={together!r}"] if together else []
    options += [f"drop={drop!r}"] if drop else []
    options += [f"text={texts!r}"] if texts else []
    options += [f"encoding={sheet.dialect.encoding!r}"] if guessed_encoding(sheet) else []
    return f'unseen data check "table({", ".join(options)})"', _guesses(domain, label)


def _guesses(domain: str, label: str) -> str:
    if domain == "SITE" and label == "LABEL":
        return "write the columns of the sites and of the labels in place of SITE and LABEL"
    if domain == "SITE":
        return f"write the column of the sites in place of SITE; {label!r} is a guess by its name"
    if label == "LABEL":
        return (
            f"write the column of the labels in place of LABEL; {domain!r} is a guess by its name"
        )
    return f"{domain!r} and {label!r} are guesses by their names"


def survey(file: Path) -> Sheet:
    """Read a csv file of which nothing is known.

    One that is not in UTF-8 is read as Windows writes it, or else as latin-1, which takes any byte.
    """
    for encoding in (None, "cp1252"):
        with suppress(OtherEncoding):
            return read(file, encoding=encoding)
    return read(file, encoding="latin-1")


def guessed_encoding(sheet: Sheet) -> bool:
    """Return whether the encoding of a survey is a guess, which a data set must be given."""
    return sheet.dialect.encoding in ("cp1252", "latin-1")


def _guess(sheet: Sheet, usual: str, other: str) -> str | None:
    """The column called by one of the usual words, else the first with one in its name."""
    named = [name for name in sheet.columns if name != other and words(name) & WORDS[usual]]
    named.sort(key=lambda name: name.lower() not in WORDS[usual])
    return next((n for n in named if 1 < len(sheet.column(n).arrow) < len(sheet.lines)), None)


@dataclass(frozen=True)
class Owners:
    """The site of each row.

    Attributes:
        names: The sites.
        codes: The place of each row's site among them [N]; none where no column names the site.
    """

    names: tuple[str, ...] = ()
    codes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @classmethod
    def of(cls, sheet: Sheet, domain: str | None) -> Owners:
        if domain is None:
            return cls()
        names, codes = sheet.column(domain).levels
        if (codes < 0).any():
            names, codes = Cells.of([cell or "?" for cell in sheet.column(domain)]).levels
        return cls(names, codes)

    def counts(self, rows: NDArray[Any]) -> dict[str, int]:
        """Return how many of these rows each site has."""
        if not self.names:
            return {}
        counts = np.bincount(self.codes[rows], minlength=len(self.names)).tolist()
        return dict(zip(self.names, counts, strict=True))

    def means(self, rows: NDArray[np.bool_], values: NDArray[Any]) -> dict[str, float]:
        """Return the mean of the values [N] in these rows of each site that has any."""
        counts = self.counts(rows)
        if not counts:
            return {}
        sums = np.bincount(self.codes[rows], values[rows], len(self.names)).tolist()
        return {n: s / counts[n] for n, s in zip(self.names, sums, strict=True) if counts[n]}


def _column(sheet: Sheet, name: str, kind: str, numeric: bool, owners: Owners) -> Column:
    cells = sheet.column(name)
    there = ~cells.missing
    missing, values, sites, count = len(cells) - cells.present, "", "", len(owners.names)
    if not cells.present:
        return Column(name, "empty", f"{missing:,}", "", "", "leave it out")
    if kind == "text":
        lengths = cells.word_counts
        values = f"{lengths.min():,} to {lengths.max():,} words"
        means = owners.means(there, np.append(lengths, 0)[cells.codes])
        sites = _compared("mean", means, count, "{:.4g}")
    elif numeric and kind not in ("domain", "dropped"):
        values = f"{cells.values.min():.6g} to {cells.values.max():.6g}"
        if kind in ("numeric", "label"):
            sites = _compared("mean", owners.means(there, cells.numbers), count, "{:.4g}")
    if kind != "text" and (not numeric or kind in ("identifier", "categorical", "domain", "unit")):
        levels = cells.levels[0]
        first = ", ".join(map(_cut, levels[:LEVELS]))
        values = f"{len(levels):,} different: {first}{', ...' if levels[LEVELS:] else ''}"
        if kind in ("categorical", "group", "label") and count:
            pairs = np.unique(owners.codes[there] * len(cells.texts) + cells.codes[there])
            own = np.bincount(pairs // len(cells.texts), minlength=count).tolist()
            sites = _compared("levels", dict(zip(owners.names, own, strict=True)), count, "{:,}")
    shares = ""
    if missing:
        gaps, sizes = owners.counts(cells.missing), owners.counts(np.arange(len(cells)))
        parts = {site: gaps[site] / sizes[site] for site in gaps if sizes[site]}
        shares = _compared("", parts, count, "{:.0%}")
    text = f"{missing:,}" + (f" ({shares})" if shares else "")
    return Column(name, kind, text, values, sites, _remark(sheet, name, kind))


def _cut(level: str) -> str:
    return level if len(level) <= LETTERS else f"{level[: LETTERS - 1]}…"


def _remark(sheet: Sheet, name: str, kind: str) -> str:
    if kind not in ("numeric", "categorical", "identifier"):
        return ""
    suspect, cells = identifier(sheet, name), sheet.column(name)
    if unit(sheet, name):
        return f"repeats: unit={name!r}?" + (" else drop it" if suspect else "")
    if kind != "numeric" and dates(sheet, name):
        return f"looks like dates: drop=[{name!r}], or a number of days?"
    if kind != "numeric" and (measure := measured_in(sheet, name)):
        return f"{measure!r} behind each number: write it into the column's name"
    if suspect:
        return f"{suspect}: {'text' if looks_like_text(sheet, name) else 'drop'}=[{name!r}]?"
    if constant(sheet, name):
        return f"the same in every row: drop=[{name!r}]?"
    if kind == "numeric" and drowns(sheet, name):
        return "counts as constant: subtract an offset, such as a start"
    if kind == "categorical" and many_levels(sheet, name):
        return f"many values, listed in models: drop=[{name!r}], or text?"
    if kind == "numeric" and cells.any_matches(CODE):
        return f"zeros in front: codes? categorical=[{name!r}]"
    rows = cells.numbers if kind == "numeric" and len(sheet.lines) > MANY else np.zeros(2)
    if cells.present == len(cells) and (np.diff(rows) == 1).all():
        return "numbers the rows? drop it if so"
    return ""


def _compared(what: str, values: Mapping[str, float], sites: int, form: str) -> str:
    """A number of every site, each named if they are few, else their range."""
    if sites < 2 or not values:
        return ""
    low, high = form.format(min(values.values())), form.format(max(values.values()))
    every = len(values) == sites
    text = f"{low} to {high}"
    if low == high:
        text = f"{low} at each" if every else low
    elif sites <= FEW:
        text = ", ".join(f"{site} {form.format(value)}" for site, value in values.items())
    if not every:
        only = f" ({next(iter(values))})" if len(values) == 1 else ""
        text += f", at {len(values)} of {sites} sites{only}"
    return f"{what} {text}".strip()
