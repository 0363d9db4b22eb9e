"""What a search scores where labels are numbers, or a metric has no value at some sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.small_studies import rows, study, write

from unseen.results.search_records import SearchRecord, place

ALL: dict[str, Any] = {"methods": ["fedprox"], "targets": ["d"]}


def record(out: Path) -> SearchRecord:
    found = SearchRecord.read(place(out, "fedprox", "d"))
    assert found is not None
    return found


def test_numbers_are_searched_by_the_metric_that_the_study_reports(tmp_path: Path) -> None:
    path = write(tmp_path / "sites.csv", [row for row in rows() if row[2]])
    numbers = (
        f"table(path='{path}', domain='site', label='v', task='regression', groups=['region'])"
    )
    results = study(numbers, **ALL, tune={"trials": 2}).run(tmp_path / "out")
    assert record(tmp_path / "out").metric == results.metric == "rmse"
