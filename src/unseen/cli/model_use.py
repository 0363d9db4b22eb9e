"""The options by which commands open a model, and what they could not use."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from unseen.serving.directory import Trained
    from unseen.serving.export import OnnxModel
    from unseen.serving.reading.new_rows import Item

ModelDir = Annotated[Path, typer.Argument(metavar="MODEL_DIR")]
AllowCode = Annotated[bool, typer.Option("--allow-code")]
#: How many of what could not be used are named on stderr.
MOST = 20


@dataclass(frozen=True)
class Loading:
    """How a model is opened.

    Attributes:
        runtime: torch, or onnx for its export.
        device: cpu or cuda.
        allow_code: Let code outside unseen run that the directory names, such as a model of your
            own; without it a directory is data.
    """

    runtime: str = "torch"
    device: str = "cpu"
    allow_code: AllowCode = False

    def open(self, folder: Path, file: Path | None = None) -> tuple[Trained, OnnxModel | None]:
        """Return the model of a directory, and what computes in its place."""
        from unseen.errors import choice
        from unseen.serving import foreign_code
        from unseen.serving.directory import read
        from unseen.serving.export import of_model

        choice("--runtime", self.runtime, ("torch", "onnx"))
        trained = read(folder, self.device, self.allow_code)
        for words in foreign_code.check(trained.spec, True):
            print(f"--allow-code: running {words}", file=sys.stderr)
        exported = self.runtime == "onnx" or file is not None
        return trained, of_model(trained, file) if exported else None


@dataclass(frozen=True)
class ModelUse(Loading):
    """How a model is opened, and used on files.

    Attributes:
        as_site: Use this training site's own BatchNorm statistics, if the model has them.
        batch: Inputs per pass (default: 32 images or 512 rows).
    """

    as_site: Annotated[str | None, typer.Option(metavar="SITE")] = None
    batch: Annotated[int | None, typer.Option(min=1)] = None

    def open(self, folder: Path, file: Path | None = None) -> tuple[Trained, OnnxModel | None]:
        """Return what `Loading.open` returns, with the statistics of the site."""
        from unseen.errors import UnseenError

        trained, exported = super().open(folder, file)
        if exported is not None and self.as_site is not None:
            raise UnseenError(
                "an export has the averaged statistics.", remedy="Leave out --as-site."
            )
        trained.at(self.as_site)
        return trained, exported


def name_faults(faults: Sequence[Item], where: str | None) -> None:
    """Name on stderr what could not be used, up to `MOST`, and how many more there are."""
    for fault in faults[:MOST]:
        print(f"not used: {fault}", file=sys.stderr)
    if (more := len(faults) - MOST) > 0:
        print(f"and {more} more" + (f"; {where} names all" if where else ""), file=sys.stderr)


def end_with(used: int, faults: Sequence[Item], rows: bool = False, where: str = "") -> None:
    """Name on stderr what could not be used, and end with code 1 if there is any."""
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
