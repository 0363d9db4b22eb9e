"""The cells of a column: every different text once, what it stands for, and a code for each row."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, cached_property
from typing import Any, overload

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from unseen.data.tables.dialect import SURE, almost, number
from unseen.data.tables.spellings import words

#: Numbers that pyarrow reads as Python does; others, and words, are looked at one by one.
_USUAL = r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
#: So few texts are read one by one in less time than pyarrow needs to begin.
FEW = 16


@dataclass(frozen=True, eq=False)
class Cells(Sequence[str | None]):
    """The cells of a column, as a sequence of texts in which None is missing.

    Every check of a column looks at its different texts, and so at each text once.

    Attributes:
        arrow: The different texts [U], a string array in the order in which they first occur.
        codes: The place of each row's text among them [N], -1 where it is missing.
        decimal: The decimal sign of the numbers.
    """

    arrow: Any
    codes: NDArray[np.int32]
    decimal: str | None = field(default=".")

    @classmethod
    def of(cls, cells: Sequence[str | None], decimal: str | None = ".") -> Cells:
        """Return the cells of a list of texts.

        Example:
            >>> cells = Cells.of(["b", None, "1.5", "b"])
            >>> cells.texts, cells.codes.tolist(), cells.numbers.tolist()[2]
            (['b', '1.5'], [0, -1, 1, 0], 1.5)
        """
        try:
            texts = pyarrow.array(cells, pyarrow.string())
        except UnicodeEncodeError:  # half of a character, which no file but JSON may hold
            plain = [cell and cell.encode("utf-8", "replace").decode() for cell in cells]
            texts = pyarrow.array(plain, pyarrow.string())
        return cls.encoded(texts.dictionary_encode(), decimal)

    @classmethod
    def encoded(cls, encoded: Any, decimal: str | None = ".") -> Cells:
        """Return the cells of a dictionary array of texts, null where missing."""
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return cls(encoded.dictionary, codes.astype(np.int32), decimal)

    @classmethod
    def repeated(cls, text: str, rows: int) -> Cells:
        """Return a column of one text in every row."""
        return cls(
            pyarrow.array([text][: min(1, rows)], pyarrow.string()), np.zeros(rows, np.int32)
        )

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, place: int) -> str | None: ...
    @overload
    def __getitem__(self, place: slice) -> list[str | None]: ...
    def __getitem__(self, place: int | slice) -> str | list[str | None] | None:
        if isinstance(place, slice):
            return [self._text(code) for code in self.codes[place].tolist()]
        return self._text(int(self.codes[place]))

    def __iter__(self) -> Iterator[str | None]:
        return map([*self.texts, None].__getitem__, self.codes.tolist())

    def _text(self, code: int) -> str | None:
        return None if code < 0 else self.texts[code]

    def take(self, rows: Sequence[int] | NDArray[Any]) -> Cells:
        """Return the cells of some rows."""
        return self._with(self.codes[np.asarray(rows, dtype=np.int64)])

    def _with(self, codes: NDArray[np.int32]) -> Cells:
        """Return these codes' cells, with the texts that still occur."""
        used, first = np.unique(codes, return_index=True)
        used = used[np.argsort(first)][used[np.argsort(first)] >= 0]
        place = np.full(len(self.arrow) + 1, -1, dtype=np.int32)
        place[used] = np.arange(len(used))
        return Cells(self.arrow.take(pyarrow.array(used)), place[codes], self.decimal)

    def without(self, missing: Collection[str]) -> Cells:
        """Return the cells without those that mean no value: empty, one of these, or equal."""
        empty = _array(pyarrow.compute.is_in(self.arrow, _set_of(frozenset({"", *missing}))))
        if numbers := numeric(missing):
            values = self.values if self.decimal == "." else spelt_numbers(self.arrow)[0]
            empty = empty | np.isin(values, [*numbers])
        if not empty.any():
            return self
        return self._with(np.where(np.append(empty, True)[self.codes], -1, self.codes))

    @cached_property
    def texts(self) -> list[str]:
        """The different texts."""
        texts: list[str] = self.arrow.to_pylist()
        return texts

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        """Whether each row has no value [N]."""
        return self.codes < 0

    @cached_property
    def present(self) -> int:
        """How many rows have a value."""
        return int(np.count_nonzero(self.codes >= 0))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """In how many rows each text occurs [U]."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.arrow))

    @cached_property
    def _spelt(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        return spelt_numbers(self.arrow, self.decimal)

    @property
    def values(self) -> NDArray[np.float64]:
        """The number that each text spells [U], NaN where it spells none."""
        return self._spelt[0]

    @property
    def are_numbers(self) -> NDArray[np.bool_]:
        """Whether each text spells a number [U], which may be `nan` or `inf`."""
        return self._spelt[1]

    @property
    def all_numbers(self) -> bool:
        return bool(self.are_numbers.all())

    @property
    def numbers(self) -> NDArray[np.float64]:
        """The number of each row [N], NaN where it is missing or a word."""
        return np.append(self.values, math.nan)[self.codes]

    @property
    def have_point(self) -> bool:
        """Whether a number has a decimal point."""
        points = _array(pyarrow.compute.match_substring(self.arrow, "."))
        return bool((points & self.are_numbers).any())

    def any_matches(self, pattern: str) -> bool:
        """Return whether a regular expression (of RE2) matches any text."""
        matches = pyarrow.compute.match_substring_regex(self.arrow, pattern)
        return bool(_array(matches).any())

    @cached_property
    def not_numbers(self) -> list[str]:
        """The different texts that spell no number."""
        if self.all_numbers:
            return []
        return [self.texts[i] for i in np.flatnonzero(~self.are_numbers)]

    @cached_property
    def are_almost(self) -> NDArray[np.bool_]:
        """Whether each text is no number, and may be meant as one [U]."""
        near = np.zeros(len(self.arrow), dtype=bool)
        for i in np.flatnonzero(~self.are_numbers).tolist():
            near[i] = almost(self.texts[i]) or number(self.texts[i]) is not None
        return near

    @cached_property
    def word_counts(self) -> NDArray[np.int64]:
        """How many words each text has [U]."""
        return np.fromiter(map(words, self.texts), np.int64, len(self.texts))

    @cached_property
    def plain(self) -> list[str]:
        """The different texts, numbers with a decimal point."""
        if self.decimal != ",":
            return self.texts
        pairs = zip(self.texts, self.are_numbers.tolist(), strict=True)
        return [text.replace(",", ".") if is_number else text for text, is_number in pairs]

    @cached_property
    def levels(self) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """The names of the different values, sorted, and the code of each row [N]; -1: missing.

        3, 3.0 and 03 are one value, named by its shortest spelling: sites write the same code in
        different ways. Numbers come first, in their order, then words, in theirs; so a word at one
        site changes nothing about the numbers of another.
        """
        keys = [*map(identity, self.plain)]
        spelling: dict[tuple[bool, Decimal, str], str] = {}
        for key, text in zip(keys, self.plain, strict=True):
            shortest = spelling.setdefault(key, text)
            if (len(text), text) < (len(shortest), shortest):
                spelling[key] = text
        ordered = sorted(spelling)
        place = dict(zip(ordered, range(len(ordered)), strict=True))
        of_texts = np.array([*(place[key] for key in keys), -1], dtype=np.int64)
        return tuple(spelling[key] for key in ordered), of_texts[self.codes]

    def rows_of(self, texts: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which rows [N] have one of these texts [U]."""
        return np.append(texts, False)[self.codes]

    def first_row(self, texts: NDArray[np.bool_]) -> int:
        """Return the first row that has one of these texts [U]."""
        return int(self.rows_of(texts).argmax())


