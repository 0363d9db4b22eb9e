"""A search that cannot work is refused before its first trial, with what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.small_studies import refused, rows, study, write

from unseen.errors import UnseenError
from unseen.studies.execution.plan import prepare_study

ALL: dict[str, Any] = {"methods": ["fedprox", "fedavg+ga"], "targets": ["d"]}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "sites.csv", rows())


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"dataset": "one('rotated-digits', 'sine')"}, ("dataset is the same in all trials",)),
        ({"holdout": "one('a', 'b')"}, ("holdout is the same", "training")),
        ({"methods": "one('fedavg', 'glm')"}, ("methods is the same",)),
        ({"seeds": "whole(1, 3)"}, ("seeds is the same",)),
        ({"privacy.examples": "dp(clip=1.0, noise=one(0.1, 1.0), delta=1e-5)"}, ("privacy is",)),
        ({"tune.trials": "whole(1, 3)"}, ("tune is the same",)),
        ({"fedprox.muu": "log(0.01, 1)"}, ("unknown option of fedprox 'muu'", "'mu'")),
        ({"fedprx.mu": "log(0.01, 1)"}, ("'fedprx'", "'fedprox'")),
        ({"traning.batch_size": "one(4, 8)"}, ("unknown setting", "'traning'")),
        ({"fedprox.mu": "mu=log(0.01, 1)"}, ("fedprox.mu is a range and nothing else",)),
        ({"fedprox.mu": "[log(0.01, 1)]"}, ("fedprox.mu is a range and nothing else",)),
        ({"fedprox.mu": "uniform(-1, 1)"}, ("fedprox(mu) must be a number in [0",)),
        ({"training.optimizer": "sgd(lr=log(0.01, 1))"}, ("did you mean 'optimiser'",)),
        ({"training.optimiser": "log(0.01, 1)"}, ("training.optimiser must be a text",)),
        ({"rounds": "log(1, 5)"}, ("rounds must be an integer", "found 2.472")),
        ({"model": "mlp(widths=[one(4, 0)])"}, ("widths",)),
    ],
)
def test_a_space_that_cannot_be_searched(
    table: Path, tmp_path: Path, space: dict[str, Any], words: tuple[str, ...]
) -> None:
    refused(study(table, **ALL, tune={"space": space}), tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"participation": 3}, ("participation = 3 clients per round", "has 2 source")),
        ({"training": {"batch_size": 8}, "privacy": {"channel": "masks()"}, "methods": ["fedavg"]},
         ("masks",)),
    ],
)  # fmt: skip
def test_a_study_that_fits_all_sources_and_not_those_of_a_trial(
    table: Path, tmp_path: Path, settings: dict[str, Any], words: tuple[str, ...]
) -> None:
    search = {"criterion": "lodo(groups=3)" if "participation" in settings else "lodo(groups=2)"}
    wrong = study(table, **ALL | settings, tune=search)
    refused(wrong, tmp_path / "out", *words)


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"rounds": 4}, ("tune.rounds allows 4 rounds, and the study has 3",)),
        ({"rounds": "4"}, ("tune.rounds allows 4 rounds",)),
        ({"rounds": "until-flat(limit=9)"}, ("tune.rounds allows 9 rounds",)),
        (
            {"rounds": "until-flat(patience=3, limit=2)"},
            ("waits for 3 rounds, and the study for 2",),
        ),
        ({"rounds": "until-flat(limit='2')"}, ("rounds must be an integer", "found '2'")),
        ({"rounds": "until-flat(patience=0, limit=2)"}, ("patience must be an integer of at",)),
        ({"rounds": 2, "space": {"rounds": "whole(1, 3)"}}, ("tune.rounds says", "searches it")),
        ({"rounds": "until-flatt(limit=2)"}, ("until-flat",)),
        ({"rounds": "until-flat(limit=0)"}, ("tune.rounds", "at least 1; found 0")),
        ({"rounds": 0}, ("rounds",)),
    ],
)
def test_a_length_of_trials_that_cannot_be(
    table: Path, search: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(UnseenError) as caught:
        study(table, **ALL, rounds="until-flat(patience=2, limit=3)", tune=search)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("metric", ["acuracy", "worst accuracy@kind"])
def test_an_unknown_metric_of_a_search(table: Path, tmp_path: Path, metric: str) -> None:
    wrong = study(table, **ALL, groups=["region"], tune={"metric": metric})
    refused(wrong, tmp_path / "out", "unknown metric", metric)


def test_a_range_for_a_method_that_is_not_there_is_named(table: Path, tmp_path: Path) -> None:
    space = {"fedsam.rho": "log(0.01, 0.1)", "ga.step": "one(0.1, 0.2)"}
    planned = prepare_study(study(table, **ALL, tune={"space": space}), tmp_path / "out")
    unused, untrained = (text for text in planned.warnings if "tune" in text)
    assert "fedsam.rho" in unused and "no method of this study is fedsam" in unused
    assert "no range of the training" in untrained


def test_a_search_without_a_range_of_the_training_is_said_so(table: Path, tmp_path: Path) -> None:
    ranges = {"training.optimiser": "sgd(lr=log(0.01, 0.1))"}
    for space, expected in (({}, 1), (ranges, 0)):
        planned = prepare_study(study(table, **ALL, tune={"space": space}), tmp_path / "out")
        found = [text for text in planned.warnings if "keeps its learning rate" in text]
        assert len(found) == expected
