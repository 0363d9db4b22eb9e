"""What a study will cost: a little of every method's work, timed and scaled to all of it.

What is timed of an exchange: the steps of training, as seconds per step and per example; the rest
of what a client does, per client and per example of its split; and what the server does. Cheap
studies are measured in whole batches of all clients, dear ones in as many examples as the time
allows; how a step's time grows from there to a whole batch is then that of plain training, of which
larger batches are measured.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from unseen.core.round import due
from unseen.engine.determinism import reproducible
from unseen.study.estimate.measured import Stage, evaluation
from unseen.study.plan import Plan

__all__ = ["Estimate", "estimates", "report"]

#: Seconds of measured training of all methods together, and the most for one.
SECONDS, MOST = 50.0, 6.0
#: Seconds after which the methods are named as they are measured.
SILENT = 3.0


@dataclass(frozen=True)
class Estimate:
    """One method's jobs. seconds: of one job; jobs: how many are missing; whole: whether batches
    as large as the study's were measured, in training and evaluation, so that a job takes no more
    memory."""

    method: str
    seconds: float
    jobs: int
    whole: bool = True

    @property
    def total(self) -> float:
        """Seconds of CPU for all that is missing, one job after the other."""
        return self.seconds * self.jobs


def estimates(planned: Plan) -> tuple[list[Estimate], float]:
    """An estimate per method that has jobs missing, and the most memory that this process took,
    in MiB.

    It holds for methods whose rounds are alike after those of their warm-up. With one thread it
    counts CPU time, which other processes do not change.
    """
    study, found = planned.setting.study, []
    missing = [job.method for job in planned.missing]
    names = [name for name in planned.methods if name in missing]
    begun = time.monotonic()
    with reproducible(study.threads, study.device):
        budget, stage = min(MOST, SECONDS / max(1, len(names))), None
        for i, name in enumerate(names):
            if time.monotonic() - begun > SILENT:
                print(f"{name} ({i + 1} of {len(names)}) ...", file=sys.stderr, flush=True)
            job = next(job for job in planned.missing if job.method == name)
            if stage is None or (stage.job.task, stage.job.seed) != (job.task, job.seed):
                stage = Stage.of(planned, job)
            seconds, whole = _job(stage, name, budget)
            found.append(Estimate(name, seconds, missing.count(name), whole))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found, peak


def _job(stage: Stage, name: str, budget: float) -> tuple[float, bool]:
    """Seconds of one job of a method, and whether whole batches were measured."""
    study, bench = stage.planned.setting.study, stage.bench(name)
    method, state = bench.method, bench.begun()
    key = (method.predict, method.adapt)
    if key not in stage.evaluations:
        stage.evaluations[key] = evaluation(bench, state.inbox)
    once, complete = stage.evaluations[key]
    times = sum(due(method.exchanges[-1], r, study.rounds) for r in range(study.rounds))
    seconds, whole = bench.training(state, budget)
    return seconds + once * times, whole and complete


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
    # Larger batches than those that were measured take more.
    least = "" if all(one.whole for one in found) else "at least "
    lines.append(
        f"  all: {clock(total)} in one process{several}; "
        f"{least}{peak / 1024:.1f} GiB of memory{each}"
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
