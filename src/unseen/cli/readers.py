"""`unseen report`: reads the folder of a study's records."""

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(metavar="DIR")]


def report(
    folder: Folder,
    out: Path | None = None,
    metric: str | None = None,
    selection: str | None = None,
    reference: str | None = None,
    page_only: bool = False,
) -> None:
    """Write a report of finished runs: one page that opens from disk, tables, figures.

    Args:
        folder: What --out of the study was.
        out: Folder of the report (default: DIR/report).
        metric: What to show first, such as accuracy.
        selection: Another selection rule than the study's.
        reference: The method to test the others against.
        page_only: No figures as SVG and PNG files.
    """
    from unseen.studies.report.read import Choice
    from unseen.studies.report.write import report as write

    asked = Choice(metric, selection, reference)
    print(write(folder, out or folder / "report", asked, not page_only))
