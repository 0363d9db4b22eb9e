"""Models that the tests of one worker share; nobody writes into their directories."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from federations import photo_study, table_study, trained

from unseen.cli import main
from unseen.deploy.directory import Trained


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def unseen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
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


@pytest.fixture(scope="session")
def of_rows(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Two classes from rows of a csv file, the site west held out."""
    folder = tmp_path_factory.mktemp("rows")
    return trained(table_study(folder, 'holdout = "west"'), folder / "model")


@pytest.fixture(scope="session")
def of_numbers(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A number from rows of a csv file, nothing held out."""
    folder = tmp_path_factory.mktemp("numbers")
    return trained(table_study(folder, label="score"), folder / "model")


@pytest.fixture(scope="session")
def of_photos(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Two classes from images, with BatchNorm, the site west held out."""
    folder = tmp_path_factory.mktemp("photos")
    return trained(photo_study(folder, 'holdout = "west"'), folder / "model")
