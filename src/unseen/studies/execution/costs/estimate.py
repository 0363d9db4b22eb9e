"""What a study will cost: seconds of its finished jobs, or of short rounds scaled to all."""

import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unseen.core.record_lines import Record
from unseen.engine.determinism import reproducible
from unseen.studies.execution.costs.round_costs import Stage
from unseen.studies.execution.plan import Plan
from unseen.studies.execution.runner import batches
from unseen.studies.results.statistics import mean
from unseen.studies.results.study_folder import StudyFolder

#: Seconds of measured training of all methods together, and the most for one.
SECONDS, MOST = 50.0, 6.0
#: Seconds after which the methods are named as they are measured.
SILENT = 3.0


@dataclass(frozen=True)
class Estimate:
    """One method's jobs.

    Attributes:
        method: The method.
        seconds: Of one job.
        jobs: How many are missing.
        whole: Whether batches as large as the study's were measured, in training and evaluation, so
            that a job takes no more memory.
        recorded: Whether the seconds are those of finished jobs.
    """

    method: str
    seconds: float
    jobs: int
    whole: bool = True
    recorded: bool = False

    @property
    def total(self) -> float:
        """Seconds of CPU for all that is missing, one job after the other."""
        return self.seconds * self.jobs


def estimates(planned: Plan) -> tuple[list[Estimate], float]:
    """Estimate every method that has jobs missing.

    An estimate holds for methods whose rounds are alike after those of their warm-up. With one
    thread it counts CPU time, which other processes do not change.

    Returns:
        The estimates, and the most memory that this process or a finished job took, in MiB, with
        what the other jobs of a whole batch hold.
    """
    study, results, peak = planned.setting.study, list[Estimate](), 0.0
    memory: dict[str, float] = {}
    missing = [job.method for job in planned.missing]
    names = [name for name in planned.methods if name in missing]
    start, stage = time.monotonic(), None
    with reproducible(study.threads, study.device):
        budget = min(MOST, SECONDS / max(1, len(names)))
        for i, name in enumerate(names):
            if time.monotonic() - start > SILENT:
                print(f"{name} ({i + 1} of {len(names)}) ...", file=sys.stderr, flush=True)
            if marks := finished(planned, name):
                seconds = mean([float(mark["seconds"]) for mark in marks])
                peak = max(peak, *(float(mark["peak_mib"]) for mark in marks))
                results.append(Estimate(name, seconds, missing.count(name), recorded=True))
                continue
            job = next(job for job in planned.missing if job.method == name)
            if stage is None or (stage.job.task, stage.job.seed) != (job.task, job.seed):
                stage = Stage.of(planned, job)
            bench = stage.bench(name)
            seconds, whole = bench.job(budget)
            memory[name] = bench.memory
            results.append(Estimate(name, seconds, missing.count(name), whole))
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 + beside(planned, memory)
    return results, max(peak, own)


def beside(planned: Plan, memory: Mapping[str, float]) -> float:
    """Return the MiB that the jobs of the largest batch hold beside its first.

    Args:
        planned: The study.
        memory: MiB of a job, by method; none of those that have finished jobs.
    """
    if not planned.setting.study.stacked:
        return 0.0
    tasks = {task.name: task for task in planned.tasks}
    orders = [
        (planned.setting, job, tasks[job.task]) for job in planned.missing if job.method in memory
    ]
    together = batches(planned.alone, orders, 1)
    return max(
        (sum(memory[job.method] for _, job, _ in batch[1:]) for batch in together), default=0
    )


def finished(planned: Plan, method: str) -> list[Record]:
    """Return the marks of a method's jobs that ran to their end and say what they took.

    Records kept for others to check leave seconds and memory out, as those of another machine.
    """
    folder = StudyFolder(planned.setting.out)
    jobs = (folder.job(job) for job in planned.jobs if job.method == method)
    return [job.mark for job in jobs if job.state == "done" and "seconds" in job.mark]


def report(
    results: Sequence[Estimate], peak: float, processes: int, limit: int | None = None
) -> list[str]:
    """Return the estimates as lines, the longest first.

    Args:
        results: The estimates.
        peak: Memory of one process, in MiB.
        processes: How many run at a time.
        limit: The most rounds, where training may end before them.
    """
    if not results:
        return ["nothing is left to run"]
    also = " and from finished jobs" if any(one.recorded for one in results) else ""
    total = sum(one.total for one in results)
    several = f", about {clock(total / processes)} in {processes}" if processes > 1 else ""
    # Larger batches than those that were measured take more.
    least = "" if all(one.whole for one in results) else "at least "
    memory = f"{least}{peak / 1024:.1f} GiB of memory{' in each' if several else ''}"
    lines = [
        f"  {one.method}: {one.jobs} x {clock(one.seconds)} = {clock(one.total)}"
        for one in sorted(results, key=lambda e: -e.total)
    ]
    if limit is not None:
        also += f", if all {limit} rounds are played (fewer where the loss is flat earlier)"
    head = f"estimate, from short rounds on this machine{also}:"
    return [head, *lines, f"  all: {clock(total)} in one process{several}; {memory}"]


def clock(seconds: float) -> str:
    """Return a span of time in the largest unit that fits.

    Example:
        >>> clock(0.4), clock(75), clock(4000), clock(200000)
        ('0.4 s', '1.2 min', '1.1 h', '2.3 days')
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
