"""Data frames as tables: which columns have a role, and errors that speak of the frame's rows."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from unseen.data import load
from unseen.data.dataset import DataSet
from unseen.data.tables import delimited
from unseen.data.tables.frames import OPTIONS, expression_of
from unseen.errors import UnseenError

pandas = pytest.importorskip("pandas", reason="the extra pandas is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def made_frame(n: int = 40, **columns: Any) -> Any:
    frame = pandas.DataFrame({
        "site": ["a", "b"] * (n // 2), "age": range(n), "drug": [*"xxyy"] * (n // 4),
        "died": [*"nnynyyyn"] * (n // 8),
    })  # fmt: skip
    return frame.assign(**columns)


def table(frame: Any, **options: Any) -> DataSet:
    return load(expression_of(frame, "site", "died", **options))


def features(data: DataSet) -> tuple[str, ...]:
    assert data.schema is not None
    return data.schema.names


def test_a_column_of_words_may_be_dropped_grouped_or_text() -> None:
    frame = made_frame()
    for several in ("drug", ["drug"]):
        assert features(table(frame, drop=several)) == ("age",)
        assert table(frame, groups=several).levels == {"drug": ("x", "y")}
    frame = made_frame(drug=["the pain is back", "all well"] * 20)
    data = table(frame, text="drug", text_features=8)
    assert features(data) == ("age", "drug") and data["a"].x.shape[1] == 9
    dated = made_frame(when=pandas.date_range("2020-01-01", periods=40))
    assert features(table(dated, drop=["when"])) == ("age", "drug")
    with pytest.raises(UnseenError, match=r"'when' holds times.*drop=\['when'\]"):
        table(dated)
    with pytest.raises(UnseenError, match="'when' holds times"):
        table(dated.assign(when=dated["when"] - dated["when"][0]))


def test_options_of_a_table_stand_beside_a_frame() -> None:
    others = {"data_dir", "path"}
    assert {*OPTIONS} == {*signature(delimited.load).parameters} - others
    frame = made_frame()
    frame.loc[3, "died"] = None
    assert len(table(frame, missing_label="drop")["b"].y) == 19
    assert table(made_frame(), without=["b"]).names == ("a",)
    assert table(made_frame(), positive="n").classes == ("y", "n")
    data = table(made_frame(code=[1, 2] * 20), categorical=["code"])
    assert data.schema is not None and set(data.schema.categories) == {"drug", "code"}
    data = table(made_frame(drug=["?", None, "x", "y"] * 10), missing=["?"])
    assert data.schema is not None and data.schema.categories["drug"] == ("x", "y")
    frame = made_frame(died=[i / 7 for i in range(40)])
    assert (
        table(frame).standardise == "died" and table(frame, standardise=False).standardise is None
    )
    for option in ("separator", "decimal", "encoding"):
        with pytest.raises(UnseenError, match=f"{option} says how a file is written"):
            table(made_frame(), **{option: ";"})


def test_texts_of_a_frame_are_identifiers_as_in_a_file() -> None:
    frame = made_frame(visit=[f"v{i}" for i in range(40)])
    with pytest.raises(UnseenError, match="'visit' .* of the data frame looks like an identifier"):
        table(frame)
    assert features(table(frame, drop="visit")) == ("age", "drug")
    for options in ({"identifiers": "keep"}, {"categorical": ["visit"]}):
        assert "visit" in features(table(frame, **options))
    rare = [f"n{i % 60}" for i in range(160)]
    (note,) = table(made_frame(160, who=rare)).notes
    assert "the column 'who' has 60 values" in note


def test_errors_speak_of_the_rows_of_a_frame() -> None:
    frame = made_frame()
    frame.loc[[3, 8], "died"] = None
    with pytest.raises(UnseenError) as caught:
        table(frame)
    said = str(caught.value)
    assert "2 of 40 rows of the data frame have no value in 'died'" in said
    assert "the first in row 3 (counted from 0)" in said
    frame = made_frame(age=[float("inf"), *range(39)])
    with pytest.raises(UnseenError, match=r"^row 0 \(counted from 0\) of the data frame has 'inf'"):
        table(frame)
    assert table(made_frame()).source == "the data frame"


def test_frames_without_rows_or_with_two_columns_of_a_name_are_refused() -> None:
    with pytest.raises(UnseenError, match="the data frame has no rows"):
        table(made_frame()[:0])
    twice = made_frame().rename(columns={"drug": "age"})
    with pytest.raises(UnseenError, match="more than one column called 'age'"):
        table(twice)


def test_an_expression_stays_as_it_was_for_a_study_that_is_run_again() -> None:
    frame = made_frame()
    frame["sex"] = "f"
    said = expression_of(frame, "site", "died", groups=("sex",), drop=["age"])
    assert said.endswith("groups=('sex',), drop=['age'], categorical=['drug'])")
