"""`unseen watch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a study's --out.")]
Once = Annotated[bool, typer.Option("--once", help="Print how it stands now, and end.")]
Every = Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")]
Metric = Annotated[str | None, typer.Option(help="What to show, such as accuracy.")]


def watch(folder: Folder, once: Once = False, every: Every = 2.0, metric: Metric = None) -> None:
    """Watch a study at work: jobs, rounds, figures so far, the time left.

    Reads the records on disk, from any terminal, and changes nothing; Ctrl-C ends it, the study
    goes on. Where the output is not a terminal it prints once.
    """
    import time

    from rich.console import Console

    from unseen.cli.console import console
    from unseen.follow.screen import shown
    from unseen.follow.state import Reader
    from unseen.results.study_folder import find

    reader = Reader(find(folder), metric)
    if once or not sys.stdout.isatty():
        console().print(shown(reader.snapshot()))
        return
    from rich.live import Live

    with Live(console=Console(), auto_refresh=False) as live:
        try:
            while True:
                snapshot = reader.snapshot()
                live.update(shown(snapshot), refresh=True)
                if snapshot.finished and not snapshot.active:
                    return
                time.sleep(every)
        except KeyboardInterrupt:
            return
