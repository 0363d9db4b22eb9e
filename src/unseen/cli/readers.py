"""`unseen report`, `watch` and `track`: what reads the folder of a study's records."""

import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.console import console, names

Folder = Annotated[Path, typer.Argument(metavar="DIR")]
Folders = Annotated[list[Path], typer.Argument(metavar="DIR...")]


def report(
    folders: Folders,
    out: Path | None = None,
    metric: str | None = None,
    selection: str | None = None,
    reference: str | None = None,
    page_only: bool = False,
    data_dir: Path | None = None,
    locals: str | None = None,
) -> None:
    """Write a report of finished runs: one page that opens from disk, tables, figures.

    Args:
        folders: What --out of a study was.
        out: Folder of the report (default: DIR/report; of several DIRs, report).
        metric: What to show first, such as accuracy.
        selection: Another selection rule than the study's.
        reference: The method to test the others against.
        page_only: No figures as SVG and PNG files.
        data_dir: Data files, for t-SNE and loss surfaces of saved models.
        locals: Three clients whose models span the loss surface.
    """
    from unseen.studies.report.read import Choice
    from unseen.studies.report.write import report as write

    further = None
    if data_dir is not None:
        from unseen.studies.report.models import sections

        further = partial(sections, data_dir=data_dir, clients=names(locals))
    target = out or (folders[0] / "report" if len(folders) == 1 else Path("report"))
    print(write(folders, target, Choice(metric, selection, reference), not page_only, further))


def watch(
    folder: Folder,
    once: bool = False,
    every: Annotated[float, typer.Option(min=0.2)] = 2.0,
    metric: str | None = None,
) -> None:
    """Watch a study at work: jobs, rounds, figures so far, the time left.

    Reads the records on disk, from any terminal, and changes nothing; Ctrl-C ends it, the study
    goes on. Where the output is not a terminal it prints once.

    Args:
        folder: The folder of a study's --out.
        once: Print how it stands now, and end.
        every: Seconds between two looks.
        metric: What to show, such as accuracy.
    """
    from rich.live import Live

    from unseen.studies.results.study_folder import find
    from unseen.studies.tracking.screen import renderable
    from unseen.studies.tracking.state import Reader

    reader = Reader(find(folder), metric)
    if once or not sys.stdout.isatty():
        console().print(renderable(reader.snapshot()))
        return
    with suppress(KeyboardInterrupt), Live(console=console(), auto_refresh=False) as live:
        while True:
            snapshot = reader.snapshot()
            live.update(renderable(snapshot), refresh=True)
            if snapshot.finished and not snapshot.active:
                return
            time.sleep(every)


def track(folder: Folder, to: Annotated[str, typer.Option()]) -> None:
    """Copy a study's finished jobs to TensorBoard or MLflow; what they have already is skipped.

    Args:
        folder: The folder of a study's --out.
        to: tensorboard, mlflow, or both with a comma.
    """
    from unseen.studies.results.study_folder import find
    from unseen.studies.tracking.trackers import listed
    from unseen.studies.tracking.trackers import track as copied

    for line in copied(find(folder), listed(to)):
        print(line)
