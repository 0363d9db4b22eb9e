"""Where tables are printed, and how commands and their options are described."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

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
        name=name,
        help=about,
        no_args_is_help=True,
        suggest_commands=False,
        pretty_exceptions_enable=False,
    )


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


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has an option for each field of its dataclass parameters.

    The help of these options is the dataclass's `Attributes`. A field of several numbers or names
    is an option of one text, with commas.
    """
    kinds = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {n: k for n, k in kinds.items() if is_dataclass(k)}  # type: ignore[misc]
    options, sections = [], [inspect.getdoc(command) or ""]
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            options.append(parameter.replace(kind=KEYWORD, annotation=kinds[name]))
            continue
        hints = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            kind, default = hints[field.name], field.default
            kind, default = (str | None, None) if kind in LISTS else (kind, default)
            options.append(inspect.Parameter(field.name, KEYWORD, default=default, annotation=kind))
        for base in reversed(groups[name].__mro__[:-1]):
            sections.append(inspect.cleandoc(base.__doc__ or "").partition("\nAttributes:\n")[2])

    @wraps(command)
    def called(**values: Any) -> None:
        for name, group in groups.items():
            hints = get_type_hints(group)
            own = {field.name: values.pop(field.name) for field in fields(group)}
            for option, text in own.items():
                if hints[option] in LISTS:
                    own[option] = LISTS[hints[option]](f"--{option.replace('_', '-')}", text)
            values[name] = group(**own)
        command(**values)

    text = sections[0] if "\n\nArgs:\n" in sections[0] else f"{sections[0]}\n\nArgs:"
    called.__doc__ = "\n".join([text, *sections[1:]])
    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called


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


KEYWORD = inspect.Parameter.KEYWORD_ONLY
#: Types of fields that are texts with commas on the command line, and what reads these.
LISTS: dict[object, Callable[[str, str | None], object]] = {
    tuple[float, ...]: numbers,
    tuple[str, ...]: lambda option, text: names(text),
    tuple[str, ...] | None: lambda option, text: names(text) or None,
}


@dataclass(frozen=True)
class Columns:
    """The columns of a csv file of your own, and what they are for.

    Attributes:
        site: The column of a csv file that names the site.
        label: The column of a csv file that holds the label.
        event: The column of a csv file that says whether the event was seen (1) or the row was
            censored (0), where the label is the time until it.
        task: classification or regression, of a csv file (default: regression where the label is a
            number with many values, which is said).
    """

    site: Site = None
    label: str | None = None
    event: str | None = None
    task: str | None = None


@dataclass(frozen=True)
class Places:
    """Where data are, and where a command writes.

    Attributes:
        data_dir: Where data files are (default: $UNSEEN_DATA).
        out: Folder of what the command writes (default: in results, choices or tunings, by the
            name of the study).
    """

    data_dir: Path | None = None
    out: Path | None = None


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
