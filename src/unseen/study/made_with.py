"""What a result is made with."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path

import torch

from unseen.version import __version__


@cache
def commit() -> str:
    """The commit that this code is at, with a `+` for changes since; "" outside a checkout."""
    here = Path(__file__).parents[1]
    asked = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"]
    tracked = ["git", "-C", str(here), "ls-files", "--error-unmatch", "__init__.py"]
    try:
        subprocess.run(tracked, capture_output=True, check=True, timeout=10)
        found = subprocess.run(asked, capture_output=True, check=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def versions() -> dict[str, str]:
    """What a result is made with."""
    return {
        "unseen": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
