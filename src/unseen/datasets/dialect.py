"""How a csv file is written: its encoding, what separates its cells, its decimal sign."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from unseen.errors import UnseenError, choice

#: What may separate cells, the usual one first, each as messages spell it.
SEPARATORS = {",": "','", ";": "';'", "\t": "'\\t' (a tab)", "|": "'|'"}
#: Marks at the start of a file, the longer first where one begins like another.
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
#: What a packed file that is cut short or damaged raises.
BROKEN = (OSError, EOFError, zlib.error)
#: Characters at the start of a file that decide about its separator and its decimal sign.
START = 1 << 20
_FORM = r"[+-]?(?:\d+{0}?\d*|{0}\d+)(?:[eE][+-]?\d+)?"
_NUMBER = {sign: re.compile(_FORM.format(re.escape(sign)), re.ASCII) for sign in ".,"}
#: A decimal comma, and nothing that could be thousands: 1,5 and 0,125, but not 1,234.
_SURE = re.compile(r"[+-]?(?:\d*,(?:\d{1,2}|\d{4,})|0\d*,\d+|\d{4,},\d+)", re.ASCII)
#: Spellings of numbers that a cell may use and not mean.
_ALMOST = re.compile(r"[+-]?(?:\d{1,3}(?:[ ,.'_]\d{3})+(?:[.,]\d+)?|\d*,\d+|0[xXoObB][0-9a-fA-F]+)")
#: Thousands and decimals, with a different sign for each.
_GROUPED = re.compile(
    r"[+-]?\d{1,3}(?:(?:\.\d{3})+(?P<comma>,)|(?:,\d{3})+(?P<point>\.))\d+", re.ASCII
)


class OtherEncoding(UnseenError):
    """A text that is not in the encoding it was read in, and may be in a single-byte one."""


@dataclass(frozen=True)
class Dialect:
    """Separator, decimal sign and encoding of a file; None where the file is to show them."""

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

    def number(self, cell: str) -> float | None:
        """Return the number that a cell spells in this file, or None."""
        return number(cell, self.decimal)

    def plain(self, cell: str) -> str:
        """Return the cell, with a decimal point if it is a number."""
        return cell.replace(",", ".") if self.decimal == "," and _is(cell, ",") else cell


def number(text: str, decimal: str | None = ".") -> float | None:
    """Return the number that a cell spells in ASCII digits, plain or scientific, or None.

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
    """Return whether a cell may be meant as a number that `number` does not read.

    >>> [almost(text) for text in ("1_000", "1,234.5", "0x10", "１２", "1,5", "A12", "12")]
    [True, True, True, True, True, False, False]
    """
    if _is(text, "."):
        return False
    foreign = not text.isascii() and all(c.isdigit() or c in "+-." for c in text)
    return foreign or _ALMOST.fullmatch(text) is not None or _underscored(text)


def open_binary(path: Path) -> BinaryIO:
    """Open a file for reading bytes, unpacked if its name ends in .gz."""
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def open_text(path: Path, encoding: str, errors: str = "strict") -> io.TextIOWrapper:
    """Open a file for reading text, unpacked if its name ends in .gz; lines keep their ends."""
    return io.TextIOWrapper(open_binary(path), encoding, errors, newline="")


def decode(content: bytes, encoding: str | None, where: Path) -> tuple[str, str | None]:
    """Decode the content of a file.

    Args:
        content: The bytes.
        encoding: The encoding to read in; None: UTF-8. A mark at the start of the file overrules
            it.
        where: The file, as errors name it.

    Returns:
        The text and its encoding; None as encoding where a mark says it.
    """
    mark, marked = next((m for m in MARKS if content.startswith(m[0])), (b"", None))
    used = marked or encoding or "utf-8"
    try:
        text = content[len(mark) :].decode(used)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        binary = content.startswith(b"PK") or b"\x00" in content[:2000]
        raise (UnseenError if binary or mark else OtherEncoding)(
            f"{where} is not {used.upper()}: line {line} holds the byte "
            f"0x{content[error.start]:02x}.",
            remedy=_likely(content, used),
        ) from None
    if "\x00" in text:
        raise UnseenError(
            f"{where} holds zero bytes as {used.upper()}.", remedy=_likely(content, used)
        )
    return text, None if mark else used