def trimmed(column: Any) -> Cells:
    """Return the cells of an array of texts, without the blanks around them."""
    encoded = column.dictionary_encode()
    if isinstance(encoded, pyarrow.ChunkedArray):  # of more than 2 GiB
        encoded = encoded.unify_dictionaries().chunk(0)
    texts = pyarrow.compute.utf8_trim_whitespace(encoded.dictionary)
    if texts.equals(encoded.dictionary):
        return Cells.encoded(encoded)
    again = texts.dictionary_encode()
    places = pyarrow.compute.take(again.indices, encoded.indices)
    return Cells.encoded(pyarrow.DictionaryArray.from_arrays(places, again.dictionary))


def spelt_numbers(
    texts: Any, decimal: str | None = "."
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the numbers that texts [U] spell, NaN where they spell none, and which do.

    Example:
        >>> values, are_numbers = spelt_numbers(pyarrow.array(["1.5", "a", "+2"]))
        >>> values.tolist()[::2], are_numbers.tolist()
        ([1.5, 2.0], [True, False, True])
    """
    if len(texts) < FEW:
        numbers = [number(text, decimal) for text in texts.to_pylist()]
        values = np.array([math.nan if n is None else n for n in numbers], dtype=np.float64)
        return values, np.array([n is not None for n in numbers], dtype=bool)
    compute, usual = pyarrow.compute, texts
    if decimal == ",":
        has_point = compute.match_substring(texts, ".")
        usual = compute.if_else(has_point, "", compute.replace_substring(texts, ",", "."))
    with suppress(pyarrow.ArrowInvalid):  # what pyarrow reads as numbers, Python does alike
        return _array(compute.cast(usual, pyarrow.float64())), np.ones(len(texts), dtype=bool)
    are_numbers = _array(compute.match_substring_regex(usual, _USUAL)).copy()
    values = np.full(len(texts), math.nan)
    own = usual.filter(pyarrow.array(are_numbers))
    values[are_numbers] = _array(compute.cast(own, pyarrow.float64()))
    for i in np.flatnonzero(~are_numbers).tolist():
        value = number(texts[i].as_py(), decimal)
        are_numbers[i] = value is not None
        values[i] = math.nan if value is None else value
    return values, are_numbers


def decimal_of(columns: Iterable[Cells], separator: str) -> str:
    """Return the decimal sign of a file, by the cells of its columns that are not missing.

    Args:
        columns: The cells of each column.
        separator: What separates cells.

    Returns:
        A comma where it cannot be anything else: commas separate no cells, no column of numbers has
        a decimal point, and some cell has a comma that sets no thousands apart.
    """
    if separator == ",":
        return "."
    sure = False
    for cells in columns:
        if cells.have_point and all(map(almost, cells.not_numbers)):
            return "."
        sure = sure or any(map(SURE.fullmatch, cells.not_numbers))
    return "," if sure else "."


def identity(text: str) -> tuple[bool, Decimal, str]:
    """Return a key that cells of one value (3 and 3.0) share, in the order of the values.

    Note:
        The number is exact, since identifiers may have more digits than a float.
    """
    if not any(map(text.__contains__, "0123456789")):
        return True, Decimal(0), text
    value = number(text)
    if value is None or text.lstrip("+-")[0] not in ".0123456789":
        return True, Decimal(0), text
    return False, Decimal(text), ""


def numeric(texts: Collection[str]) -> set[float]:
    """Return the finite numbers among some texts."""
    numbers = map(number, texts)
    return {value for value in numbers if value is not None and math.isfinite(value)}


def blank(missing: Collection[str]) -> Callable[[str], bool]:
    """Return what says whether a cell holds no value: empty, one of these, or equal as a number.

    Example:
        >>> [blank(["-9", "?"])(cell) for cell in ("-9", "-9.0", "?", "9", "")]
        [True, True, True, False, True]
    """
    names, numbers = {"", *missing}, numeric(missing)
    if not numbers:
        return names.__contains__
    return lambda cell: cell in names or number(cell) in numbers


@cache
def _set_of(texts: frozenset[str]) -> Any:
    return pyarrow.array([*texts], pyarrow.string())


def _array(arrow: Any) -> NDArray[Any]:
    array: NDArray[Any] = arrow.to_numpy(zero_copy_only=False)
    return array
