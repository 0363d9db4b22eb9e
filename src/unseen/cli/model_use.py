"""What commands say of the model that they use, and of what it could not use."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from unseen.serving.directory import Trained
    from unseen.serving.export import OnnxModel
    from unseen.serving.reading.new_rows import Item

#: How many of what could not be used are named on stderr.
MOST = 20


def name_code(trained: Trained) -> None:
    """Say on stderr what runs that is not part of `unseen`."""
    from unseen.serving import foreign_code

    for words in foreign_code.check(trained.spec, True):
        print(f"--allow-code: running {words}", file=sys.stderr)


def export_of(trained: Trained, file: Path | None, site: str | None) -> OnnxModel:
    """Return the export of a model, `file` or the one in its directory."""
    from unseen.errors import UnseenError
    from unseen.serving.export import of_model

    if site is not None:
        raise UnseenError("an export has the averaged statistics.", remedy="Leave out --as-site.")
    return of_model(trained, file)


def name_faults(faults: Sequence[Item], where: str | None) -> None:
    """Name on stderr what could not be used, up to `MOST`, and how many more there are.

    Args:
        faults: What could not be used.
        where: What names all of them, if anything does.
    """
    for fault in faults[:MOST]:
        print(f"not used: {fault}", file=sys.stderr)
    if (more := len(faults) - MOST) > 0:
        print(f"and {more} more" + (f"; {where} names all" if where else ""), file=sys.stderr)


def end_with(used: int, faults: Sequence[Item], rows: bool = False, where: str = "") -> None:
    """Name on stderr what could not be used, and end with code 1 if there is any.

    Args:
        used: How many rows or images were used.
        faults: What could not be used.
        rows: Whether inputs are rows of files; what has no line is then a whole file.
        where: What names all faults.
    """
    name_faults(faults, where)
    if faults:
        print(tally(used, faults, rows), file=sys.stderr)
        raise typer.Exit(1)


def tally(used: int, faults: Sequence[Item], rows: bool) -> str:
    """Return how many rows or images were used, and how many rows and whole files were not."""
    from unseen.studies.results.formats import counted

    files = sum(fault.line is None for fault in faults) if rows else 0
    others = len(faults) - files
    if not files:
        return f"{used} used, {others} not"
    noun = "row" if used == 1 else "rows"
    apart = f", {others} not" if others else ""
    return f"{used} {noun} used{apart}; {counted(files, 'file')} not used"