def separator_of(text: str, needs: Sequence[str], where: Path) -> str:
    """Return what separates the cells of a file that nobody has said it of.

    A comma, unless exactly one other separator finds more of the needed columns in the header, so
    that one misspelt name hides no separator. Without needed columns: what splits the header.

    Args:
        text: The content of the file.
        needs: Columns that the file must have.
        where: The file, as errors name it.
    """
    heads = {sign: header(text, sign) for sign in SEPARATORS}
    matches = {sign: len({*needs} & {*head}) for sign, head in heads.items()}
    fits = [sign for sign in heads if matches[sign] == max(matches.values()) > 0]
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
    """Return the decimal sign of a file, by the cells of its columns that are not missing.

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
    """Return the decimal sign of some numbers, if only one is used and it sets no thousands apart.

    >>> settled(["1,5", "2"]), settled(["1.5", "-"]), settled(["1.234"]), settled(["1.5", "2,5"])
    (',', '.', None, None)
    """
    distinct = set(cells)
    used = [sign for sign in ".," if any(sign in cell and _is(cell, sign) for cell in distinct)]
    swapped = (cell.replace(".", ",") for cell in distinct)
    sure = len(used) == 1 and any("," in cell and _SURE.fullmatch(cell) for cell in swapped)
    return used[0] if sure else None


def dialect_like(
    path: Path, columns: Sequence[str], numeric: Collection[str | None], usual: Dialect
) -> Dialect:
    """Return how a file of new rows is written; what it does not show is as in training.

    The separator is the training file's unless another one finds more of the model's columns in
    the header.

    Args:
        path: The file.
        columns: The columns that the model reads.
        numeric: Those of numbers, by which the decimal sign shows.
        usual: How the training file was written.
    """
    encoding = _encoding_like(path, usual)
    with open_text(path, encoding, "surrogateescape") as file:
        start = "".join(_first_lines(file))
    signs = (usual.separator or ",", *SEPARATORS)
    matches = {sign: len({*columns} & {*header(start, sign)}) for sign in signs}
    separator = max(matches, key=lambda sign: matches[sign])  # of equals the first
    rows = csv.reader(io.StringIO(start, newline=""), delimiter=separator)
    places = [i for i, name in enumerate(next(rows, [])) if name.strip() in numeric]
    cells = {row[i].strip() for row in rows for i in places if i < len(row)}
    return Dialect(separator, settled(cells) or usual.decimal, encoding)


def _encoding_like(path: Path, usual: Dialect) -> str:
    """The encoding that a file's mark says, or UTF-8 if it is that; else the training file's, if
    that one had no mark."""
    with open_binary(path) as file:
        start = file.read(4)
    marked = next((name for mark, name in MARKS if start.startswith(mark)), None)
    if marked is not None:  # the codecs that pass the mark over
        return "utf-8-sig" if marked == "utf-8" else marked[:6]
    encoding = usual.encoding or "utf-8"
    return "utf-8" if encoding == "utf-8" or _is_utf8(path) else encoding


def _is_utf8(path: Path) -> bool:
    try:
        with open_text(path, "utf-8") as file:
            return all("\x00" not in block for block in iter(lambda: file.read(START), ""))
    except UnicodeDecodeError:
        return False
    except BROKEN:
        return True  # cut short: so far it was


def _first_lines(file: Iterable[str]) -> Iterator[str]:
    """The first lines of a file; of one that is cut short those before the cut."""
    size = 0
    with suppress(*BROKEN):
        for line in file:
            yield line
            size += len(line)
            if size > START:
                return


def ungrouped(cell: str) -> tuple[str, str] | None:
    """Return a number without the signs that set its thousands apart, and its decimal sign.

    None where the cell has no such signs.

    >>> ungrouped("2.338,17"), ungrouped("-1,234.5"), ungrouped("1,234")
    (('2338,17', ','), ('-1234.5', '.'), None)
    """
    match = _GROUPED.fullmatch(cell)
    if match is None:
        return None
    decimal = match["comma"] or match["point"]
    return cell.replace("." if decimal == "," else ",", ""), decimal


def header(text: str, separator: str) -> list[str]:
    """Return the cells of the first line that has any."""
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
