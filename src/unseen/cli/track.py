"""`unseen track`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a study's --out.")]
To = Annotated[str, typer.Option(help="tensorboard, mlflow, or both with a comma.")]


def track(folder: Folder, to: To) -> None:
    """Give a study's records to TensorBoard or MLflow; what they have already is skipped."""
    from unseen.follow.trackers import listed
    from unseen.follow.trackers import track as give
    from unseen.results.study_folder import find

    folder = find(folder)
    for line in give(folder, listed(to)):
        print(line)
