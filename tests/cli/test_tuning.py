"""`unseen tune` as a user calls it: what it keeps away, what it says when nothing can be chosen."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from support.command_line import Command
from support.small_studies import expression, rows, write

from unseen.api import functions as api
from unseen.studies.execution import Study
from unseen.studies.settings.study import StudySpec

SPACE = "training.optimiser=sgd(lr=one(0.01, 0.5))"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    table = write(tmp_path / "sites.csv", rows())
    text = f"dataset = '''{expression(table)}'''\nmodel = 'logistic'\nrounds = 1\nseeds = 1\n"
    (tmp_path / "mine.toml").write_text(f"{text}training = {{batch_size = 8}}\n")
    return tmp_path / "mine.toml"


def command(file: Path, *more: str) -> list[str]:
    return [
        "tune", str(file), "--space", SPACE, "--criterion", "lodo(groups=2)", "--trials", "2",
        "--out", str(file.parent / "tuned"), *more,
    ]  # fmt: skip


def sites(folder: Path) -> set[str]:
    """The sites that trained or were scored in any trial."""
    lines = [line for path in folder.rglob("*.jsonl") for line in path.read_text().splitlines()]
    return {name for name in "abcd" if any(f'"{name}"' in line for line in lines)}


@pytest.mark.parametrize(
    "plan", ['targets = ["d"]', 'holdout = "d"', '[holdout]\nsource = "others"\ntarget = ["d"]']
)
def test_a_target_that_the_studys_file_names_has_no_part(
    file: Path, unseen: Command, plan: str
) -> None:
    first, _, rest = file.read_text().partition("training")
    top, below = (plan, "") if plan.startswith(("targets", "holdout")) else ("", plan)
    file.write_text(f"{first}{top}\ntraining{rest}{below}\n")
    ran = unseen(*command(file))
    assert ran.code == 0, ran.err
    assert sites(file.parent / "tuned") == {"a", "b", "c"}
    (written,) = (file.parent / "tuned").glob("*.toml")
    assert unseen("train", str(written), "--out", str(file.parent / "model")).code == 0
    assert StudySpec.read(written).holdout == StudySpec.read(file).holdout


def test_without_a_plan_all_sites_have_a_part(file: Path, unseen: Command) -> None:
    assert unseen(*command(file)).code == 0
    assert sites(file.parent / "tuned") == set("abcd")


def test_in_python_the_same_is_searched_at_the_same_sites(file: Path, unseen: Command) -> None:
    """The rate from a tenth to ten times the study's, where nobody names a setting."""
    training = "[training]\nbatch_size = 8\noptimiser = 'sgd(lr=0.05)'\n"
    tune = "[tune]\ncriterion = 'lodo(groups=2)'\ntrials = 2\n"
    file.write_text(file.read_text().partition("training")[0] + training + tune)
    assert unseen("tune", str(file), "--out", str(file.parent / "tuned")).code == 0
    with (file.parent / "tuned" / "tuned.csv").open() as table:
        (row,) = csv.DictReader(table)
    (record,) = api.tune(Study.read(file), file.parent / "python")
    assert sites(file.parent / "python") == set("abcd")
    assert "log(0.005, 0.5)" in "".join(record.ranges.values())
    assert (row["task"], int(row["trials"])) == (record.task, len(record.trials)) == ("all", 2)
    assert float(row["score"]) == record.best.value


def test_methods_that_the_data_cannot_serve_are_named(file: Path, unseen: Command) -> None:
    ran = unseen(*command(file, "--methods", "fedavg+am"))
    assert ran.code == 2
    assert "no method of this study can be searched: fedavg+am needs images" in ran.err
    ran = unseen(*command(file, "--methods", "fedavg,fedavg+am"))
    assert ran.code == 0
    assert "not searched: fedavg+am needs images" in ran.err


def test_where_all_trials_diverge_nothing_is_recommended(file: Path, unseen: Command) -> None:
    space = ("--space", "training.optimiser=sgd(lr=log(1e30, 1e36))")
    more = ("rounds=3", "model=mlp(widths=[4])", "training.optimiser=sgd(lr=1e30)")
    ran = unseen(*command(file, *space, *more))
    assert ran.code == 0
    assert "2 (2 diverged)" in ran.out
    assert "fedavg: no trial came to its end" in ran.out
    assert "unseen train" not in ran.out
    assert not list((file.parent / "tuned").glob("*.toml"))


def test_one_trial_is_not_the_best_of_several(file: Path, unseen: Command) -> None:
    assert "one of several trials" not in unseen(*command(file, "--trials", "1")).out


def test_a_model_is_not_trained_by_a_study_that_searches(file: Path, unseen: Command) -> None:
    file.write_text(file.read_text() + "tune = {trials = 2}\n")
    ran = unseen("train", str(file), "--out", str(file.parent / "model"))
    assert ran.code == 2
    assert "[tune] table. Search first with `unseen tune`" in ran.err
