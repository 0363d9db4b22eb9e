"""Flower's engine and Ray as places to run a study: the records are those of one process."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("ray", reason="needs the extra flower")

from support.hall import contents, through_bytes

from unseen import Study
from unseen.core.turn import keyed
from unseen.engine import simulation
from unseen.engine.processes import in_ray
from unseen.engine.simulation import Nodes
from unseen.errors import UnseenError, number
from unseen.studies.execution.job import run_job
from unseen.studies.execution.plan import prepare_study
from unseen.studies.execution.runner import workplace

STUDY = Study(
    dataset="rotated-digits", methods=["scaffold+ga"], targets=["75"], seeds=1, rounds=2,
    model="mlp(widths=[8])", participation=0.6, training={"batch_size": 64},
)  # fmt: skip


@dataclass
class Workers:
    """A simulation's Grid without Ray: what a worker would answer, from bytes to bytes."""

    waiting: list[Any] = field(default_factory=list)

    def get_node_ids(self) -> list[int]:
        return [5, 3]

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        ids = []
        for count, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = id = str(count)
            ids.append(id)
            asked = through_bytes(message)
            asked.metadata.__dict__["_message_id"] = id
            self.waiting.append(through_bytes(simulation.answer(asked, None)))
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        found, self.waiting = self.waiting, []
        return found


def test_nodes_give_the_records_of_one_process(tmp_path: Path) -> None:
    rows = ["site,a,b,died"]
    for name in ("x", "y", "z", "w"):
        values = torch.randn(30, 2, generator=keyed(name)).tolist()
        rows += [f"{name},{a},{b},{int(a > b)}" for a, b in values]
    (tmp_path / "v.csv").write_text("\n".join(rows) + "\n")
    study = STUDY.model_copy(
        update={
            "dataset": "table(path='v.csv', domain='site', label='died')",
            "targets": ("z",),
            "rounds": 3,
            "training": STUDY.training.model_copy(update={"batch_size": 8}),
        }
    )
    study.run(tmp_path / "one", data_dir=tmp_path)
    planned = prepare_study(study, tmp_path / "flower", tmp_path)
    (job,), (task,) = planned.jobs, planned.tasks
    folder = job.folder(tmp_path / "flower") / simulation.MEMORIES
    told = pickle.dumps(partial(workplace, planned.setting, job, task))
    run_job(planned.setting, job, task, partial(Nodes.place, Workers(), told, folder))
    assert contents(tmp_path / "one") == contents(tmp_path / "flower")
    assert len(list(folder.iterdir())) == 3


@pytest.mark.slow
def test_a_simulation_writes_the_records_of_one_process(tmp_path: Path) -> None:
    STUDY.run(tmp_path / "one")
    STUDY.run(tmp_path / "flower", jobs=2, backend="flower-simulation")
    assert contents(tmp_path / "one") == contents(tmp_path / "flower")
    assert not list((tmp_path / "flower").rglob("memories"))


@pytest.mark.slow
def test_members_of_other_kinds_are_the_same_bits_in_a_simulation(tmp_path: Path) -> None:
    study = Study(
        dataset="heart-disease", targets=["cleveland"], seeds=1, rounds=3, selection="last",
        reference="glm", model="mlp(widths=[8])",
        methods=[
            "glm", "boost(trees=3)", "fedavg+ensemble(members=2)", "bag(of='trees(count=5)')",
            "fedavg+shift+tail", "stack(members=['glm', 'boost(trees=2)', 'fedavg'])",
            "portfolio(members=['glm', 'fedavg+shift'], ensemble=2)",
        ],
    )  # fmt: skip
    study.run(tmp_path / "one")
    study.run(tmp_path / "flower", backend="flower-simulation")
    assert contents(tmp_path / "one") == contents(tmp_path / "flower")


@pytest.mark.slow
def test_jobs_over_ray(tmp_path: Path) -> None:
    study = STUDY.model_copy(update={"seeds": 2, "rounds": 1})
    study.run(tmp_path / "one")
    study.run(tmp_path / "ray", jobs=2, executor="ray")
    assert contents(tmp_path / "one") == contents(tmp_path / "ray")
    calls = [(number, ("rate", value, 0, 1)) for value in (0.5, -1, 0.25)]
    with pytest.raises(UnseenError, match="rate must be a number in .*found -1"):
        list(in_ray(calls, 2))
    assert os.getpid() not in set(in_ray([(os.getpid, ())] * 4, 2))


def test_what_cannot_be_combined() -> None:
    with pytest.raises(UnseenError, match="Leave executor out"):
        STUDY.run(backend="flower-simulation", executor="ray")
    with pytest.raises(UnseenError, match="backend must be one of 'in-process'"):
        STUDY.run(backend="flower")
