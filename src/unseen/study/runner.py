"""Run a study: check everything first, then every job that is missing, then read it all back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unseen.engine.messages import needs_flower
from unseen.engine.processes import in_processes, in_ray
from unseen.errors import UnseenError, choice
from unseen.follow.trackers import following
from unseen.results import study_file
from unseen.results.records import Job
from unseen.results.study_results import Results
from unseen.study.job import run_job
from unseen.study.plan import Plan, check_folder, differs
from unseen.study.stacked_jobs import in_batches

#: (calls, processes) -> their results, as they finish.
Worker = Callable[[Iterable[tuple[Callable[..., Job], tuple[Any, ...]]], int], Iterator[Job]]


def worker(backend: str, executor: str) -> Worker:
    """Return what carries out a study's jobs.

    Args:
        backend: Where clients run, `in-process` or `flower-simulation`.
        executor: Where jobs run, `processes` of this machine or `ray`.

    Raises:
        UnseenError: If the two do not go together, or an extra is missing.
    """
    choice("backend", backend, ("in-process", "flower-simulation"))
    choice("executor", executor, ("processes", "ray"))
    if backend == "flower-simulation":
        if executor == "ray":
            raise UnseenError(
                "flower-simulation spreads clients over Ray by itself.",
                remedy="Leave executor out.",
            )
        needs_flower()
        from unseen.study.simulated_jobs import in_simulation

        return in_simulation
    return in_ray if executor == "ray" else in_processes


def carry_out(
    planned: Plan,
    jobs: int = 1,
    progress: bool = False,
    temporary: Any = None,
    track: Sequence[str] = (),
    work: Worker = in_processes,
) -> Results:
    """Run the missing jobs of a checked study, and write its tables.

    Args:
        planned: The study.
        jobs: How many processes run jobs.
        progress: Whether a bar shows the jobs that are done.
        temporary: What removes the folder when the results are gone.
        track: The trackers to write to.
        work: What carries out the jobs, see `worker`.
    """
    study, folder = planned.setting.study, planned.setting.out
    for warning in planned.warnings:
        warnings.warn(warning, stacklevel=2)
    with only_one(folder):
        check_folder(planned)
        if differs(planned):
            study_file.clear(folder)
        planned.check_code()
        study_file.write(folder, planned.content())
        tasks = {task.name: task for task in planned.tasks}
        calls = ((run_job, (planned.setting, job, tasks[job.task])) for job in planned.missing)
        done = len(planned.jobs) - len(planned.missing)
        if study.stacked:
            work = partial(in_batches, planned.alone)
        with following(folder, track), bar(len(planned.jobs), done, progress) as step:
            for job in work(calls, jobs):
                step(job)
        results = results_of(planned, temporary)
        results.write()
    return results


def results_of(planned: Plan, temporary: Any = None) -> Results:
    """Return the results of what has run so far."""
    return Results(
        study=planned.setting.study,
        out=planned.setting.out,
        methods=planned.methods,
        tasks=planned.tasks,
        metrics=planned.setting.metrics,
        model=planned.setting.model,
        data=planned.identity["data"],
        not_applicable=planned.not_applicable,
        weights=planned.identity.get("weights"),
        stand_in=planned.stand_in,
        notes=planned.data.notes,
        temporary=temporary,
    )


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock.

    Raises:
        UnseenError: If another run holds it, or the folder is a file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        what = f"{folder} is a file; results need a folder."
        raise UnseenError(what, remedy="Choose another --out.") from None
    try:
        # `unseen watch` takes a shared lock for a moment.
        with FileLock(folder / ".lock", timeout=1):
            yield
    except Timeout:
        what = f"another run is writing to {folder}."
        raise UnseenError(what, remedy="Wait for it, or choose another --out.") from None


@contextmanager
def bar(total: int, done: int, shown: bool) -> Iterator[Callable[[Job], None]]:
    """Show a progress bar over jobs, with the time left.

    Args:
        total: How many jobs there are.
        done: How many are done already.
        shown: Whether there is a bar at all.
    """
    if not shown:
        yield lambda job: None
        return
    from rich import progress as rich

    times = (rich.TimeElapsedColumn(), "left:", rich.TimeRemainingColumn())
    columns = ("{task.description}", rich.BarColumn(), rich.MofNCompleteColumn(), "jobs", *times)
    with rich.Progress(*columns, transient=True) as progress:
        task = progress.add_task("running", total=total, completed=done)

        def step(job: Job) -> None:
            progress.update(task, advance=1, description=f"{job.method} · {job.task} · {job.seed}")

        yield step
