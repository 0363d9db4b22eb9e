"""How a csv file is written: its encoding, what separates its cells, its decimal sign."""

import codecs
import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from unseen.data.tables.spellings import without_marks
from unseen.errors import UnseenError, choice

#: What may separate cells, the usual one first, each as messages spell it.
SEPARATORS = {",": "','", ";": "';'", "\t": "'\\t' (a tab)", "|": "'|'"}
#: Marks at the start of a file, the longer first, and the codecs that pass them over.
MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
#: What a packed file that is cut short or damaged raises.
BROKEN = (OSError, EOFError, zlib.error)
#: Characters at the start of a file that decide about its separator and its decimal sign.
START = 1 << 20
#: The length of a cell: a letter, a sequence or a picture may be longer than csv's own 131,072.
csv.field_size_limit(2**31 - 1)
#: A decimal comma, and nothing that could be thousands: 1,5, 0,125 and 6,125E+01, but not 1,234.
SURE = re.compile(
    r"[+-]?(?:\d*,(?:\d{1,2}|\d{4,})|0\d*,\d+|\d{4,},\d+|\d+,\d+(?=[eE]))(?:[eE][+-]?\d+)?",
    re.ASCII,
)
#: Spellings of numbers that a cell may use and not mean.
_ALMOST = re.compile(
    r"[+-]?(?:\d{1,3}(?:[ \u00a0\u2009\u202f,.'\u2019_]\d{3})+(?:[.,]\d+)?|\d*,\d+(?:[eE][+-]?\d+)?"
    r"|0[xXoObB][0-9a-fA-F]+)"
)
#: A first line by which Excel knows the separator.
_SAYS = re.compile(r"\ufeff?\"?sep=([^\r\n\"])\"?(?:\r\n?|\n|$)", re.IGNORECASE)
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
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError:
            raise UnseenError(
                f"Python knows no encoding {self.encoding!r}; usual: 'utf-8', 'cp1252', 'utf-16'."
            ) from None

    def number(self, cell: str) -> float | None:
        return number(cell, self.decimal)

    def finite(self, cell: str) -> float | None:
        """Return the finite number that a cell spells, or None."""
        value = self.number(cell)
        return value if value is not None and math.isfinite(value) else None

    def plain(self, cell: str) -> str:
        """Return the cell, with a decimal point if it is a number."""
        comma = self.decimal == "," and self.number(cell) is not None
        return cell.replace(",", ".") if comma else cell


def number(text: str, decimal: str | None = ".") -> float | None:
    """Return the number that a cell spells in ASCII digits, plain or scientific, or None.

    Example:
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

    Example:
        >>> [almost(text) for text in ("1_000", "1,234.5", "0x10", "１２", "1,5", "A12", "12")]
        [True, True, True, True, True, False, False]
        >>> [almost(text) for text in ("\u22121.5", "6,1E+01", "'12", "-$12.50", "$", "-")]
        [True, True, True, True, False, False]
    """
    if number(text) is not None:
        return False
    if (plain := without_marks(text)) != text:
        return plain[-1:].isdigit() and (number(plain) is not None or almost(plain))
    foreign = not text.isascii() and all(c.isdigit() or c in "+-." for c in text)
    underscored = number(text.replace("_", "")) is not None
    return foreign or underscored or _ALMOST.fullmatch(text) is not None


def ungrouped(cell: str) -> tuple[str, str] | None:
    """Return a number without the signs that set its thousands apart, and its decimal sign.

    Returns:
        None where the cell has no such signs.

    Example:
        >>> ungrouped("2.338,17"), ungrouped("-1,234.5"), ungrouped("1,234")
        (('2338,17', ','), ('-1234.5', '.'), None)
    """
    match = _GROUPED.fullmatch(cell)
    if match is None:
        return None
    decimal = match["comma"] or match["point"]
    return cell.replace("." if decimal == "," else ",", ""), decimal


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
    mark = _marked(content)
    codec = mark or encoding or "utf-8"
    name = codec.upper().removesuffix("-SIG")
    try:
        text = content.decode(codec)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        binary = content.startswith(b"PK") or b"\x00" in content[:2000]
        raise (UnseenError if binary or mark else OtherEncoding)(
            f"{where} is not {name}: line {line} holds the byte 0x{content[error.start]:02x}.",
            remedy=_likely(content, name),
        ) from None
    if "\x00" in text:
        raise UnseenError(f"{where} holds zero bytes as {name}.", remedy=_likely(content, name))
    return text, None if mark else codec


def _marked(content: bytes) -> str | None:
    return next((codec for mark, codec in MARKS.items() if content.startswith(mark)), None)


def _likely(content: bytes, name: str) -> str:
    if content.startswith(b"PK"):
        return "It looks like an Excel workbook or another zip archive: save the sheet as csv."
    even, odd = content[0:2000:2].count(0), content[1:2000:2].count(0)
    if even or odd:
        utf_16 = "utf-16-le" if odd > even else "utf-16-be"
        return f"It looks like UTF-16 without a mark: write {option('encoding', utf_16)}."
    if name == "UTF-8":
        return f"It is probably cp1252 or latin-1: write {option('encoding', 'cp1252')}."
    return "Name another encoding, such as 'utf-8', 'cp1252' or 'utf-16'."


