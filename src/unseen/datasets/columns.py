"""What the columns of a table look like by their cells and names; a summary for a first look."""

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from pydantic import TypeAdapter

from unseen.datasets.dialect import OtherEncoding, almost, number, ungrouped
from unseen.datasets.hashing import looks_like_text
from unseen.datasets.hashing import words as count_words
from unseen.datasets.sheet import Sheet, coded, read
from unseen.errors import UnseenError

#: More different values than this are many: below, a column may be anything.
MANY = 20
#: Words in the names of columns -> what such columns are: ids, units, sites, labels.
WORDS = TypeAdapter(dict[str, set[str]]).validate_python(
    tomllib.loads((resources.files("unseen.datasets") / "words.toml").read_text("utf-8"))
)
#: Sites up to which each is named; beyond, the range over all is said.
FEW = 5
#: Levels of a column that are shown, and letters of each.
LEVELS, LETTERS = 4, 14
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?", re.ASCII)


def identifier(sheet: Sheet, name: str) -> str | None:
    """Return why a column looks like an identifier of rows, or None.

    Note:
        Either words of which more than half of the rows have a different one each, or whole numbers
        that are different in every row, under a name such as `id`. Numbers of any other name may be
        measurements.
    """
    cells = sheet.present(name)
    values = set(cells)
    if len(values) <= MANY:
        return None
    if _texts(values, sheet.dialect.decimal):
        many = 2 * len(values) > len(cells)
        return f"{len(values):,} different texts in {len(cells):,} rows" if many else None
    if len(values) == len(cells) and named_id(name) and all(map(_WHOLE.fullmatch, values)):
        return f"{len(cells):,} whole numbers, all different"
    return None


def unit(sheet: Sheet, name: str) -> str | None:
    """Return why rows of a column's equal cells may belong together, or None.

    Note:
        It shows in the name, such as `patient` or `lesion_id`, and in values that occur more than
        once and are many.
    """
    if not (named_id(name) or words(name) & WORDS["units"]):
        return None
    cells = sheet.present(name)
    values = set(cells)
    repeat = MANY < len(values) < len(cells)
    if not repeat or any(number(v) is not None and not _WHOLE.fullmatch(v) for v in values):
        return None
    return f"{len(values):,} different values in {len(cells):,} rows"


def _texts(values: Collection[str], decimal: str | None) -> bool:
    """Whether half of the values or more are not numbers, whatever their decimal sign."""
    signs = {decimal, "."}
    spelt = [v for v in values if any(number(v, sign) is not None for sign in signs)]
    near_numbers = [v for v in {*values} - {*spelt} if "_" not in v and almost(v)]
    return 2 * (len(spelt) + len(near_numbers)) <= len(values)


def named_id(name: str) -> bool:
    """Return whether a column is named like an identifier.

    Example:
        >>> [named_id(n) for n in ("patient_id", "patientunitstayid", "age", "steroid")]
        [True, True, False, True]
    """
    return bool(words(name) & WORDS["ids"]) or (len(name) > 4 and name.lower().endswith("id"))


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
    decimal = sheet.dialect.decimal
    return {n: why for n, why in reasons.items() if _texts({*sheet.present(n)}, decimal)}


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
    if texts := [name for name in reasons if looks_like_text(sheet, name)]:
        hint += f" To have as features by their words: text={texts!r}."
    raise UnseenError(
        f"{listed} of {sheet.name} {looks}, which no other site shares.",
        remedy=f"To leave out: drop={[*reasons]!r}. To have as features: identifiers='keep', or "
        f"their names in categorical=[...].{hint}",
    )


def check_almost(sheet: Sheet, name: str) -> None:
    """Refuse a column without true words, in which some cells are nearly numbers: 1_000, 0x10."""
    texts = {cell for cell in sheet.present(name) if sheet.number(cell) is None}
    if not all(almost(text) or number(text) is not None for text in texts):
        return
    cells = zip(sheet.lines, sheet.columns[name], strict=True)
    line, cell = next((line, cell) for line, cell in cells if cell in texts)
    raise UnseenError(
        f"line {line} of {sheet.name} has {cell!r} in the column {name!r}, nearly a number:",
        remedy=f"{spelling_remedy(sheet, str(cell))}. If not a number, add it to 'categorical'.",
    )


def spelling_remedy(sheet: Sheet, cell: str) -> str:
    """Return how to write a cell that is nearly a number, or which decimal sign to set."""
    comma = sheet.dialect.decimal == ","
    if grouped := ungrouped(cell):
        plain, sign = grouped
        wrong = sign != sheet.dialect.decimal
        return f"write it without thousands, {plain}" + (f", and set decimal={sign!r}" * wrong)
    if comma and number(cell) is not None:
        return "write it with a decimal comma and no thousands, or set decimal='.'"
    if comma or cell.count(",") != 1 or "." in cell:
        sign = "comma" if comma else "point"
        return f"write it in plain digits, with a {sign} for decimals"
    numeric = (name for name in sheet.columns if None not in map(number, sheet.present(name)))
    other = next((name for name in numeric if any("." in c for c in sheet.present(name))), None)
    if other is not None:
        return f"write it with a decimal point, as in the column {other!r}, or all with decimal=','"
    return "if that is a decimal comma, write decimal=','; if not, write it in plain digits"


