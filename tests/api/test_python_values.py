"""Data frames, arrays, classes and recipes as settings, and the commands as functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

import unseen
from unseen.errors import UnseenError
from unseen.studies.execution.python_values import path_of

pandas = pytest.importorskip("pandas", reason="the extra pandas is not installed")


class Small(nn.Module):
    """A network of one's own."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], outputs)

    def forward(self, x: object) -> object:
        return self.layer(x)


@pytest.fixture
def frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    draw = np.random.default_rng(1)
    n = 90
    age = draw.normal(60, 10, n)
    return pandas.DataFrame({
        "age": age, "drug": draw.choice(["a", "b"], n), "smokes": draw.random(n) < 0.3,
        "hospital": np.repeat(["north", "south", "west"], n // 3),
        "died": np.where(age + draw.normal(0, 5, n) > 60, "yes", "no"),
    })  # fmt: skip


def test_a_frame_is_studied_trained_predicted_and_evaluated(frame: object, tmp_path: Path) -> None:
    study = unseen.Study(
        dataset=frame, domain="hospital", label="died", model=Small, methods=["fedavg"],
        training={"optimiser": "sgd(lr=0.1)", "batch_size": 8}, holdout="west",
        rounds=5, seeds=1,
    )  # fmt: skip
    assert study.model == f"{Small.__module__}:Small"
    assert study.training.optimiser == "sgd(lr=0.1)" and study.training.batch_size == 8
    (written,) = (tmp_path / "cache").rglob("*.parquet")
    assert written.stat().st_mode & 0o077 == 0
    model = unseen.train(study, tmp_path / "model", leave_out=None)
    answers = unseen.predict(model, frame, threshold="youden")
    assert list(answers["prediction"].unique()) and len(answers) == 90
    assert answers["p(yes)"].between(0, 1).all()
    found = unseen.evaluate(model, frame, metrics=["sensitivity", "brier"], detail=True)
    (west,) = (site for site in found.sites if site.name == "west")
    own = answers[frame["hospital"] == "west"]
    truth = (frame["died"] == "yes")[own.index]
    brier = ((own["p(yes)"] - truth) ** 2).mean()
    assert west.metrics["brier"].value == pytest.approx(brier, abs=1e-6)


def test_arrays_and_columns_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    x, y, sites = np.eye(6), [0, 1, 0, 1, 0, 1], ["a", "a", "a", "b", "b", "b"]
    study = unseen.Study(dataset=(x, np.array(y), np.array(sites)))
    assert "domain='site', label='label'" in study.dataset
    with pytest.raises(UnseenError, match="axes"):
        unseen.Study(dataset=(np.zeros((6, 2, 2)), y, sites))
    with pytest.raises(UnseenError, match="did you mean 'hospital'"):
        unseen.Study(
            dataset=pandas.DataFrame({"hospital": sites, "y": y}), domain="hospitl", label="y"
        )


def test_what_no_process_could_import_is_refused() -> None:
    with pytest.raises(UnseenError, match="cannot be imported by name"):
        path_of(lambda shape: None)
    with pytest.raises(UnseenError, match="training must be a table.*In Python it is a dict"):
        unseen.Study(training=unseen.Training())


def test_every_public_name_is_there_and_completes() -> None:
    assert set(unseen.__all__) <= set(dir(unseen))
    for name in unseen.__all__:
        assert getattr(unseen, name) is not None
