"""Synthetic stand-ins: how one is written, marked, and recognised when its files are read."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path

from unseen.core.templates import render
from unseen.errors import UnseenError

MARKER = "STAND-IN.txt"
#: What is said of a stand-in wherever its data set is named.
NO_RESULT = "a synthetic stand-in: no result"

_places: ContextVar[list[Path] | None] = ContextVar("places", default=None)


@contextmanager
def noted() -> Iterator[list[Path]]:
    """Collect where a data set's files are found, while the context lasts.

    Note:
        Loaders find their files through a few functions, and the registry must know where without
        every loader passing it on.
    """
    places: list[Path] = []
    token = _places.set(places)
    try:
        yield places
    finally:
        _places.reset(token)
        for place in places:
            note(place)  # a context around this one hears of it too


def note(place: Path) -> None:
    """Record that files are read from there; nothing happens outside `noted`."""
    places = _places.get()
    if places is not None:
        places.append(place)


def marker(places: Iterable[Path]) -> Path | None:
    """Return the first marker that lies in one of these folders, or in one above it."""
    folders = (folder for p in map(Path.resolve, places) for folder in (p, *p.parents))
    return next(filter(Path.is_file, (folder / MARKER for folder in folders)), None)


def write(name: str, sketch: Callable[[Path], None], out: Path) -> None:
    """Write a data set's stand-in into a folder that holds nothing but other stand-ins.

    Args:
        name: The data set.
        sketch: Writes the stand-in into a folder.
        out: The folder.

    Raises:
        UnseenError: The folder holds anything else or what would be written; then nothing is
            written.

    Note:
        The folder and every folder in it get a marker, so that one is recognised when it is copied
        alone.
    """
    out.mkdir(parents=True, exist_ok=True)
    others = (p for p in out.iterdir() if p.name != MARKER and not p.name.startswith("."))
    if real := sorted(path.name for path in others if not (path / MARKER).is_file()):
        raise UnseenError(
            f"{out} is not empty: {', '.join(real[:3])}{' ...' * bool(real[3:])} has no {MARKER}.",
            remedy="Name a new folder; stand-ins and real data stay apart.",
        )
    with tempfile.TemporaryDirectory(prefix=".sketch-", dir=out) as temporary:
        sketch(Path(temporary))
        folders = sorted(Path(temporary).iterdir())
        text = partial(render, "unseen.datasets", "standin.jinja")
        if there := [folder.name for folder in folders if (out / folder.name).exists()]:
            raise UnseenError(
                f"{out} is not empty: it has {', '.join(there)} already, of a stand-in too.",
                remedy="Take it as it is, or name a new folder.",
            )
        for folder in folders:
            (folder / MARKER).write_text(text(name=name), "utf-8")
        # The marker of all comes first: what is moved is never without one.
        (out / MARKER).write_text(text(name="NAME"), "utf-8")
        for folder in folders:
            folder.rename(out / folder.name)
