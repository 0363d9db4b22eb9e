"""Errors speak of what a Python user passed: a frame and options, not files and command lines."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unseen
from unseen.api.functions import AnswerKeywords, PredictKeywords
from unseen.errors import UnseenError
from unseen.serving.answer_options import AnswerOptions, PredictOptions

pandas = pytest.importorskip("pandas", reason="the extra pandas is not installed")


@pytest.fixture(scope="module")
def frame() -> Any:
    draw = np.random.default_rng(0)
    age = draw.normal(60, 10, 90)
    died = np.where(age + draw.normal(0, 9, 90) > 60, "yes", "no")
    return pandas.DataFrame({"age": age, "site": [*"abc"] * 30, "died": died})


def study(frame: Any, **options: Any) -> unseen.Study:
    names = {"domain": "site", "label": "died", "methods": ["glm"]}
    return unseen.Study(dataset=frame, **{**names, **options})


@pytest.fixture(scope="module")
def model(frame: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return unseen.train(study(frame), tmp_path_factory.mktemp("words") / "model")


def test_a_frame_without_labels_is_called_a_frame(frame: Any, model: Any) -> None:
    with pytest.raises(UnseenError, match=r"column of the data frame \(for label\) 'died'"):
        unseen.evaluate(model, frame.drop(columns="died"))
    with pytest.raises(UnseenError, match=r"column of the data frame \(for the site\) 'town'"):
        unseen.evaluate(model, frame, domain="town")
    with pytest.raises(UnseenError, match=r"column \(for groups\) 'sex'"):
        unseen.evaluate(model, frame, groups=["sex"])


def test_a_file_is_named_by_its_path(frame: Any, model: Any, tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    frame.drop(columns="died").to_csv(path, index=False)
    with pytest.raises(UnseenError, match=r"column of .*new\.csv \(for label\) 'died'"):
        unseen.evaluate(model, path)


@pytest.mark.parametrize("name", ["", "  "])
def test_a_column_without_a_name_is_named_by_its_place(frame: Any, name: str) -> None:
    with pytest.raises(UnseenError, match="the data frame has no name for column 0 ") as caught:
        study(frame.rename(columns={"age": name}))
    assert ".csv" not in str(caught.value) and "rename(columns=" in str(caught.value)


def test_options_are_named_as_both_know_them(frame: Any, model: Any, tmp_path: Path) -> None:
    with pytest.raises(UnseenError, match=r"--leave-out 5 \(in Python: leave_out=5\)") as caught:
        unseen.predict(model, frame, coverage=0.8)
    assert str(caught.value).startswith("coverage needs")
    with pytest.raises(UnseenError, match=r"--method \(in Python: method=\.\.\.\)"):
        unseen.train(study(frame, methods=["glm", "fedavg"]), tmp_path / "model")
    for options, what in (
        ({"abstain": 1.5}, "abstain takes"),
        ({"times": [3.0]}, "times is for"),
    ):
        with pytest.raises(UnseenError, match=f"^{what}"):
            unseen.predict(model, frame, **options)
    with pytest.raises(UnseenError, match="^calibrate must be one of"):
        unseen.train(study(frame), tmp_path / "model", calibrate="isotonic")
    with pytest.raises(UnseenError, match="^leave_out needs three"):
        unseen.train(study(frame, without=["a"]), tmp_path / "two", leave_out=2)


@pytest.mark.parametrize("found", [{"dataset": "digits"}, ["a.toml"], None])
def test_what_is_no_study_is_refused_in_plain_words(found: Any, tmp_path: Path) -> None:
    kind = type(found).__name__
    with pytest.raises(UnseenError, match=f"a study, or its name or file; found {kind}") as caught:
        unseen.train(found, tmp_path / "model")
    assert "unseen.Study(" in str(caught.value)


def test_functions_take_the_options_of_the_commands() -> None:
    for keywords, options in ((PredictKeywords, PredictOptions), (AnswerKeywords, AnswerOptions)):
        assert keywords.__annotations__.keys() == {field.name for field in fields(options)}
    with pytest.raises(UnseenError, match="did you mean 'threshold'"):
        unseen.predict("model", [], treshold=0.3)  # type: ignore[call-arg]
