"""What a study will cost: two short rounds of every method, scaled to the rounds it will play."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from unseen.backend.inprocess import InProcess
from unseen.client import Client, Split
from unseen.exchange import Method
from unseen.round import play_round, start
from unseen.study.job import adapted, composed, module, reproducible
from unseen.study.plan import Plan
from unseen.study.prepare import Prepared, prepare
from unseen.study.records import Job
from unseen.study.spec import Study
from unseen.vector import Model

#: Batches of each client that a measured round trains on.
BATCHES = 4


@dataclass(frozen=True)
class Estimate:
    """One method's jobs. seconds: of one job; jobs: how many are missing."""

    method: str
    seconds: float
    jobs: int

    @property
    def total(self) -> float:
        """Seconds of CPU for all that is missing, one job after the other."""
        return self.seconds * self.jobs


def estimates(planned: Plan) -> tuple[list[Estimate], float]:
    """An estimate per method that has jobs missing, and the most memory a job took, in MiB.

    Every method plays its first rounds on the first batches of each client of the first task; the
    time of a batch, scaled to all batches of all rounds, and of evaluating all that is evaluated,
    is the estimate. It holds for methods whose rounds are alike after the second. With one thread
    it counts CPU time, which other processes do not change.
    """
    study, found = planned.setting.study, []
    missing = [job.method for job in planned.missing]
    with reproducible(study.threads, study.device):
        for name in planned.methods:
            if count := missing.count(name):
                job = next(job for job in planned.missing if job.method == name)
                found.append(Estimate(name, _seconds(planned, job), count))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found, peak


def _seconds(planned: Plan, job: Job) -> float:
    """One job's time."""
    study = planned.setting.study
    task = next(task for task in planned.tasks if task.name == job.task)
    prepared = prepare(planned.data, task, study, job.seed)
    method = composed(job.method, study, planned.data)
    roster = method.gather(prepared.sources) if method.gather else prepared.sources
    share = study.participation if isinstance(study.participation, float) else (
        study.participation / len(roster))  # fmt: skip
    network = adapted(method, module(planned.setting, prepared, job.seed))
    model = Model(network, study.device, prepared.shape, study.precision)
    first, later = _rounds(method, model, _shortened(roster, study.training.batch_size), planned)
    evaluated = _evaluation(model, prepared, ticker(study)) * math.ceil(
        study.rounds / study.evaluate_every
    )
    short = _batches(_shortened(roster, study.training.batch_size), planned, epochs=1)
    once, longer = (_batches(roster, planned, epochs) / short for epochs in (1, None))
    # What the first round has beyond a later one counts its epochs by itself.
    more = once * max(first - later, 0)
    return more + longer * later * (1 + share * (study.rounds - 1)) + evaluated


def _rounds(
    method: Method, model: Model, roster: Mapping[str, Client], planned: Plan
) -> tuple[float, float]:
    """Seconds of the first round and of a later one, one epoch each over what is left."""
    short = planned.setting.study.training.model_copy(update={"epochs": 1, "steps": None})
    study = planned.setting.study.model_copy(update={"training": short})
    method = composed(method.name, study, planned.data)
    names, tick = sorted(roster), ticker(study)
    state = start(method, model, names, seed=0)
    backend = InProcess(model, roster)
    times = []
    for _ in range(3):
        begun = tick()
        state, _outcomes = play_round(method, state, backend, names, 3, on_bad_reply="drop")
        times.append(tick() - begun)
    return times[0], min(times[1:])


def ticker(study: Study) -> Callable[[], float]:
    """What measures a step: CPU seconds where one thread does all the work."""
    alone = study.threads == 1 and study.device == "cpu"
    return time.process_time if alone else time.perf_counter


def _evaluation(model: Model, prepared: Prepared, tick: Callable[[], float]) -> float:
    """Seconds of evaluating every validation split and target once."""
    sizes = [len(c.split("validation")) for c in prepared.everyone.values()]
    some = prepared.targets or prepared.sources
    x, _ = next(iter(some.values())).split("validation").batch(slice(0, 256))
    model.module.eval()
    with torch.no_grad():
        model(x.to(model.device))
        begun = tick()
        model(x.to(model.device))
    return (tick() - begun) / len(x) * sum(sizes)


def _shortened(roster: Mapping[str, Client], batch: int) -> dict[str, Client]:
    """Every client with its first batches only."""

    def first(split: Split | None) -> Split | None:
        return None if split is None else split.take(torch.arange(min(len(split), BATCHES * batch)))

    return {n: replace(c, train=first(c.train), validation=first(c.validation))
            for n, c in roster.items()}  # fmt: skip


def _batches(roster: Mapping[str, Client], planned: Plan, epochs: int | None = None) -> int:
    """Batches of one round over all clients."""
    recipe = planned.setting.study.training
    sizes = [math.ceil(len(c.split("train")) / recipe.batch_size) for c in roster.values()]
    if epochs is None and recipe.steps is not None:
        return recipe.steps * len(sizes)
    return sum(sizes) * (epochs if epochs is not None else recipe.epochs or 1)


def report(found: Sequence[Estimate], peak: float, processes: int) -> list[str]:
    """The estimates as lines for people, the longest first."""
    if not found:
        return ["nothing is left to run"]
    lines = ["estimate, from short rounds on this machine:"]
    for one in sorted(found, key=lambda e: -e.total):
        lines.append(f"  {one.method}: {one.jobs} x {clock(one.seconds)} = {clock(one.total)}")
    total = sum(one.total for one in found)
    several = f", about {clock(total / processes)} in {processes}" if processes > 1 else ""
    each = " in each" if processes > 1 else ""
    lines.append(
        f"  all: {clock(total)} in one process{several}; {peak / 1024:.1f} GiB of memory{each}"
    )
    return lines


def clock(seconds: float) -> str:
    """
    >>> clock(0.4), clock(75), clock(4000), clock(200000)
    ('0.4 s', '1.2 min', '1.1 h', '2.3 days')
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
