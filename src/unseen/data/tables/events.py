"""Times until an event as labels: a column of times, and one that says whether it was seen."""

import numpy as np
from torch import Tensor

from unseen.core.labels import exact_numbers
from unseen.data.tables.sheet import Sheet, UnfitCells, WrongNumber

#: What a cell says of the event.
WORDS = {
    **dict.fromkeys(("0", "no", "false", "censored"), 0.0),
    **dict.fromkeys(("1", "yes", "true", "event"), 1.0),
}


def flag_of(cell: str) -> float | None:
    """Return 1 where a cell says that the event was seen, 0 for a censored row, else None.

    Example:
        >>> [flag_of(cell) for cell in ("1", "0.0", "Yes", "censored", "2")]
        [1.0, 0.0, 1.0, 0.0, None]
    """
    try:
        number = float(cell)
    except ValueError:
        return WORDS.get(cell.strip().lower())
    return number if number in (0, 1) else None


def times_of(sheet: Sheet, time: str, event: str) -> Tensor:
    """Return labels [N, 2] of two columns: times ≥ 0, and 1 for an event.

    Args:
        sheet: The table.
        time: The column of times from the start to the event, or to the last time that the row was
            known to be without it.
        event: The column that says which of the two the time is.
    """
    try:
        times = sheet.numbers(time)
    except WrongNumber as error:
        raise UnfitCells(
            f"the time {error.cell!r} in {sheet.at(error.line)} of {sheet.name}, {time!r}, is not "
            "a number:",
            remedy="write the days, or another unit, from the start to the event.",
        ) from None
    if (times < 0).any():
        row = int((times < 0).argmax())
        raise UnfitCells(
            f"the time {times[row]:g} in {sheet.at_row(row)} of {sheet.name}, {time!r}, is "
            "below 0:",
            remedy="times count from the start; correct it, or leave the row out.",
        )
    cells = sheet.full(event, "event")
    flags = [flag_of(cell) for cell in cells.plain]
    if None in flags:
        row = cells.first_row(np.array([flag is None for flag in flags]))
        raise UnfitCells(
            f"the event {cells[row]!r} in {sheet.at_row(row)} of {sheet.name}, {event!r}, is "
            f"neither of {', '.join(WORDS)}:",
            remedy="write 1 where the event was seen and 0 where the row was censored.",
        )
    events = np.array(flags, dtype=np.float64)[cells.codes]
    return exact_numbers(np.stack([times, events], axis=1))
