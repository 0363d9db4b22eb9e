"""Models that the tests of one worker share; nobody writes into their directories."""

from __future__ import annotations

import pytest
from support.federations import photo_study, table_study, trained

from unseen.serving.directory import Trained


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
