"""Finding a data set's files, with an error that says where they were looked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from unseen.datasets.standin import note
from unseen.errors import UnseenError


def find(
    data_dir: str | Path | None,
    names: Sequence[str],
    folders: Sequence[str],
    *,
    dataset: str,
    obtain: str,
) -> Path:
    """Return the first of `names` that lies in one of the `folders` of `data_dir`.

    Args:
        data_dir: The data folder.
        names: Spellings of one file, the canonical one first.
        folders: Names of folders below the data folder.
        dataset: The data set, as the error names it.
        obtain: How to get the file, a sentence of the error.
    """
    places = [data_folder(data_dir, dataset, obtain) / folder for folder in folders]
    for path in (place / name for place in places for name in names):
        if path.is_file():
            note(path.parent)
            return path
    others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
    raise UnseenError(
        f"data set {dataset!r} needs the file {names[0]}{others}; it is in none of the folders "
        f"{', '.join(map(str, places))}.",
        remedy=obtain,
    )


def either(*attempts: Callable[[], object]) -> None:
    """Return once one of the attempts finds its files; else raise one error with all texts."""
    faults = []
    for attempt in attempts:
        try:
            attempt()
        except UnseenError as error:
            faults.append(str(error))
        else:
            return
    raise UnseenError(" Otherwise: ".join(faults))


def data_folder(data_dir: str | Path | None, dataset: str, obtain: str) -> Path:
    """Return the folder that the user named; raise an error where there is none."""
    if data_dir is None:
        raise UnseenError(
            f"data set {dataset!r} reads files:",
            remedy="name their folder by data_dir, by --data-dir on the command line or by the "
            f"variable UNSEEN_DATA. {obtain}",
        )
    return Path(data_dir)


def below(data_dir: str | Path | None, path: str | Path, dataset: str) -> Path:
    """Return `path` if it is absolute, else below `data_dir`, else below the current folder."""
    if "://" in str(path):
        raise UnseenError(
            f"data set {dataset!r} reads files of this machine and downloads nothing; found the "
            f"address {str(path)!r}.",
            remedy="Fetch the file yourself and set 'path' to its place.",
        )
    place = Path(data_dir or ".") / path
    if not place.exists():
        here = Path(path).absolute()
        hint = f" One of that name lies here: write path={str(here)!r}." if here.exists() else ""
        raise UnseenError(
            f"data set {dataset!r} was to be read from {place}, which does not exist.",
            remedy=f"The option 'path' is absolute or relative to the data folder.{hint}",
        )
    note(place)
    return place
