"""Data frames that lack what a model needs, and how a result shows itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.federations import photo_study, table_study, trained, write_table

import unseen
from unseen.errors import UnseenError
from unseen.serving.directory import Trained

pandas = pytest.importorskip("pandas", reason="the extra pandas is not installed")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("rows")
    return trained(table_study(folder, 'holdout = "west"'), folder / "model")


@pytest.fixture
def frame(tmp_path: Path) -> object:
    return pandas.read_csv(write_table(tmp_path / "visits.csv"))


def test_a_frame_without_a_column_is_refused(model: Trained, frame: object) -> None:
    for rows in (frame, frame.head(1), frame.head(0)):
        for use in (unseen.predict, unseen.evaluate):
            with pytest.raises(UnseenError, match=r"^the data frame lacks the column age\.$"):
                use(model, rows.drop(columns=["age"]))
    with pytest.raises(UnseenError, match="lacks the columns age, dose"):
        unseen.predict(model, frame.drop(columns=["age", "dose"]))


def test_a_frame_without_rows_has_no_answers(model: Trained, frame: object) -> None:
    none, some = unseen.predict(model, frame.head(0)), unseen.predict(model, frame.head(3))
    assert len(none) == 0 and list(none.columns) == list(some.columns)
    assert none["p(yes)"].dtype == some["p(yes)"].dtype == "float64"
    assert none["prediction"].dtype == some["prediction"].dtype
    with pytest.raises(
        UnseenError, match="none of the data can be measured; the data frame: has no rows"
    ):
        unseen.evaluate(model, frame.head(0))


def test_a_frame_of_which_no_row_is_usable_is_refused(model: Trained, frame: object) -> None:
    with pytest.raises(
        UnseenError, match=r"; row 0: age = 'old' is not a number \(the first of 72\)"
    ):
        unseen.evaluate(model, frame.assign(age="old"))
    with pytest.raises(UnseenError, match="its label died is missing"):
        unseen.evaluate(model, frame.assign(died=None), domains=["west"])
    found = unseen.evaluate(model, frame.assign(died=[None, *frame["died"][1:]]))
    assert len(found.faults) == 1 and "; the first: row 0: its label died is missing" in repr(found)
    lines = frame.assign(
        died=["yes", None, *frame["died"][2:]], id=["two\nlines", *frame["id"][1:]]
    )
    (fault,) = unseen.evaluate(model, lines).faults
    assert str(fault) == "row 1: its label died is missing"


def test_a_frame_is_no_image(tmp_path: Path, frame: object) -> None:
    of_photos = trained(photo_study(tmp_path), tmp_path / "model")
    with pytest.raises(UnseenError, match="takes images, not rows"):
        unseen.predict(of_photos, frame)


def test_a_result_shows_its_figures(model: Trained, frame: object) -> None:
    found = unseen.evaluate(model, frame, detail=True)
    shown = repr(found).splitlines()
    assert shown[0].split()[:3] == ["site", "in", "training"] and len(shown) == 5
    assert "tensor" not in repr(found) and repr(found) == str(found)
    page = found._repr_html_()
    assert page.startswith("<pre>site") and "true \\ predicted" in page