#: Site -> its cells of a column.
BySite = Mapping[str, list[str | None]]


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
    owners = [] if domain is None else [cell or "?" for cell in sheet.plain(domain)]
    sites, codes = coded(owners)
    summaries = []
    for name in sheet.columns:
        numeric = all(sheet.number(cell) is not None for cell in sheet.present(name))
        numeric = numeric and name not in categorical
        kind = roles.get(name) or ("numeric" if numeric else "categorical")
        suspect = identifiers and name not in categorical and identifier(sheet, name)
        if suspect and name not in roles:
            kind = "identifier"
        by_site: dict[str, list[str | None]] = {site: [] for site in sites}
        for cell, code in zip(sheet.plain(name), codes.tolist(), strict=bool(owners)):
            by_site[sites[code]].append(cell)
        summaries.append(_column(sheet, name, kind, numeric, by_site))
    return tuple(summaries)


def command(sheet: Sheet, path: str) -> tuple[str, str]:
    """Return the command that checks a table seen for the first time, and what is guessed in it."""
    domain = _guess(sheet, "sites", "") or "SITE"
    label = _guess(sheet, "labels", domain) or "LABEL"
    rest = [name for name in sheet.columns if name not in (domain, label)]
    together = next((name for name in rest if unit(sheet, name)), None)
    drop = [name for name in suspects(sheet, rest) if name != together]
    texts = [name for name in drop if looks_like_text(sheet, name)]
    drop = [name for name in drop if name not in texts]
    options = [f"path={path!r}", f"domain={domain!r}", f"label={label!r}"]
    options += [f"unit={together!r}"] if together else []
    options += [f"drop={drop!r}"] if drop else []
    options += [f"text={texts!r}"] if texts else []
    options += [f"encoding={sheet.dialect.encoding!r}"] if guessed_encoding(sheet) else []
    guess = f"{domain!r} and {label!r} are guesses by their names"
    if domain == "SITE" or label == "LABEL":
        guess = "write the columns of the sites and of the labels in place of SITE and LABEL"
    return f'unseen data check "table({", ".join(options)})"', guess


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
    for name in sheet.columns:
        values = {*sheet.present(name)}
        if name != other and words(name) & WORDS[usual] and 1 < len(values) < len(sheet.lines):
            return name
    return None


def _column(sheet: Sheet, name: str, kind: str, numeric: bool, by_site: BySite) -> Column:
    present = [sheet.dialect.plain(cell) for cell in sheet.present(name)]
    missing, values, sites = len(sheet.lines) - len(present), "", ""
    if not present:
        return Column(name, "empty", f"{missing:,}", "", "", "leave it out")
    if kind == "text":
        lengths = {s: [count_words(c) for c in cells if c] for s, cells in by_site.items()}
        every = [count for own in lengths.values() for count in own]
        values = f"{min(every):,} to {max(every):,} words"
        means = {site: fmean(own) for site, own in lengths.items() if own}
        sites = _compared("mean", means, len(by_site), "{:.4g}")
    elif numeric and kind not in ("domain", "dropped"):
        numbers = [float(cell) for cell in present]
        values = f"{min(numbers):.6g} to {max(numbers):.6g}"
        if kind in ("numeric", "label"):
            own = {s: [float(c) for c in cells if c is not None] for s, cells in by_site.items()}
            means = {site: fmean(cells) for site, cells in own.items() if cells}
            sites = _compared("mean", means, len(by_site), "{:.4g}")
    if kind != "text" and (not numeric or kind in ("identifier", "categorical", "domain", "unit")):
        levels = coded(present)[0]
        first = ", ".join(level[:LETTERS] for level in levels[:LEVELS])
        values = f"{len(levels):,} different: {first}{', ...' if levels[LEVELS:] else ''}"
        if kind in ("categorical", "group", "label"):
            counts = {site: len({*cells} - {None}) for site, cells in by_site.items()}
            sites = _compared("levels", counts, len(by_site), "{:,}")
    parts = {s: cells.count(None) / len(cells) for s, cells in by_site.items() if cells}
    shares = _compared("", parts, len(by_site), "{:.0%}") if missing else ""
    gaps = f"{missing:,}" + (f" ({shares})" if shares else "")
    return Column(name, kind, gaps, values, sites, _remark(sheet, name, kind))


def _remark(sheet: Sheet, name: str, kind: str) -> str:
    if kind not in ("numeric", "categorical", "identifier"):
        return ""
    suspect = identifier(sheet, name)
    if unit(sheet, name):
        return f"repeats: unit={name!r}?" + (" else drop it" if suspect else "")
    if suspect:
        return f"{suspect}: {'text' if looks_like_text(sheet, name) else 'drop'}=[{name!r}]?"
    if kind == "numeric" and len(sheet.lines) > MANY:
        numbers = [float(cell) for cell in sheet.plain(name) if cell is not None]
        if len(numbers) == len(sheet.lines) and all(b == a + 1 for a, b in pairwise(numbers)):
            return "numbers the rows? drop it if so"
    return ""


def _compared(what: str, values: Mapping[str, float], sites: int, form: str) -> str:
    """A number of every site, each named if they are few, else their range."""
    if sites < 2 or not values:
        return ""
    low, high = form.format(min(values.values())), form.format(max(values.values()))
    text = f"{low} to {high}"
    if low == high:
        text = f"{low} at each"
    elif sites <= FEW:
        text = ", ".join(f"{site} {form.format(value)}" for site, value in values.items())
    return f"{what} {text}".strip()
