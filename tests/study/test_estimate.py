"""What a dry run measures and how it scales that, under a clock that counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unseen.data.networks import build
from unseen.engine.batch_plan import Answer, Member
from unseen.engine.model_batch import Trainer
from unseen.methods.recipe import Training
from unseen.studies.execution import Study, runner, runtime
from unseen.studies.execution.costs import batch_costs, estimate, round_costs
from unseen.studies.execution.costs.estimate import Estimate, estimates, report
from unseen.studies.execution.costs.few_rows import amount, line
from unseen.studies.execution.costs.round_costs import Stage
from unseen.studies.execution.job import run_job
from unseen.studies.execution.plan import Plan, prepare_study
from unseen.studies.execution.runner import carry_out
from unseen.studies.results.records import Log, mark_done

ROTATED = {
    "dataset": "rotated-digits", "model": "mlp(widths=[8])", "seeds": 1, "rounds": 7,
    "targets": ["0"], "training": {"batch_size": 32},
}  # fmt: skip


@dataclass
class Clock:
    """Time that passes in the network's passes alone: a constant and so much per example."""

    fixed: float
    each: float
    now: float = 0.0
    batches: Counter[tuple[bool, int]] = field(default_factory=Counter)

    def __call__(self) -> float:
        return self.now

    def __deepcopy__(self, memo: object) -> Clock:
        return self  # a copy of the network goes by the same clock

    def passed(self, network: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.batches[network.training, len(inputs[0])] += 1
        self.now += self.fixed + self.each * len(inputs[0])


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a clock the one that dry runs and jobs go by."""

    def make(fixed: float, each: float) -> Clock:
        clock = Clock(fixed, each)

        def hooked(*arguments: Any) -> nn.Module:
            built = build(*arguments)
            built.register_forward_pre_hook(clock.passed)
            return built

        monkeypatch.setattr(round_costs, "ticker", lambda study: clock)
        monkeypatch.setattr(runtime, "build", hooked)
        return clock

    return make


def planned(folder: Path, method: str, **changes: Any) -> Plan:
    return prepare_study(Study(**{**ROTATED, "methods": [method], **changes}), folder)


@pytest.mark.parametrize("method", [
    "fedavg", "deepall", "fedavg+ga", "ppdg", "scaffold", "fedsgd", "fedilc-inter", "fedsam",
])  # fmt: skip
@pytest.mark.parametrize("training", [
    {"batch_size": 32, "epochs": 2},
    {"batch_size": 50, "drop_last": True},
    {"batch_size": 16, "steps": 5},
])  # fmt: skip
def test_an_estimate_is_what_a_job_takes(
    tmp_path: Path, clocked: Any, method: str, training: dict[str, Any]
) -> None:
    """Where passes are all that takes time, the estimate is that of the job which is then run."""
    clock = clocked(0.0001, 0.00001)
    plan = planned(tmp_path, method, training=training)
    (found,), _ = estimates(plan)
    before = clock.now
    run_job(plan.setting, plan.missing[0], plan.tasks[0])
    assert found.seconds == pytest.approx(clock.now - before, rel=0.03)
    assert found.whole


def test_what_begins_late_counts_too(tmp_path: Path, clocked: Any) -> None:
    """Members are tried at two rates, and trained in as many rounds again."""
    clock = clocked(0.0001, 0.00001)
    members = "members=['fedavg', 'fedavg+mixup'], ensemble=2, groups=2"
    plan = planned(tmp_path, f"portfolio({members}, rates=[1, 5])")
    (estimate,), _ = estimates(plan)
    before = clock.now
    run_job(plan.setting, plan.missing[0], plan.tasks[0])
    assert estimate.seconds == pytest.approx(clock.now - before, rel=0.1)


def test_a_level_of_trees_is_timed_where_it_begins(tmp_path: Path) -> None:
    """And not in a late round of the network's, in which the levels before it are missing."""
    members = "members=['fedavg', 'boost(trees=4, depth=3)'], ensemble=1, groups=2"
    plan = planned(tmp_path, f"portfolio({members}, rates=[1, 5])", dataset="heart-disease",
                   targets=["va"])  # fmt: skip
    (estimate,), _ = estimates(plan)
    assert estimate.seconds > 0


def test_the_first_use_of_a_kernel_is_not_what_every_round_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second of imports when trees are first grown is not multiplied by their number."""
    calls, now = Counter[str](), [0.0]
    played = round_costs.play_round

    def play(method: Any, *arguments: Any, **options: Any) -> Any:
        name = method.exchanges[0].name
        now[0] += 0.01 if calls[name] else 1.0
        calls[name] += 1
        return played(method, *arguments, **options)

    monkeypatch.setattr(round_costs, "play_round", play)
    monkeypatch.setattr(round_costs, "ticker", lambda study: lambda: now[0])
    plan = planned(tmp_path, "boost(trees=20, depth=2)", dataset="heart-disease", targets=["va"])
    (found,), _ = estimates(plan)
    assert 40 * 0.01 < found.seconds < 50 * 0.01


@pytest.mark.parametrize("method", ["fedavg", "deepall", "fedsam", "fedavg+ga"])
def test_a_dear_study_is_measured_in_a_few_examples(
    tmp_path: Path, clocked: Any, method: str
) -> None:
    """With a second per example no batch is whole, and the estimate is near what a job takes."""
    clock = clocked(1.5, 1.0)
    plan = planned(tmp_path, method, evaluate_every=7)
    (found,), _ = estimates(plan)
    trained = Counter({n: k for (train, n), k in clock.batches.items() if train})
    assert max(trained) <= 4 and trained.total() <= 12
    assert sum(n * k for (train, n), k in clock.batches.items() if not train) < 60
    before = clock.now
    run_job(plan.setting, plan.missing[0], plan.tasks[0])
    assert found.seconds == pytest.approx(clock.now - before, rel=0.1)
    assert not found.whole


@pytest.mark.parametrize("method", [
    "fedavg", "fedavg+ensemble(members=3)", "fedavg+ga", "fedsgd",
    pytest.param("portfolio(groups=2)", marks=pytest.mark.slow),
])  # fmt: skip
def test_jobs_of_a_batch_share_its_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Where a batch's calls are all that takes time, the estimate is a job's share of the study."""
    now = [0.0]

    class Slow(Trainer):
        """A second per call, and a hundredth per example."""

        def __call__(self, members: Sequence[Member]) -> list[Answer]:
            examples = sum(len(member.client.split("train")) for member in members)
            now[0] += 1.0 + 0.01 * examples
            return super().__call__(members)

    for module in (batch_costs, runner):
        monkeypatch.setattr(module, "Trainer", Slow)
    monkeypatch.setattr(round_costs, "ticker", lambda study: lambda: now[0])
    study = {**ROTATED, "targets": None, "methods": [method], "stacked": 300}
    plan = prepare_study(Study(**study), tmp_path)
    (found,), _ = estimates(plan)
    assert not found.whole
    before = now[0]
    carry_out(plan)
    assert found.total == pytest.approx(now[0] - before, rel=0.05)


def test_a_cheap_study_is_measured_in_whole_batches_of_all(tmp_path: Path, clocked: Any) -> None:
    clock = clocked(0.0001, 0.00001)
    plan = planned(tmp_path, "fedavg")
    estimates(plan)
    sources = len(plan.tasks[0].sources)
    # Two batches of the first source, then a round of all.
    assert clock.batches[True, 32] > 2 + 7 * sources
    assert clock.batches[True, 64] == 0


def test_a_long_first_exchange_counts_its_own_epochs_once(tmp_path: Path, clocked: Any) -> None:
    """CSAC's acquisition: more epochs are more seconds of one round, and no longer dry run."""
    network = {"model": "mnist-cnn(channels=[2, 4], hidden=8)", "training": {"batch_size": 50}}
    found, spent = [], []
    for epochs in (10, 40):
        clock = clocked(0.0, 0.01)
        plan = planned(tmp_path / str(epochs), f"csac(acquisition={epochs})", **network)
        found.append(estimates(plan)[0][0].seconds)
        spent.append(clock.now)
    from unseen.studies.execution.prepare import prepare

    sources = prepare(plan.data, plan.tasks[0], plan.setting.study, 0).sources
    examples = sum(len(client.split("train")) for client in sources.values())
    assert found[1] - found[0] == pytest.approx(30 * 0.01 * examples, rel=0.01)
    assert spent[1] == pytest.approx(spent[0], rel=0.01)


@pytest.mark.parametrize(("share", "clients"), [(1.0, 5), (0.5, 2), (3, 3)])
def test_only_who_takes_part_costs(
    tmp_path: Path, clocked: Any, share: float | int, clients: int
) -> None:
    """Pooled training has all examples whatever the share, FedAvg those of its sample."""
    found = {}
    for method in ("fedavg", "deepall"):
        clocked(0.0, 0.0001)
        plan = planned(tmp_path / method, method, participation=share, evaluate_every=7)
        found[method] = estimates(plan)[0][0].seconds
    evaluation = 0.0001 * sum(
        len(client.split("validation"))
        for client in Stage.of(plan, plan.missing[0]).prepared.everyone.values()
    )
    amount = {name: (seconds - evaluation) / 7 for name, seconds in found.items()}
    assert amount["fedavg"] == pytest.approx(amount["deepall"] * clients / 5, rel=0.01)


def test_those_who_are_not_worked_for_hand_in_rows_of_their_own(tmp_path: Path) -> None:
    """The server meets the whole roster: all rows are there, none equal, all of one length."""
    plan = planned(tmp_path, "scaffold")
    where = Stage.of(plan, plan.missing[0]).bench("scaffold")
    where.play(where.runtime.start(), 0, worked=1, rows=4)
    rows = where.backend.matrix
    assert len(rows) == len(where.backend.whole) == len(where.backend.memories.by_client) == 5
    assert torch.allclose(rows.norm(dim=1), rows[0].norm())
    assert len({tuple(row.tolist()) for row in rows}) == 5
    assert len(where.backend.replies) == 1


def test_a_method_that_knows_its_roster_is_measured_in_short_steps(tmp_path: Path) -> None:
    study = Study.model_validate({**ROTATED, "methods": ["feddyn"], "rounds": 60})
    (costs, *_) = estimates(prepare_study(study, tmp_path))
    assert costs


def test_a_line_has_no_negative_part() -> None:
    assert line((2, 5.0), (4, 9.0)) == (1.0, 2.0)
    assert line((2, 9.0), (4, 8.0)) == (8.0, 0.0)
    assert line((2, 1.0), (4, 8.0)) == (0.0, 2.0)


@pytest.mark.parametrize(
    ("recipe", "steps", "examples"),
    [
        ({"epochs": 2}, 8, 200),
        ({"epochs": 2, "drop_last": True}, 6, 192),
        ({"epochs": None, "steps": 7}, 7, 175),
        ({"epochs": None, "steps": 7, "drop_last": True}, 7, 224),
    ],
)
def test_steps_and_examples_of_a_round(recipe: dict[str, Any], steps: int, examples: int) -> None:
    """100 examples in batches of 32: three and a short one."""
    assert amount(100, Training(batch_size=32, **recipe)) == (steps, examples)


@pytest.mark.parametrize(("stacked", "others"), [(0, 0), (5, 0), (20, 3)])
def test_a_batch_holds_the_models_and_replies_of_its_other_jobs(
    tmp_path: Path, stacked: int, others: int
) -> None:
    """Jobs of five clients each: (8 + 5) vectors of 64 · 8 + 8 + 8 · 10 + 10 numbers of 4 bytes."""
    study = Study(**ROTATED | {"methods": ["fedavg"], "seeds": 4, "stacked": stacked})
    planned = prepare_study(study, tmp_path)
    memory = {"fedavg": Stage.of(planned, planned.missing[0]).bench("fedavg").memory}
    assert memory["fedavg"] == 13 * 610 * 4 / 2**20
    assert estimate.beside(planned, memory) == pytest.approx(others * memory["fedavg"])


def test_memory_of_parts_of_batches_is_a_lower_bound() -> None:
    parts = [Estimate("fedavg", 1.0, 2), Estimate("ppdg", 1.0, 2, whole=False)]
    assert "at least 2.0 GiB" in report(parts, 2048, 1)[-1]
    assert "; 2.0 GiB" in report(parts[:1], 2048, 1)[-1]


def test_rounds_that_may_end_earlier_are_said_to() -> None:
    one = [Estimate("fedavg", 1.0, 2)]
    assert "if all 100 rounds are played" in report(one, 2048, 1, limit=100)[0]
    assert "rounds are played" not in report(one, 2048, 1)[0]


def test_long_measurements_say_how_far_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, "fedavg")
    estimates(plan)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(estimate, "SILENT", -1.0)
    estimates(plan)
    assert capsys.readouterr().err == "fedavg (1 of 1) ...\n"


