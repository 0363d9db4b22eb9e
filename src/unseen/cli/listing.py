"""The catalogue's lists for the command line: kept on disk, so that nobody waits for torch."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from unseen.errors import nearest
from unseen.plugins import sources

if TYPE_CHECKING:
    from unseen.cli.catalogue import Rows

LISTS = ("methods", "compositions", "datasets", "models", "studies")


def listed(what: str) -> Rows:
    """Return the header and rows of a list: as kept, if the package is the same since, or new.

    They are kept in UNSEEN_CACHE, by default ~/.cache/unseen, unless that says "off".
    """
    if what not in LISTS:
        raise nearest("list", what, LISTS)
    package = _fingerprint()
    cache: dict[str, Rows] = {}
    with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):
        cache = json.loads(_file().read_bytes())[package]
        header, rows = cache[what]
        return tuple(header), [tuple(row) for row in rows]
    from unseen.cli.catalogue import CATALOGUES
    from unseen.core.atomic import write_atomically

    listing = CATALOGUES[what]()
    with suppress(OSError, RuntimeError):
        write_atomically(_file(), json.dumps({package: {**cache, what: listing}}).encode())
    return listing


def _file() -> Path:
    place = os.environ.get("UNSEEN_CACHE") or "~/.cache/unseen"
    if place == "off":
        raise FileNotFoundError("no lists are kept")
    return Path(place).expanduser() / "lists.json"


def _fingerprint() -> str:
    """Return what tells the files of the package, and of those that add to it, from others."""
    digest = hashlib.sha256()
    packages = dict.fromkeys([Path(__file__).parents[1], *sources()])
    for folder, _, names in (entry for place in packages for entry in sorted(os.walk(place))):
        for name in sorted(names):
            if name.endswith((".py", ".toml", ".json")):
                about = os.stat(os.path.join(folder, name))
                digest.update(f"{folder}/{name} {about.st_mtime_ns} {about.st_size}\n".encode())
    return digest.hexdigest()[:12]
