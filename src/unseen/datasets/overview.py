"""A summary of a table's columns, for a first look at it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from unseen.datasets import columns as rules
from unseen.datasets.delimited import opened
from unseen.datasets.dialect import OtherEncoding
from unseen.datasets.sheet import Sheet, coded

#: Sites up to which each is named; beyond, the range over all is said.
FEW = 5
#: Levels of a column that are shown, and letters of each.
LEVELS, WORD = 4, 14
#: Names of columns that a site or a label usually has.
SITES = {
    "site", "hospital", "centre", "center", "domain", "country", "region", "clinic", "institution",
    "dataset", "camera", "city", "location", "source", "state", "school",
}  # fmt: skip
LABELS = {
    "label", "target", "outcome", "died", "death", "class", "y", "diagnosis", "status", "event",
    "mortality", "survived", "result",
}  # fmt: skip


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
    categorical: Sequence[str] | None = None,
    identifiers: bool = True,
) -> tuple[Column, ...]:
    """Summarise all columns, in their order.

    Args:
        sheet: The table.
        roles: Column -> what it is if not a feature.
        domain: The column of sites, where it is known.
        categorical: As the data set has it.
        identifiers: Whether to name features that look like identifiers so.
    """
    owners = None if domain is None else [cell or "?" for cell in sheet.plain(domain)]
    summaries = []
    for name in sheet.columns:
        numeric = all(sheet.number(c) is not None for c in sheet.columns[name] if c is not None)
        declared = categorical is not None and name in categorical
        suspect = rules.identifier(sheet, name) if identifiers and not declared else None
        kind = roles.get(name) or ("identifier" if suspect else "")
        kind = kind or ("categorical" if declared or not numeric else "numeric")
        summaries.append(_column(sheet, name, kind, numeric and not declared, owners))
    return tuple(summaries)


def command(sheet: Sheet, path: str) -> tuple[str, str]:
    """Return the command that checks a table seen for the first time, and what is guessed in it."""
    domain = _guess(sheet, SITES, ()) or "SITE"
    label = _guess(sheet, LABELS, (domain,)) or "LABEL"
    rest = [name for name in sheet.columns if name not in (domain, label)]
    unit = next((name for name in rest if rules.unit(sheet, name)), None)
    drop = [name for name in rules.suspects(sheet, rest) if name != unit]
    options = [f"path={path!r}", f"domain={domain!r}", f"label={label!r}"]
    options += [f"unit={unit!r}"] if unit else []
    options += [f"drop={drop!r}"] if drop else []
    options += [f"encoding={sheet.dialect.encoding!r}"] if guessed_encoding(sheet) else []
    return f'unseen data check "table({", ".join(options)})"', _guessed(domain, label)


def survey(file: Path) -> Sheet:
    """Read a csv file of which nothing is known.

    One that is not in UTF-8 is read as Windows writes it, or else as latin-1, which takes any byte.
    """
    for encoding in (None, "cp1252"):
        with suppress(OtherEncoding):
            return opened(file, (), encoding=encoding)
    return opened(file, (), encoding="latin-1")


def guessed_encoding(sheet: Sheet) -> bool:
    """Return whether the encoding of a survey is a guess, which a data set must be given."""
    return sheet.dialect.encoding in ("cp1252", "latin-1")


def _guess(sheet: Sheet, usual: set[str], taken: Sequence[str]) -> str | None:
    """The first column with a usual name and several values that repeat."""
    for name in sheet.columns:
        values = {cell for cell in sheet.columns[name] if cell is not None}
        if name not in taken and rules.words(name) & usual and 1 < len(values) < len(sheet.lines):
            return name
    return None


def _guessed(domain: str, label: str) -> str:
    if domain == "SITE" or label == "LABEL":
        return "write the columns of the sites and of the labels in place of SITE and LABEL"
    return f"{domain!r} and {label!r} are guesses by their names"


def _column(
    sheet: Sheet, name: str, kind: str, numeric: bool, owners: Sequence[str] | None
) -> Column:
    cells = sheet.plain(name)
    groups = _grouped(cells, owners)
    present = [cell for cell in cells if cell is not None]
    gaps, values, sites = len(cells) - len(present), "", ""
    if not present:
        return Column(name, "empty", f"{gaps:,}", "", "", "leave it out")
    if numeric and kind not in ("domain", "dropped"):
        numbers = [float(cell) for cell in present]
        values = f"{min(numbers):.6g} to {max(numbers):.6g}"
        if kind in ("numeric", "label"):
            sites = _by_site("mean", groups, _mean, "{:.4g}")
    if kind == "identifier" or not numeric or kind in ("categorical", "domain", "unit"):
        levels = coded(present)[0]
        shown = ", ".join(level[:WORD] for level in levels[:LEVELS])
        values = f"{len(levels):,} different: {shown}{', ...' if levels[LEVELS:] else ''}"
        if kind in ("categorical", "group", "label"):
            sites = _by_site("levels", groups, lambda own: len({*own}), "{:,}")
    missing = _by_site("", _grouped(cells, owners, all_of=True), _gaps, "{:.0%}") if gaps else ""
    missing_cells = f"{gaps:,}" + (f" ({missing})" if missing else "")
    return Column(name, kind, missing_cells, values, sites, _remark(sheet, name, kind))


def _remark(sheet: Sheet, name: str, kind: str) -> str:
    if kind not in ("numeric", "categorical", "identifier"):
        return ""
    together, suspect = rules.unit(sheet, name), rules.identifier(sheet, name)
    if together:
        return f"repeats: unit={name!r}? else drop it" if suspect else f"repeats: unit={name!r}?"
    if suspect:
        return f"{suspect}: drop=[{name!r}]?"
    if kind == "numeric" and len(sheet.lines) > rules.MANY and _sequence(sheet, name):
        return "numbers the rows? drop it if so"
    return ""


def _sequence(sheet: Sheet, name: str) -> bool:
    """Whether the cells are whole numbers that each follow the one before."""
    numbers = [sheet.number(cell) if cell is not None else None for cell in sheet.columns[name]]
    pairs = pairwise(numbers)
    return all(a is not None and b is not None and b == a + 1 for a, b in pairs)


def _grouped(
    cells: Sequence[str | None], owners: Sequence[str] | None, all_of: bool = False
) -> dict[str, list[str | None]]:
    """The cells of each site, those that are known or all."""
    if owners is None:
        return {}
    groups: dict[str, list[str | None]] = {owner: [] for owner in coded(owners)[0]}
    spelt = dict(zip(owners, (coded([owner])[0][0] for owner in owners), strict=True))
    for cell, owner in zip(cells, owners, strict=True):
        if all_of or cell is not None:
            groups.setdefault(spelt[owner], []).append(cell)
    return groups


def _by_site(
    what: str,
    groups: Mapping[str, list[str | None]],
    measure: Callable[[list[str | None]], float],
    form: str,
) -> str:
    """A number of every site, each named if they are few, else their range."""
    values = {name: measure(own) for name, own in groups.items()}
    defined = {name: value for name, value in values.items() if not math.isnan(value)}
    if len(values) < 2 or not defined:
        return ""
    low, high = form.format(min(defined.values())), form.format(max(defined.values()))
    if low == high:
        return f"{what} {low} at each".strip()
    if len(values) > FEW:
        return f"{what} {low} to {high}".strip()
    each = ", ".join(f"{name} {form.format(value)}" for name, value in defined.items())
    return f"{what} {each}".strip()


def _mean(own: Sequence[str | None]) -> float:
    return math.fsum(float(c) for c in own if c is not None) / len(own) if own else math.nan


def _gaps(own: Sequence[str | None]) -> float:
    return sum(cell is None for cell in own) / len(own) if own else math.nan
