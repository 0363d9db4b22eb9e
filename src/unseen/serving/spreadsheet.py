"""Cells of csv files that a spreadsheet would run as a formula."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")
#: What begins a formula, or is skipped before one.
FORMULA = ("=", "+", "-", "@", "\t", "\r")
#: What makes a cell text in spreadsheets.
QUOTE = "'"


def as_text(cell: T) -> T | str:
    """Return a cell that no spreadsheet takes for a formula; numbers stay numbers.

    Texts that are numbers stay as they are. Others that begin a formula get an apostrophe before
    them, and so do those that are such a text behind apostrophes: `restored` takes one away again.

    Example:
        >>> [as_text(cell) for cell in ("=1+1", "-5", -5.0, "present", "'=x", "'quoted'")]
        ["'=1+1", '-5', -5.0, 'present', "''=x", "'quoted'"]
    """
    return QUOTE + cell if isinstance(cell, str) and _runs(cell) else cell


def restored(cell: T) -> T | str:
    """Return the cell that `as_text` was given.

    Example:
        >>> [restored(as_text(cell)) for cell in ("=1+1", "'=x", "'quoted'", None)]
        ['=1+1', "'=x", "'quoted'", None]
    """
    if isinstance(cell, str) and cell.startswith(QUOTE) and _runs(cell[len(QUOTE) :]):
        return cell[len(QUOTE) :]
    return cell


def _runs(text: str) -> bool:
    """Whether a text, without apostrophes before it, begins a formula and is no number."""
    inner = text.lstrip(QUOTE)
    return inner.startswith(FORMULA) and not (inner == text and _is_number(text))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip() and text.isascii()
