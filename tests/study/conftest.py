"""A table of a few rows, and data sets made for one test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.small_studies import numbered, rows, write

from unseen.data import DataSet, Domain, Info, datasets


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "sites.csv", rows())


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes a data set of domains in memory known by name, and gives the name."""

    def put(
        *domains: Domain,
        classes: tuple[str, ...] | None = ("no", "yes"),
        metrics: tuple[str, ...] = ("loss", "accuracy"),
    ) -> str:
        name = next(numbered)
        data = DataSet(name, domains, classes, "", "", "")
        info = Info(
            name=name, description="", source="", licence="", model="logistic", metrics=metrics,
            loader=lambda data_dir: data,
        )  # fmt: skip
        monkeypatch.setitem(datasets(), name, info)
        return name

    return put
