"""The metric that a choice is judged by: what fits the data, and another one afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.small_studies import rows, study, write

from unseen.studies.choice import Candidates, choose, play
from unseen.studies.choice.playing import data_of
from unseen.studies.choice.refusals import judged_by, served


def table(folder: Path, share: int) -> str:
    """Four sites; one row of so many is of the rarer class."""
    body = [[*row[:-1], str(int(i % share == 0))] for i, row in enumerate(rows("abcd"))]
    return write(folder / "sites.csv", body)


@pytest.mark.parametrize(("share", "metric"), [(2, ""), (5, "auroc")])
def test_accuracy_is_not_asked_for_where_one_class_is_most(
    tmp_path: Path, share: int, metric: str
) -> None:
    one = study(table(tmp_path, share))
    judged = judged_by(one, data_of(one, None))
    assert judged.metric == metric and bool(judged.why) == bool(metric)
    if metric:
        assert "79% of the rows are of one class" in judged.why


def test_the_study_s_own_metric_stays(tmp_path: Path) -> None:
    one = study(table(tmp_path, 5), metric="balanced-accuracy")
    judged = judged_by(one, data_of(one, None))
    assert judged.metric == "balanced-accuracy" and not judged.why


def test_another_metric_trains_nothing(tmp_path: Path) -> None:
    path, out = table(tmp_path, 3), tmp_path / "out"

    def answer(metric: str) -> str:
        one = study(path, metric=metric, rounds=1)
        candidates = served(Candidates(one, ["fedavg", "glm"], 4, (1.0,), alone=False), None)
        return choose(play(candidates, out)).metric

    assert answer("accuracy") == "accuracy"
    times = {file: file.stat().st_mtime_ns for file in out.rglob("target.jsonl")}
    assert times
    assert answer("loss") == "loss" and answer("auroc") == "auroc"
    assert {file: file.stat().st_mtime_ns for file in out.rglob("target.jsonl")} == times


def test_the_model_is_judged_by_the_same_metric(tmp_path: Path) -> None:
    one = study(table(tmp_path, 5), rounds=1)
    candidates = served(Candidates(one, ["fedavg", "glm"], 4, (1.0,), alone=False), None)
    found = choose(play(candidates, tmp_path / "out"))
    assert found.study["metric"] == found.metric == "auroc"
