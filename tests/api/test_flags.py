"""True and False of a frame are 1 and 0, whatever the column's type and gaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unseen
from unseen.data import load
from unseen.data.dataset import DataSet
from unseen.data.tables.frames import expression_of

pandas = pytest.importorskip("pandas", reason="the extra pandas is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def made(gaps: bool = False) -> Any:
    draw = np.random.default_rng(0)
    age, smokes = draw.normal(60, 10, 120), draw.random(120) < 0.4
    died = age + 6 * smokes + draw.normal(0, 5, 120) > 62
    flags = pandas.Series(smokes, dtype=object)
    if gaps:
        flags[::7] = None
    return pandas.DataFrame({"site": [*"abc"] * 40, "age": age, "smokes": flags, "died": died})


def table(frame: Any, **options: Any) -> DataSet:
    return load(expression_of(frame, "site", "died", **options))


@pytest.mark.parametrize("gaps", [False, True])
def test_flags_among_objects_are_the_flags_of_a_column_of_their_own(gaps: bool) -> None:
    frame = made(gaps)
    for kind in ("boolean", object):
        data = table(frame.astype({"smokes": kind}))
        assert data.schema is not None and not data.schema.categories
        assert data.classes == ("0", "1")
        column = data.schema.columns.index("smokes")
        cells = np.concatenate([domain.x[:, column].numpy() for domain in data.domains])
        expected = [frame.smokes[frame.site == site].astype(float) for site in "abc"]
        np.testing.assert_array_equal(cells, np.concatenate(expected))


def test_flags_named_as_categories_are_called_0_and_1_with_gaps_or_without() -> None:
    for gaps in (False, True):
        frame = made(gaps)
        for data in (
            table(frame, categorical=["smokes"]),
            table(frame.astype({"smokes": "category"})),
            table(frame, groups="smokes"),
        ):
            assert data.schema is not None
            names = data.schema.categories.get("smokes") or data.levels["smokes"]
            assert names[:2] == ("0", "1")
    frame = made().astype({"died": object})
    frame.loc[3, "died"] = None
    assert table(frame, missing_label="drop").classes == ("0", "1")


@pytest.mark.parametrize("positive", [False, "False", "false", 0, "0"])
def test_the_positive_class_is_a_flag_however_it_is_spelt(positive: Any, tmp_path: Path) -> None:
    frame, path = made(), tmp_path / "rows.csv"
    assert table(frame, positive=positive).classes == ("1", "0")
    frame.to_csv(path, index=False)
    options = {"domain": "site", "label": "died", "positive": positive}
    assert load("table", path=str(path), **options).classes == ("True", "False")


def test_words_are_still_words_and_an_unknown_class_is_none() -> None:
    words = made().astype({"smokes": str})
    data = table(words)
    assert data.schema is not None and data.schema.categories["smokes"] == ("False", "True")
    with pytest.raises(unseen.UnseenError, match=r"class \(for positive\) 'yes'"):
        table(made(), positive="yes")


def test_a_model_with_categories_of_flags_answers_flags(tmp_path: Path) -> None:
    """As models have that were trained before, when flags among objects were categories."""
    frame = made(gaps=True)
    options = {"domain": "site", "label": "died", "categorical": ["smokes"]}
    study = unseen.Study(dataset=frame, methods=["glm"], **options)
    model = unseen.train(study, tmp_path / "model")
    answers = unseen.predict(model, frame)
    assert answers["error"].isna().all()
    nullable = unseen.predict(model, frame.astype({"smokes": "boolean"}))
    np.testing.assert_array_equal(answers["p(1)"], nullable["p(1)"])
