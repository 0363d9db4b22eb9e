"""How a csv file is written: its encoding, what separates its cells, its decimal sign."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unseen.errors import UnseenError, choice

#: What may separate cells, the usual one first; with their names for people.
SEPARATORS = {",": "','", ";": "';'", "\t": "'\\t' (a tab)", "|": "'|'"}
#: Marks at the start of a file, the longer first where one begins like another.
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_FORM = r"[+-]?(?:\d+{0}?\d*|{0}\d+)(?:[eE][+-]?\d+)?"
_NUMBER = {sign: re.compile(_FORM.format(re.escape(sign)), re.ASCII) for sign in ".,"}
#: A decimal comma, and nothing that could be thousands: 1,5 and 0,125, but not 1,234.
_SURE = re.compile(r"[+-]?(?:\d*,(?:\d{1,2}|\d{4,})|0\d*,\d+|\d{4,},\d+)", re.ASCII)
#: Numbers as people and programs write them, which a csv file cannot be sure to mean.
_ALMOST = re.compile(r"[+-]?(?:\d{1,3}(?:[ ,.'_]\d{3})+(?:[.,]\d+)?|\d*,\d+|0[xXoObB][0-9a-fA-F]+)")
#: Thousands and decimals, each with a sign of its own.
_GROUPED = re.compile(
    r"[+-]?\d{1,3}(?:(?:\.\d{3})+(?P<comma>,)|(?:,\d{3})+(?P<point>\.))\d+", re.ASCII
)


class OtherEncoding(UnseenError):
    """A text that is not in the encoding it was read in, and may be in one of single bytes."""


@dataclass(frozen=True)
class Dialect:
    """separator, decimal and encoding of a file; None where they are to be found in it."""

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.separator is not None and len(self.separator) != 1:
            raise UnseenError(
                f"separator must be one character, such as ';' or '\\t'; found {self.separator!r}."
            )
        if self.decimal is not None:
            choice("decimal", self.decimal, (".", ","))
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise UnseenError(
                    f"Python knows no encoding {self.encoding!r}; usual ones are 'utf-8', "
                    "'cp1252', 'latin-1' and 'utf-16'."
                ) from None

    def plain(self, cell: str) -> str:
        """A cell with the point as its decimal sign, if it is a number."""
        return cell.replace(",", ".") if self.decimal == "," and _is(cell, ",") else cell


def number(text: str, decimal: str | None = ".") -> float | None:
    """The number that a cell spells in ASCII digits, plain or scientific, or None.

    >>> number("1.5e3"), number("1_000"), number("0x10"), number("1,5", ","), number("1.5", ",")
    (1500.0, None, None, 1.5, None)
    """
    if decimal == ",":
        text = text.replace(",", ".") if "." not in text else "a point"
    try:
        value = float(text)  # which takes 1_000 and digits of every script, too
    except ValueError:
        return None
    return value if text.isascii() and "_" not in text else None


def almost(text: str) -> bool:
    """Whether somebody may have meant a number that `number` does not read.

    >>> [almost(text) for text in ("1_000", "1,234.5", "0x10", "１２", "1,5", "A12", "12")]
    [True, True, True, True, True, False, False]
    """
    if _is(text, "."):
        return False
    foreign = not text.isascii() and all(c.isdigit() or c in "+-." for c in text)
    return foreign or _ALMOST.fullmatch(text) is not None or _underscored(text)


def decode(content: bytes, encoding: str | None, where: Path) -> tuple[str, str | None]:
    """The text of a file and its encoding: that which is given, or UTF-8; None where a mark at its
    start says the encoding, which then counts alone."""
    mark, marked = next((m for m in MARKS if content.startswith(m[0])), (b"", None))
    used = marked or encoding or "utf-8"
    try:
        text = content[len(mark) :].decode(used)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        binary = content.startswith(b"PK") or b"\x00" in content[:2000]
        raise (UnseenError if binary or mark else OtherEncoding)(
            f"{where} is not {used.upper()}: line {line} holds the byte "
            f"0x{content[error.start]:02x}. {_likely(content, used)}"
        ) from None
    if "\x00" in text:
        raise UnseenError(f"{where} holds zero bytes as {used.upper()}. {_likely(content, used)}")
    return text, None if mark else used


def separator_of(text: str, needs: Sequence[str], where: Path) -> str:
    """What separates the cells of a file without being told: what finds most of `needs` in its
    header, so that one misspelt name hides no separator.

    A comma unless one other finds more. Without `needs`, what splits the header at all.
    """
    heads = {sign: header(text, sign) for sign in SEPARATORS}
    found = {sign: len({*needs} & {*head}) for sign, head in heads.items()}
    fits = [sign for sign in heads if found[sign] == max(found.values()) > 0]
    if fits and (fits[0] == "," or len(fits) == 1):
        return fits[0]
    likely = max(heads, key=lambda sign: len(heads[sign]))  # of equals the first
    if len(heads[","]) > 1 or likely == ",":
        return ","
    if not needs:
        return likely
    raise UnseenError(
        f"the header of {where} holds one column when split by ','; it looks separated by "
        f"{SEPARATORS[likely]}: write separator={likely!r} in table(...)."
    )


def decimal_of(columns: Iterable[Iterable[str]], separator: str) -> str:
    """The decimal sign of a file without being told, by its cells that are not missing.

    A comma where it cannot be anything else: commas separate no cells, no column of numbers has a
    decimal point, and some cell has a comma that sets no thousands apart.
    """
    if separator == ",":
        return "."
    sure = False
    for column in columns:
        cells = set(column)
        pointed = any("." in cell and _is(cell, ".") for cell in cells)
        if pointed and all(_is(cell, ".") or almost(cell) for cell in cells):
            return "."
        sure = sure or any("," in cell and _SURE.fullmatch(cell) for cell in cells)
    return "," if sure else "."


def settled(cells: Iterable[str]) -> str | None:
    """The decimal sign of some numbers, where only one is in use and can set no thousands apart.

    >>> settled(["1,5", "2"]), settled(["1.5", "-"]), settled(["1.234"]), settled(["1.5", "2,5"])
    (',', '.', None, None)
    """
    known = set(cells)
    used = [sign for sign in ".," if any(sign in cell and _is(cell, sign) for cell in known)]
    swapped = (cell.replace(".", ",") for cell in known)
    sure = len(used) == 1 and any("," in cell and _SURE.fullmatch(cell) for cell in swapped)
    return used[0] if sure else None


def ungrouped(cell: str) -> tuple[str, str] | None:
    """A number without the signs that set its thousands apart, and its decimal sign; or None.

    >>> ungrouped("2.338,17"), ungrouped("-1,234.5"), ungrouped("1,234")
    (('2338,17', ','), ('-1234.5', '.'), None)
    """
    found = _GROUPED.fullmatch(cell)
    if found is None:
        return None
    decimal = found["comma"] or found["point"]
    return cell.replace("." if decimal == "," else ",", ""), decimal


def header(text: str, separator: str) -> list[str]:
    """The cells of the first line that has any."""
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        return [cell.strip() for cell in next((row for row in reader if row), [])]
    except csv.Error:
        return []


def _is(text: str, decimal: str) -> bool:
    return _NUMBER[decimal].fullmatch(text) is not None


def _underscored(text: str) -> bool:
    return "_" in text and _is(text.replace("_", ""), ".")


def _likely(content: bytes, used: str) -> str:
    """What a file may be that is not in the encoding it was read in."""
    if content.startswith(b"PK"):
        return "It looks like an Excel workbook or another zip archive: save the sheet as csv."
    even, odd = content[0:2000:2].count(0), content[1:2000:2].count(0)
    if even or odd:
        name = "utf-16-le" if odd > even else "utf-16-be"
        return f"It looks like UTF-16 without a mark: write encoding={name!r} in table(...)."
    if used == "utf-8":
        return (
            "It is probably cp1252 (Windows) or latin-1: write encoding='cp1252' in table(...), or "
            "save it as UTF-8."
        )
    return "Name another encoding, such as 'utf-8', 'cp1252' or 'utf-16'."
