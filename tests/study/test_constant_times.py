"""The answer that looks at no input, of times until an event."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.times import dataset, write

from unseen.core import Client, Split
from unseen.core.record_lines import read_lines
from unseen.core.survival import hazard_losses
from unseen.data import DataSet, Domain, check
from unseen.studies.choice.constant import answer_of
from unseen.studies.execution import Study
from unseen.studies.execution.constant_answer import _of_classes, constants
from unseen.studies.execution.prepare import Prepared, prepare
from unseen.studies.results.records import CONSTANT, Job
from unseen.studies.settings.holdout import Task

TASK = Task("south", ("east", "north"), ("south",))
CUTS = "hazards(cuts=[10, 20, 30])"
#: Training rows of each source: times and events. The last row of each validates.
EAST = [[5.0, 1.0], [15.0, 1.0], [25.0, 0.0], [12.0, 0.0], [9.0, 1.0]]
NORTH = [[3.0, 0.0], [8.0, 0.0], [22.0, 1.0], [40.0, 1.0], [9.0, 1.0]]


def ready(target: list[list[float]], loss: str) -> Prepared:
    def domain(name: str, y: list[list[float]]) -> Domain:
        last = torch.tensor([len(y) - 1])
        return Domain(name, torch.zeros(len(y), 1), torch.tensor(y), validation=last)

    domains = (domain("east", EAST), domain("north", NORTH), domain("south", target))
    data = replace(DataSet("made", domains, None, "", "", ""), times=("days", "died"))
    return prepare(check(data), TASK, Study(training={"loss": loss}), 0)


def test_hazards_are_events_by_rows_at_risk() -> None:
    """Counted by hand: of 8 rows one has its event in the first interval and 6 survive it.

    The row censored at 3 is not at risk, that at 8 survived: it left in the second half. In the
    second interval one of 5 at risk (12, censored in its first half, is not); in the third one
    event (22), two survivors (25 and 40).
    """
    prepared = ready([[12.0, 1.0], [35.0, 1.0]], CUTS)
    assert prepared.prior is not None
    assert prepared.prior.tolist() == pytest.approx([1 / 7, 1 / 4, 1 / 3])
    (found,) = constants(prepared, ("concordance",))
    survival = [6 / 7, 6 / 7 * 3 / 4, 6 / 7 * 3 / 4 * 2 / 3]
    likelihood = 6 / 7 * 1 / 4 * survival[2]  # an event in the second interval, and none in three
    assert found["loss"] == pytest.approx(-math.log(likelihood) / 2)
    # Nobody was censored, so that all weigh 1; at 10 both live, at 20 and at 30 one.
    one_of_two = sum((s**2 + (1 - s) ** 2) / 2 for s in survival[1:])
    assert found["integrated-brier"] == pytest.approx(((1 - survival[0]) ** 2 + one_of_two) / 3)
    assert found["concordance"] == 0.5


def test_no_constant_has_a_smaller_loss_on_the_sources() -> None:
    prepared = ready(EAST, CUTS)
    assert prepared.prior is not None
    y = torch.cat([client.split("train").y for client in prepared.sources.values()])
    z = torch.logit(prepared.prior).requires_grad_()
    (slope,) = torch.autograd.grad(hazard_losses(z.expand(len(y), -1), y).sum(), z)
    assert slope.abs().max() < 1e-12


def test_what_no_source_has_seen_leaves_no_loss() -> None:
    prepared = ready([[35.0, 1.0], [12.0, 0.0]], "hazards(cuts=[1, 2, 3])")  # nobody's event
    assert prepared.prior is not None and prepared.prior.tolist() == [0.0, 0.0, 0.0]
    (found,) = constants(prepared, ("loss",))
    assert found["loss"] == pytest.approx(
        0.0, abs=1e-300
    )  # both survived all three, as everybody did
    prepared = ready([[2.5, 1.0], [12.0, 0.0]], "hazards(cuts=[1, 2, 3])")
    (found,) = constants(prepared, ("loss",))
    assert found["loss"] is None


def test_coxs_model_without_inputs() -> None:
    """Breslow's likelihood at equal risks: log(rows at risk), summed over events."""
    (found,) = constants(ready([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]], "cox"), ("loss",))
    assert found == {
        "domain": "south", "concordance": 0.5,
        "loss": pytest.approx(float(torch.log(torch.tensor([3.0, 1.0])).sum()) / 3),
    }  # fmt: skip


def test_a_study_records_it_and_an_answer_names_it(tmp_path: Path) -> None:
    file = write(tmp_path / "times.csv")
    training = {"batch_size": 16, "loss": "hazards(intervals=4)"}
    study = Study(dataset=dataset(file), training=training, model="logistic", rounds=1, seeds=1)
    study.run(tmp_path / "out")
    (line,) = read_lines(Job("fedavg", "south", 0).folder(tmp_path / "out") / CONSTANT)
    assert line["concordance"] == 0.5 and 0 < line["integrated-brier"] < 0.5 < line["loss"]
    assert answer_of("concordance", line) == "the same risk"
    assert "in each interval" in answer_of("integrated-brier", line)
    assert answer_of("loss", ["concordance", "loss"]) == "the same risk"  # Cox's model


def test_survival_of_an_interval_that_no_source_survived_has_no_loss() -> None:
    client = Client("t", None, Split(torch.zeros(1, 1), torch.tensor([[2.5, 0.0]])), None)
    prior = torch.tensor([0.5, 1.0], dtype=torch.float64)
    prepared: Any = SimpleNamespace(prior=prior, times=2, classes=None, targets={"t": client})
    (record,) = constants(prepared, ["loss"])
    assert record["loss"] is None


def test_a_class_that_no_source_has_leaves_no_logarithm() -> None:
    """Neither under the one name nor under the other."""
    figures = _of_classes(
        None, torch.tensor([1.0, 0.0]), torch.tensor([0, 0, 1]), ("loss", "log-loss", "brier")
    )
    assert figures["loss"] is None and figures["log-loss"] is None
    assert figures["brier"] == pytest.approx(1 / 3)
