"""A lone text where several names may stand is one name, not its letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unseen
from unseen.api import choose
from unseen.errors import UnseenError
from unseen.studies.choice import playing

pandas = pytest.importorskip("pandas", reason="the extra pandas is not installed")


@pytest.fixture(scope="module")
def frame() -> Any:
    """Sites of which one is called by the letters of two others."""
    draw = np.random.default_rng(0)
    age = draw.normal(60, 10, 160)
    return pandas.DataFrame({
        "age": age, "sex": draw.choice(["f", "m"], 160), "site": ["n", "s", "w", "ns"] * 40,
        "died": np.where(age + draw.normal(0, 9, 160) > 60, "yes", "no"),
    })  # fmt: skip


@pytest.fixture(scope="module")
def study(frame: Any) -> unseen.Study:
    return unseen.Study(dataset=frame, domain="site", label="died", methods=["glm"], groups="sex")


@pytest.fixture(scope="module")
def model(study: unseen.Study, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return unseen.train(study, tmp_path_factory.mktemp("lone") / "model")


def test_evaluate_takes_a_domain_a_metric_and_a_column(frame: Any, model: Any) -> None:
    found = unseen.evaluate(model, frame, domains="ns", metrics="auroc", groups="sex")
    several = unseen.evaluate(model, frame, domains=["ns"], metrics=["auroc"], groups=["sex"])
    assert [site.name for site in found.sites] == ["ns"]
    assert found.sites == several.sites and found.tables == several.tables
    assert {*unseen.evaluate(model, frame, metrics="all").sites[0].metrics} > {"auroc", "loss"}


def test_choose_takes_a_recipe(
    study: unseen.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Any]()

    def play(candidates: playing.Candidates, *folder: Path, **others: Any) -> None:
        asked.append(candidates.recipes)
        raise UnseenError("enough.")

    monkeypatch.setattr("unseen.api.choose_function.play", play)
    for recipes in ("glm", ["glm"]):
        with pytest.raises(UnseenError, match="enough"):
            choose(study, tmp_path, recipes=recipes)
    assert asked == [("glm",), ("glm",)]


def test_run_takes_a_tracker(study: unseen.Study, tmp_path: Path) -> None:
    with pytest.raises(UnseenError, match="unknown tracker 'wandb'"):
        study.run(tmp_path / "run", track="wandb")
