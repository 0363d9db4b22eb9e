"""Synthetic stand-ins: how one is marked, and recognised when its files are read."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

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
