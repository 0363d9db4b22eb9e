"""The app as Flower takes it: a folder that names its two ends, and is always the same."""

import shutil
from pathlib import Path

from unseen.sites.templates import render
from unseen.version import __version__


def write(folder: str | Path) -> Path:
    """Write the app's folder; the code is that of the package installed at each end."""
    target = Path(folder)
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # a kit's state, if it was removed
    target.mkdir()
    (target / "pyproject.toml").write_text(render("app.toml", version=__version__))
    (target / "LICENSE").write_text("Apache-2.0\n")
    (target / "README.md").write_text("# unseen\n\nA study of `unseen` over real sites.\n")
    return target
