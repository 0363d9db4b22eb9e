"""The app as Flower takes it: a folder that names its two ends, and is always the same."""

from __future__ import annotations

import shutil
from pathlib import Path

from unseen.version import __version__

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "unseen-federation"
version = "{version}"
description = "A study of unseen over real sites"
license = {{ file = "LICENSE" }}
requires-python = ">=3.11"
dependencies = ["flwr>=1.41,<1.42"]

[tool.flwr.app]
publisher = "unseen"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "unseen.federation.flower.server_app:app"
clientapp = "unseen.federation.flower.client_app:app"

[tool.flwr.app.config]
study = ""
out = ""
sites = ""
"""


def write(folder: str | Path) -> Path:
    """Write the app's folder; the code is that of the package installed at each end.

    Args:
        folder: The folder, which is replaced.

    Returns:
        The same folder.
    """
    target = Path(folder)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    (target / "pyproject.toml").write_text(PYPROJECT.format(version=__version__))
    (target / "LICENSE").write_text("Apache-2.0\n")
    (target / "README.md").write_text("# unseen\n\nA study of `unseen` over real sites.\n")
    return target
