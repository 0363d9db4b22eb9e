"""Labels far from 0 beside their spread: nothing is cut to float32 before they are centred."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import unseen
from unseen.core.labels import exact_numbers
from unseen.core.survival import Intervals


def table(offset: float) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    a, b = draw.normal(60, 10, 150).round(1), draw.normal(0, 1, 150).round(2)
    site = np.repeat(["north", "south", "west"], 50)
    return pd.DataFrame({"site": site, "a": a, "b": b, "y": 2 * a + 3 * b + offset})


@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_figures_are_measured_against_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: float
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    frame = table(offset)
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.drop(columns="y").to_parquet(tmp_path / "t.parquet")
    data = f"table(path='{tmp_path}/t.csv', domain='site', label='y', task='regression')"
    study = unseen.Study(dataset=data, methods=["glm"])
    model = unseen.train(study, tmp_path / "model", holdout="west")
    west = frame["site"] == "west"
    for rows in (frame, tmp_path / "t.csv", tmp_path / "t.parquet"):
        answers = unseen.predict(model, rows).prediction.astype(float).to_numpy()
        rmse = float(np.sqrt(np.mean((answers - frame["y"])[west] ** 2)))
        assert rmse < 1
    said = unseen.evaluate(
        model, tmp_path / "t.csv", label="y", domain="site", metrics=["rmse"], domains="west"
    )
    assert said.sites[0].metrics["rmse"].value == pytest.approx(rmse, rel=1e-3)
    framed = unseen.evaluate(model, frame, metrics=["rmse"], domains="west")
    assert framed.sites[0].metrics["rmse"].value == pytest.approx(rmse, rel=1e-3)


def test_labels_near_0_stay_float32_and_far_ones_do_not() -> None:
    assert exact_numbers([0.1, 2.7, 1e3]).dtype == torch.float32
    assert exact_numbers([1e9, 1e9 + 64]).dtype == torch.float32  # which float32 holds
    assert exact_numbers([1e9 + 1, 1e9 + 3]).dtype == torch.float64
    times = exact_numbers([(1e9 + 1, 1.0), (1e9 + 3, 0.0)])
    assert times.dtype == torch.float64
    units = Intervals((1e9, 1e9 + 4)).standardised(times)[:, 0]
    assert units.tolist() == [1.25, 1.75]


def test_estimators_refuse_what_they_cannot_fit_or_follow() -> None:
    X, y = np.arange(6.0)[:, None], np.arange(6.0)
    with pytest.raises(unseen.UnseenError, match="y has numbers as large as 5e\\+200"):
        unseen.FederatedRegressor().fit(X, 1e200 * y)
    with pytest.raises(unseen.UnseenError, match="rounds must be a whole number; found 'until"):
        unseen.FederatedRegressor(rounds="until-flat(most=200)").fit(X, y)


def test_estimators_refuse_words_in_arrays_and_in_columns_of_numbers() -> None:
    frame = table(0.0).assign(sex=["f", "m"] * 75)
    model = unseen.FederatedRegressor()
    with pytest.raises(unseen.UnseenError, match="could not convert string .* a data frame"):
        model.fit(frame[["a", "sex"]].to_numpy(), frame["y"])
    model.fit(frame[["a", "b"]], frame["y"])
    with pytest.raises(unseen.UnseenError, match="or correct the cell"):
        model.predict(frame[["a", "b"]].assign(b="f"))
