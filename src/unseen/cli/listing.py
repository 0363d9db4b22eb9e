"""The catalogue's lists for the command line: kept on disk, so that nobody waits for torch."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from unseen.errors import nearest

if TYPE_CHECKING:
    from unseen.cli.catalogue import Rows

LISTS = ("methods", "compositions", "datasets", "models", "studies")


def listed(what: str) -> Rows:
    """Header and rows of a list: those kept, if the package has not changed since, or new ones.

    They are kept in UNSEEN_CACHE, by default ~/.cache/unseen, unless that says "off" or cannot be
    written.
    """
    if what not in LISTS:
        raise nearest("list", what, LISTS)
    file, key = _file(), f"{_fingerprint()}/{what}"
    kept = _read(file)
    if key in kept:
        header, rows = kept[key]
        return tuple(header), [tuple(row) for row in rows]
    from unseen.cli.catalogue import CATALOGUES

    found = CATALOGUES[what]()
    _write(
        file, {k: v for k, v in kept.items() if k.split("/")[0] == key.split("/")[0]}, key, found
    )
    return found


def _file() -> Path | None:
    chosen = os.environ.get("UNSEEN_CACHE")
    if chosen == "off":
        return None
    try:
        folder = Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "unseen"
    except RuntimeError:  # nobody's home
        return None
    return folder / "lists.json"


def _fingerprint() -> str:
    """Twelve hexadecimal digits that differ whenever a file of the package changed."""
    here = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder, _, names in sorted(os.walk(here)):
        for name in sorted(names):
            if name.endswith((".py", ".toml")):
                about = os.stat(os.path.join(folder, name))
                digest.update(f"{folder}/{name} {about.st_mtime_ns} {about.st_size}\n".encode())
    return digest.hexdigest()[:12]


def _read(file: Path | None) -> dict[str, Rows]:
    try:
        kept = json.loads(file.read_bytes()) if file is not None else {}
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _write(file: Path | None, kept: dict[str, Rows], key: str, rows: Rows) -> None:
    """Beside the lists of the same package, in one step."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix="lists-")
        with os.fdopen(handle, "w") as target:
            json.dump({**kept, key: rows}, target)
        os.replace(temporary, file)
    except OSError:  # a cache that cannot be written is none
        return
