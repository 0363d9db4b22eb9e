"""Names that stand for studies, files that stand on others."""

from __future__ import annotations

from pathlib import Path

import pytest

from unseen.errors import UnseenError
from unseen.studies.execution import Study
from unseen.studies.settings.named import members, settings_of
from unseen.studies.settings.study import StudySpec, recorded


def test_a_file_that_stands_on_another_says_only_what_differs(tmp_path: Path) -> None:
    base, own = tmp_path / "base.toml", tmp_path / "own.toml"
    base.write_text('rounds = 7\nseeds = 2\n[training]\nepochs = 3\noptimiser = "sgd(lr=0.5)"\n')
    own.write_text(f'base = "{base}"\nseeds = 1\n[training]\nepochs = 4\n')
    study = Study.read(own)
    assert (study.name, study.rounds, study.seeds) == ("own", 7, 1)
    assert (study.training.epochs, study.training.optimiser) == (4, "sgd(lr=0.5)")


def test_a_study_of_other_data_has_neither_title_nor_figures_of_the_first(tmp_path: Path) -> None:
    printed = '[published.accuracy.FedAvg]\naverage = "85.0"\n'
    (tmp_path / "first.toml").write_text(f'title = "First"\ndataset = "lung"\n{printed}')
    other = Study.read(tmp_path / "first.toml", {"dataset": "rotated-digits"})
    assert other.title == "rotated-digits" and not other.published
    (tmp_path / "own.toml").write_text(
        f'base = "{tmp_path / "first.toml"}"\ndataset = "rotated-digits"\n'
    )
    assert Study.read(tmp_path / "own.toml").model_copy(update={"name": "first"}) == other
    same = Study.read(tmp_path / "first.toml", {"rounds": 3})
    assert same.title == "First" and same.published


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    assert members("digits") == ("digits",)
    with pytest.raises(UnseenError, match="unknown study 'digit'; did you mean 'digits'"):
        members("digit")


def test_a_search_loses_nothing_by_naming_what_differs(tmp_path: Path) -> None:
    base, own = tmp_path / "base.toml", tmp_path / "own.toml"
    base.write_text(
        '[tune]\ntrials = 5\n[tune.space]\n"training.optimiser" = "sgd(lr=log(0.1, 1))"\n'
    )
    own.write_text(f'base = "{base}"\n[tune]\ncriterion = "lodo(groups=2)"\n')
    tune = settings_of(str(own))[0]["tune"]
    assert tune == {
        "trials": 5, "criterion": "lodo(groups=2)",
        "space": {"training.optimiser": "sgd(lr=log(0.1, 1))"},
    }  # fmt: skip


def test_a_base_that_is_not_there(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('base = "digit"\n')
    with pytest.raises(UnseenError, match="unknown study 'digit'; did you mean 'digits'"):
        Study.read(own)


def test_records_of_earlier_versions_are_read_without_a_setting_that_has_gone() -> None:
    assert StudySpec(**recorded({"memory_format": "auto"})).training.weights == "method"
    with pytest.raises(UnseenError, match="unknown setting 'memory_format'"):
        StudySpec(**recorded({"memory_format": "contiguous"}))