def test_finished_jobs_tell_what_the_others_will_take(tmp_path: Path) -> None:
    """Their mean seconds, their memory, and no measurement; other methods are measured."""
    study = Study(**{**ROTATED, "methods": ["fedavg", "ppdg"], "seeds": 3})
    plan = prepare_study(study, tmp_path)
    for job, seconds in zip(plan.jobs[:2], (10.0, 30.0), strict=True):
        folder = job.folder(tmp_path)
        Log.resume(folder, {}).close()
        mark_done(folder, {}, seconds, 40_000)
    plan = prepare_study(study, tmp_path)
    (fedavg, ppdg), peak = estimates(plan)
    assert (fedavg.seconds, fedavg.jobs, fedavg.recorded, peak) == (20.0, 1, True, 40_000)
    assert (ppdg.jobs, ppdg.recorded) == (3, False) and 0 < ppdg.seconds < 20
    lines = report([fedavg, ppdg], peak, 1)
    assert lines[0] == "estimate, from short rounds on this machine and from finished jobs:"
    assert lines[1] == "  fedavg: 1 x 20.0 s = 20.0 s"


def test_finished_jobs_that_keep_no_seconds_leave_the_others_to_a_measurement(
    tmp_path: Path,
) -> None:
    """As in unpacked records, whose seconds were another machine's."""
    study = Study(**{**ROTATED, "methods": ["fedavg"], "seeds": 2})
    folder = prepare_study(study, tmp_path).jobs[0].folder(tmp_path)
    Log.resume(folder, {}).close()
    mark_done(folder, {}, 10.0, 40_000)
    mark = json.loads((folder / "done.json").read_text())
    del mark["seconds"], mark["peak_mib"]
    (folder / "done.json").write_text(json.dumps(mark))
    (fedavg,), peak = estimates(prepare_study(study, tmp_path))
    assert (fedavg.jobs, fedavg.recorded) == (1, False)
    assert fedavg.seconds > 0 and 0 < peak < 40_000
