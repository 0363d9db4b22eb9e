"""`unseen report`: reads the folder of a study's records."""

from pathlib import Path
from typing import Annotated

import typer

Folders = Annotated[list[Path], typer.Argument(metavar="DIR...")]


def report(
    folders: Folders,
    out: Path | None = None,
    metric: str | None = None,
    selection: str | None = None,
    reference: str | None = None,
    page_only: bool = False,
) -> None:
    """Write a report of finished runs: one page that opens from disk, tables, figures.

    Args:
        folders: What --out of a study was.
        out: Folder of the report (default: DIR/report; of several DIRs, report).
        metric: What to show first, such as accuracy.
        selection: Another selection rule than the study's.
        reference: The method to test the others against.
        page_only: No figures as SVG and PNG files.
    """
    from unseen.studies.report.read import Choice
    from unseen.studies.report.write import report as write

    target = out or (folders[0] / "report" if len(folders) == 1 else Path("report"))
    print(write(folders, target, Choice(metric, selection, reference), not page_only))
