"""Where tables are printed, and the options that several commands have."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

DataDir = Annotated[Path | None, typer.Option(help="Where data files are (default: $UNSEEN_DATA).")]
Settings = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")]
Study = Annotated[str, typer.Argument(metavar="NAME|FILE.toml")]
Weights = Annotated[Path | None, typer.Option(help="Initial weights, .pth or .safetensors.")]

#: Columns of a file or a pipe, unless the variable COLUMNS says how many.
WIDE = 160


def names(text: str | None) -> tuple[str, ...]:
    """Return the names between the commas of a text; none where there is no text."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def console() -> Console:
    """Return a console of the terminal's or COLUMNS' width, else wide enough for most tables."""
    from rich.console import Console

    fixed = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(width=None if fixed else WIDE)


def print_fitted(where: Console, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a grid, in several tables with the same first column where one would be too wide."""
    from rich.cells import cell_len
    from rich.table import Column, Table

    # A frame of one character before each column, and a blank on both sides of a cell.
    wide = [3 + max(map(cell_len, column)) for column in zip(head, *rows, strict=True)]
    blocks: list[list[int]] = [[0]]
    for j in range(1, len(head)):
        if len(blocks[-1]) > 1 and 1 + sum(wide[k] for k in (*blocks[-1], j)) > where.width:
            blocks.append([0])
        blocks[-1].append(j)
    for block in blocks:
        table = Table(*(Column(head[j], overflow="fold") for j in block))
        for row in rows:
            table.add_row(*(row[j] for j in block))
        where.print(table, markup=False)
