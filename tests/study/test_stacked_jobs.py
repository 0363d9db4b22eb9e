"""A study whose models train in batches has the records of one by one, up to rounding."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.small_studies import rows, study, write

from unseen.core import record_lines
from unseen.engine.meeting import Meeting
from unseen.engine.model_batch import Trainer
from unseen.errors import UnseenError
from unseen.studies.execution import Study
from unseen.studies.execution.plan import prepare_study
from unseen.studies.execution.runner import batches
from unseen.studies.execution.setting import Setting
from unseen.studies.results import records
from unseen.studies.results.records import is_done
from unseen.studies.results.study_results import Results

#: Differences of losses and accuracies: rounding, over a few steps, on some hundred examples.
TOLERANCE = 1e-4
SETTINGS: dict[str, Any] = {
    "dataset": "rotated-digits",
    "model": "mlp(widths=[8])",
    "methods": [
        "fedavg",
        "deepall",
        "fedprox(mu=0.5)",
        "ppdg",
        "fedsam",
        "fedavg+ga",
        "groupdro",
        "fedcsa",
        "fedavg+ensemble(members=2)",
    ],
    "targets": ["0", "75"],
    "seeds": 2,
    "rounds": 3,
    "participation": 0.6,
    "training": {"steps": 3, "optimiser": "sgd(lr=0.05, momentum=0.9)"},
}


def lines(results: Results) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Every record file of every job."""
    return {
        (str(folder.relative_to(results.out)), name): record_lines.read_lines(folder / name)
        for _, folder in results.finished()
        for name in records.FILES
    }


def alike(a: Any, b: Any) -> bool:
    """Equal, numbers up to rounding."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(alike, a, b))
    return bool(a == pytest.approx(b, rel=TOLERANCE, abs=TOLERANCE) if type(a) is float else a == b)


def test_a_stacked_study_is_the_study_one_by_one(tmp_path: Path) -> None:
    one = Study(**SETTINGS).run(tmp_path / "one")
    reason = "fedsam trains one model after the other: Perturbed"
    with pytest.warns(UserWarning, match=reason) as met:
        together = Study(**SETTINGS, stacked=33).run(tmp_path / "together")
    found, expected = lines(together), lines(one)
    assert sum("one model after the other" in str(warning.message) for warning in met) == 1
    assert len(found) == 108 and found.keys() == expected.keys()
    assert all(alike(found[key], expected[key]) for key in found)
    alone = [key for key in found if "fedsam" in key[0]]
    assert len(alone) == 12 and all(found[key] == expected[key] for key in alone)  # to the bit
    assert "up to 33 models trained as one batch" in str(together.table())
    assert "as one batch" not in str(one.table())


@pytest.mark.parametrize(
    ("method", "jobs"), [("fedavg", [4] * 3), ("fedavg+ensemble(members=2)", [2] * 6)]
)
def test_groups_hold_no_more_models_than_asked(
    tmp_path: Path, monkeypatch: Any, method: str, jobs: list[int]
) -> None:
    sizes, hold = [], Meeting.hold

    def counted(meeting: Meeting, jobs: Any) -> Any:
        sizes.append(len(jobs))
        return hold(meeting, jobs)

    monkeypatch.setattr(Meeting, "hold", counted)
    few = SETTINGS | {"methods": [method], "rounds": 1, "targets": None}
    Study(**few, stacked=20).run(tmp_path)  # twelve jobs of five clients
    assert sizes == jobs


def test_a_stopped_batch_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    few = Study(**SETTINGS | {"methods": ["fedavg", "ppdg"]}, stacked=100)
    whole = lines(few.run(tmp_path / "whole"))
    monkeypatch.setattr(
        "unseen.studies.execution.plan.Setting", partial(Setting, checkpoint_seconds=0.0)
    )
    train, calls = Trainer.__call__, []

    def stopping(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(*arguments)

    monkeypatch.setattr(Trainer, "__call__", stopping)
    with pytest.raises(KeyboardInterrupt):
        few.run(tmp_path / "parts")
    found = lines(few.run(tmp_path / "parts"))
    assert found.keys() == whole.keys() and all(alike(found[k], whole[k]) for k in whole)


def test_one_that_diverges_leaves_the_others(tmp_path: Path) -> None:
    settings = SETTINGS | {"methods": ["fedavg", "fedprox(mu=1e30)"], "targets": ["0"]}
    results = Study(**settings, stacked=100).run(tmp_path)
    assert {job.method for job in results.diverged()} == {"fedprox(mu=1e+30)"}
    assert len(results.diverged()) == 2 and len(list(results.jobs())) == 2


def test_a_stacked_study_runs_in_this_machines_processes() -> None:
    with pytest.raises(UnseenError, match="Leave backend and executor out"):
        Study(**SETTINGS, stacked=5).run(backend="flower-simulation")


@pytest.mark.parametrize(("stacked", "processes", "sizes"), [
    (400, 1, [72]),
    (300, 2, [36, 36]),  # 360 models: not 60 jobs in one process and 12 in another
    (100, 2, [18, 18, 18, 18]),
    (25, 3, [5] * 14 + [2]),  # five models a job
    (3, 2, [1] * 72),  # a job of more models than a batch may have
])  # fmt: skip
def test_batches_are_about_as_large_for_every_process(
    tmp_path: Path, stacked: int, processes: int, sizes: list[int]
) -> None:
    many = Study(
        **SETTINGS | {"targets": None, "methods": ["fedavg"], "seeds": 12}, stacked=stacked
    )
    plan = prepare_study(many, tmp_path)
    (tasks,) = ({task.name: task for task in plan.tasks},)
    orders = [(plan.setting, job, tasks[job.task]) for job in plan.missing]
    parts = batches({}, orders, processes)
    assert [len(part) for part in parts] == sizes
    assert [order for part in parts for order in part] == orders
    assert batches({"fedavg": "why"}, orders, processes) == []
    assert batches({}, [], processes) == []


def test_results_see_that_records_have_changed(tmp_path: Path) -> None:
    few = SETTINGS | {"methods": ["fedavg"], "targets": ["0"], "seeds": 2, "rounds": 1}
    results = Study(**few).run(tmp_path)
    first, second = results.folders()
    assert [job.folder for job in results.folders()] == [first.folder, second.folder]
    with (second.folder / "target.jsonl").open("ab") as file:
        file.write(b"{}")
    assert [job.folder for job in results.folders()] == [first.folder]


def test_another_batch_is_another_study(tmp_path: Path) -> None:
    few = SETTINGS | {"methods": ["fedavg"], "targets": ["0"], "seeds": 1, "rounds": 1}
    results = Study(**few, memory_limit=0).run(tmp_path)
    assert all(is_done(folder) for _, folder in results.finished())
    Study(**few, memory_limit=2).run(tmp_path)  # decides no bits
    with pytest.raises(UnseenError, match="stacked was 0 and is 10"):
        Study(**few, stacked=10).run(tmp_path)


def test_tasks_whose_tables_have_other_columns(tmp_path: Path) -> None:
    """Only site c has the category z: without c among the sources its column is not there."""
    body = rows("abcd")
    for row in body:
        row[3] = "z" if row[0] == "c" and row[3] == "q" else row[3]
    path = write(tmp_path / "rows.csv", body)
    one, together = (
        study(path, methods=["fedavg", "fedavg+ensemble(members=2)"], stacked=models).run(
            tmp_path / f"stacked-{models}"
        )
        for models in (0, 40)
    )
    found, expected = lines(together), lines(one)
    assert len(found) == 24 and found.keys() == expected.keys()
    assert all(alike(found[key], expected[key]) for key in found)
