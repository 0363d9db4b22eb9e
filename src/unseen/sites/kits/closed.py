"""What a kit keeps is for its own account alone: folders 0700, files 0600, whatever the umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: What nobody else gets; and the folders of a kit in which every file is so.
OTHERS = 0o077
FOLDERS = ("state", "account", "logs")


@contextmanager
def closed() -> Iterator[None]:
    """Write what is new for this account alone; the umask is that of the whole process."""
    before = os.umask(OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def close(kit: Path) -> None:
    """Take from others what an earlier release, or somebody's copy, let them read in a kit.

    `state/images` is a link to the site's data, whose rights are not ours.
    """
    for top in (kit / name for name in FOLDERS):
        if not top.is_dir() or top.is_symlink():
            continue
        for folder, names, files in os.walk(top):
            paths = [Path(folder), *(Path(folder) / name for name in (*names, *files))]
            for path in (path for path in paths if not path.is_symlink()):
                mode = path.stat().st_mode
                if mode & OTHERS:
                    path.chmod(mode & 0o7777 & ~OTHERS)


def umask() -> int:
    """Return the umask of this process."""
    mask = os.umask(OTHERS)
    os.umask(mask)
    return mask
