"""What a search scores where labels are numbers, or a metric has no value at some sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.small_studies import rows, study, write

from unseen.errors import UnseenError
from unseen.studies.execution.plan import prepare_study
from unseen.studies.results.search_records import SearchRecord, TrialRecord, place, winner

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


def test_what_a_search_scores_is_measured_though_the_study_does_not_name_it(tmp_path: Path) -> None:
    path = write(tmp_path / "sites.csv", rows())
    search = {"metric": "auroc", "trials": 2, "space": {"rounds": "until-flat(limit=whole(2, 3))"}}
    planned = prepare_study(study(path, **ALL, metrics=["accuracy"], tune=search), tmp_path / "out")
    assert planned.setting.metrics == ("accuracy", "auroc", "loss")


def one_class(*sites: str) -> list[list[str]]:
    """The rows, those of some sites with the label 1 alone."""
    return [[*row[:5], "1" if row[0] in sites else row[5]] for row in rows()]


def test_sites_where_the_metric_has_no_value_are_left_out_of_a_score(tmp_path: Path) -> None:
    path = write(tmp_path / "sites.csv", one_class("a", "c"))
    # The groups are a with c, which are played first, and b.
    search = {"metric": "auroc", "criterion": "lodo(groups=2)", "trials": 3}
    study(path, **ALL, tune=search).run(tmp_path / "out")
    trials = record(tmp_path / "out").trials
    assert [(trial.state, list(trial.sites)) for trial in trials] == [("done", ["b"])] * 3


def test_a_metric_without_a_value_at_any_source_scores_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "sites.csv", one_class("a", "b", "c"))
    wrong = study(path, **ALL, tune={"metric": "auroc", "trials": 2})
    with pytest.raises(UnseenError, match=r"auroc has no value at any source of task 'd'"):
        wrong.run(tmp_path / "out")


def test_a_trial_is_not_ahead_by_having_no_figure_where_it_is_bad() -> None:
    def trial(**sites: float) -> TrialRecord:
        return TrialRecord({}, "fedavg", {}, "done", sum(sites.values()) / len(sites), sites)

    trials = [trial(a=0.5, b=0.7), trial(b=0.9), trial(a=0.6, b=0.6), TrialRecord({}, "x", {})]
    assert winner(trials, lower=False) == 0
    assert winner(trials, lower=True) == 0
    assert winner(trials[1:], lower=False) == 1
    assert winner(trials[3:], lower=False) == 0
