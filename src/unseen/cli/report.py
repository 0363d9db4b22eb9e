"""`unseen report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folders = Annotated[list[Path], typer.Argument(metavar="DIR...", help="What --out of a study was.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the report (default: DIR/report).")]
Metric = Annotated[str | None, typer.Option(help="What to show first, such as accuracy.")]
Selection = Annotated[str | None, typer.Option(help="Another selection rule than the study's.")]
Reference = Annotated[str | None, typer.Option(help="The method to test the others against.")]
PageOnly = Annotated[bool, typer.Option("--page-only", help="No figures as SVG and PNG files.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Data files, for t-SNE and loss surfaces of saved models.")
]
Locals = Annotated[
    str | None, typer.Option(help="Three clients whose models span the loss surface.")
]


def report(
    folders: Folders,
    out: Out = None,
    metric: Metric = None,
    selection: Selection = None,
    reference: Reference = None,
    page_only: PageOnly = False,
    data_dir: DataDir = None,
    locals: Locals = None,
) -> None:
    """Write a report of finished runs: one page that opens from disk, tables, figures."""
    from functools import partial

    from unseen.report.read import Choice
    from unseen.report.write import report as write

    further = None
    if data_dir is not None:
        from unseen.report.models import sections

        names = tuple(part.strip() for part in locals.split(",")) if locals else ()
        further = partial(sections, data_dir=data_dir, clients=names)
    target = out or (folders[0] / "report" if len(folders) == 1 else Path("report"))
    print(write(folders, target, Choice(metric, selection, reference), not page_only, further))
