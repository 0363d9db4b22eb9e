"""Files that survive a crash."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step: a crash leaves the old one or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