def option(name: str, value: str) -> str:
    """Return how an option of a table's file is set, in an expression and behind a file's name."""
    plain = value if value.isprintable() else ascii(value)[1:-1]
    argument = f"{name}={plain}" if plain[:1].isalnum() else f"'{name}={plain}'"
    return f"{name}={value!r} in table(...), or {argument} behind the file in `unseen choose`"


def said_separator(text: str) -> str | None:
    """Return the separator that a first line such as `sep=;` says, as Excel reads it, or None.

    Example:
        >>> said_separator("sep=;\\r\\nsite;age\\r\\n"), said_separator("site;age\\n")
        (';', None)
    """
    match = _SAYS.match(text)
    return match[1] if match else None


def says_separator(row: Sequence[str], separator: str) -> bool:
    """Return whether the first cells of a file are such a line, whatever separates cells."""
    line = separator.join(row)
    alone = len(row) == 1 and said_separator(line) is not None
    return alone or line.lower() == f"sep={separator}"


def header(text: str, separator: str) -> list[str]:
    """Return the cells of the first line that has any."""
    try:
        reader = csv.reader(io.StringIO(text[:START], newline=""), delimiter=separator)
        return [cell.strip() for cell in next(filter(None, reader), [])]
    except csv.Error:
        return []


def separator_of(text: str, needs: Sequence[str], where: Path) -> str:
    """Return what separates the cells of a file that nobody has said it of.

    Args:
        text: The content of the file.
        needs: Columns that the file must have.
        where: The file, as errors name it.

    Returns:
        A comma, unless exactly one other separator finds more of the needed columns in the header,
        so that one misspelt name hides no separator. Without needed columns: what splits the
        header.
    """
    if (sign := said_separator(text)) is not None:
        return sign
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
    what = f"the header of {where} holds one column when split by ','"
    remedy = f"Write {option('separator', likely)}."
    raise UnseenError(f"{what}; it looks separated by {SEPARATORS[likely]}.", remedy=remedy)


def plain_decimal(cells: Collection[str]) -> str | None:
    """Return the decimal sign of some numbers, if only one is used and it sets no thousands apart.

    Example:
        >>> [plain_decimal(cells) for cells in (["1,5"], ["1.5", "-"], ["1.234"], ["1.5", "2,5"])]
        [',', '.', None, None]
    """
    signs = [s for s in ".," if any(s in cell and number(cell, s) is not None for cell in cells)]
    sure = any(SURE.fullmatch(cell.replace(".", ",")) for cell in cells)
    return signs[0] if sure and len(signs) == 1 else None


def dialect_like(
    path: Path, columns: Sequence[str], numeric: Collection[str | None], usual: Dialect
) -> Dialect:
    """Return how a file of new rows is written; what it does not show is as in training.

    Args:
        path: The file.
        columns: The columns that the model reads.
        numeric: Those of numbers, by which the decimal sign shows.
        usual: How the training file was written.

    Returns:
        The encoding that the file's mark says, or UTF-8 if it is that, else the training file's;
        the training file's separator unless another one finds more of the model's columns in the
        header.
    """
    with open_binary(path) as file:
        encoding = _marked(file.read(4))
    if encoding is None:
        encoding = usual.encoding if usual.encoding and not _is_utf8(path) else "utf-8"
    lines, size = [], 0
    with open_text(path, encoding, "surrogateescape") as text, suppress(*BROKEN):
        while size <= START and (line := text.readline()):  # of a file cut short up to the cut
            lines.append(line)
            size += len(line)
    start = "".join(lines)
    signs = (usual.separator or ",", *SEPARATORS)
    if (sign := said_separator(start)) is not None:
        start, signs = start.partition("\n")[2], (sign,)
    matches = {sign: len({*columns} & {*header(start, sign)}) for sign in signs}
    separator = max(matches, key=lambda sign: matches[sign])  # of equals the first
    rows = csv.reader(io.StringIO(start, newline=""), delimiter=separator)
    places = [i for i, name in enumerate(next(rows, [])) if name.strip() in numeric]
    cells = (row[i].strip() for row in rows for i in places if i < len(row))
    if separator == "," and '"' not in start:  # no cell has a comma
        sign = "." if any(SURE.fullmatch(cell.replace(".", ",")) for cell in cells) else None
    else:
        sign = plain_decimal({*cells})
    return Dialect(separator, sign or usual.decimal, encoding)


def _is_utf8(path: Path) -> bool:
    try:
        with open_text(path, "utf-8") as file:
            return all("\x00" not in block for block in iter(lambda: file.read(START), ""))
    except UnicodeDecodeError:
        return False
    except BROKEN:
        return True  # cut short: so far it was
