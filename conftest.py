"""One thread, a cache that goes with the tests, the real data if it is there, the command line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from support.command_line import Command, Ran

from unseen.cli.main import main

torch.set_num_threads(1)
settings.register_profile("any machine", deadline=None)  # however busy it is
settings.load_profile("any machine")
os.environ.pop("COLUMNS", None)  # workers of pytest have one, and tables are as wide as it says


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded images of tests go with the tests."""
    before = os.environ.get("UNSEEN_CACHE")
    os.environ["UNSEEN_CACHE"] = str(tmp_path_factory.mktemp("decoded"))
    yield
    if before is None:
        del os.environ["UNSEEN_CACHE"]
    else:
        os.environ["UNSEEN_CACHE"] = before


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Networks that a test builds begin alike, alone or after any other test."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data, from UNSEEN_DATA."""
    folder = os.environ.get("UNSEEN_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("no real data: set UNSEEN_DATA to the folder that holds it")
    return Path(folder)


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def run(*arguments: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["unseen", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
            raise SystemExit(0)
        found = capsys.readouterr()
        return Ran(int(caught.value.code or 0), found.out, found.err)

    return run
