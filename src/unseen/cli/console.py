"""Where tables are printed, and how commands and their options are described."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from unseen.errors import UnseenError

if TYPE_CHECKING:
    from rich.console import Console

Settings = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")]
Study = Annotated[str, typer.Argument(metavar="NAME|FILE.toml")]
#: The column of a file that names the site; --domain is the name it had in version 0.1.
Site = Annotated[str | None, typer.Option("--site", "--domain", metavar="COLUMN")]

#: Columns of a file or a pipe, unless the variable COLUMNS says how many.
WIDE = 160


def group(name: str, about: str) -> typer.Typer:
    """Return a group of commands; its help is what they are about."""
    return typer.Typer(
        name=name, help=about, no_args_is_help=True, suggest_commands=False,
        pretty_exceptions_enable=False,
    )  # fmt: skip


class Documented(TyperCommand):
    """A command whose help is its function's docstring: the text, and for its options the `Args`.

    Paragraphs break where the terminal ends. A flag that is off by default has no --no- form.
    """

    def __init__(
        self,
        name: str | None,
        *,
        params: list[click.Parameter],
        callback: Callable[..., Any],
        **others: Any,
    ) -> None:
        text, _, section = inspect.cleandoc(callback.__doc__ or "").partition("\n\nArgs:\n")
        entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
        about = {option: " ".join(words.split()) for option, words in entries}
        for param in params:
            if isinstance(param, TyperOption | TyperArgument):
                param.help = param.help or about.get(str(param.name))
            if isinstance(param, TyperOption) and param.is_flag and param.default is False:
                param.secondary_opts = []
        others["help"] = "\n\n".join(part.replace("\n", " ") for part in text.split("\n\n"))
        super().__init__(name, params=params, callback=callback, **others)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if any(param.name == "settings" for param in self.params):
                raise as_setting(error) from None
            raise


def as_setting(error: click.NoSuchOption) -> click.UsageError:
    """Return the error for an unknown option, which may be a setting that was written as one."""
    from unseen.data.image_files import folder
    from unseen.data.tables import delimited
    from unseen.studies.settings.study import StudySpec

    name = error.option_name.lstrip("-").replace("-", "_")
    if name not in {*StudySpec.model_fields, *delimited.OPTIONS, *folder.OPTIONS}:
        return error
    what = f"No such option: {error.option_name}. It is a setting: write {name}=VALUE, no dashes."
    return click.UsageError(what, error.ctx)


def names(text: str | None) -> tuple[str, ...]:
    """Return the names between the commas of a text; none where there is no text.

    Example:
        >>> names("west, 'Hospital, North'")
        ('west', 'Hospital, North')
    """
    from unseen.studies.settings.named import parts

    return tuple(filter(None, parts(text or "", brackets="")))


def numbers(option: str, text: str | None) -> tuple[float, ...]:
    """Return the numbers between the commas of an option's text.

    Example:
        >>> numbers("--times", "90, 365")
        (90.0, 365.0)
    """
    try:
        return tuple(map(float, names(text)))
    except ValueError:
        raise UnseenError(f"{option} takes comma-separated numbers; found {text!r}.") from None


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
