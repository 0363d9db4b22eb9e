"""Run a study: check it, run every job that is missing, one way or another, read it all back.

A batch of models (`stacked`) has other bits than its jobs one by one. Every job goes its
own way from round to round, with its own records and checkpoints; before each round the clients of
all jobs of a batch train together. A job that is done, or that diverged, leaves its batch.
"""

import math
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from unseen.core import Client
from unseen.engine.determinism import reproducible
from unseen.engine.meeting import Meeting
from unseen.engine.messages import needs_flower
from unseen.engine.model_batch import Trainer
from unseen.engine.processes import in_processes, in_ray
from unseen.engine.simulation import MEMORIES, Nodes, Workplace, simulate
from unseen.engine.stacked import Stacked, models_of
from unseen.errors import UnseenError, choice
from unseen.methods.compose import method as compose
from unseen.studies.execution.job import Running, run_job
from unseen.studies.execution.plan import Plan, check_folder, differs
from unseen.studies.execution.prepare import Prepared, prepare, read_by_prepare
from unseen.studies.execution.python_values import of_script, with_script
from unseen.studies.execution.runtime import Runtime
from unseen.studies.execution.search import Order, jobs_of, search, winners
from unseen.studies.execution.setting import Setting, dataset
from unseen.studies.results import study_file
from unseen.studies.results.records import Job, is_done
from unseen.studies.results.search_records import FOLDER, SearchRecord
from unseen.studies.results.study_results import Results
from unseen.studies.settings.client_partition import clients_per_domain
from unseen.studies.settings.holdout import Task
from unseen.studies.settings.study import StudySpec
from unseen.studies.tracking.progress_bar import progress_bar
from unseen.studies.tracking.trackers import JobTracking

#: (orders, processes) -> the jobs, as they finish.
Way = Callable[[Sequence[Order], int], Iterator[Job]]
#: (a job that ended, how many have, how many there are), for a program to follow a study.
AfterJob = Callable[[Job, int, int], object]


def way(study: StudySpec, backend: str = "in-process", executor: str = "processes") -> Way:
    """Return what carries out a study's jobs one by one.

    Args:
        study: The study.
        backend: Where clients run, `in-process` or `flower-simulation`.
        executor: Where jobs run, `processes` of this machine or `ray`.

    Raises:
        UnseenError: If these do not go together, or an extra is missing.
    """
    choice("backend", backend, ("in-process", "flower-simulation"))
    choice("executor", executor, ("processes", "ray"))
    if (backend, executor) == ("flower-simulation", "ray"):
        raise UnseenError(
            "flower-simulation spreads clients over Ray by itself.", remedy="Leave executor out."
        )
    if backend == "flower-simulation":
        needs_flower("--backend flower-simulation needs", "take --backend in-process")
    if study.stacked and (backend, executor) != ("in-process", "processes"):
        raise UnseenError(
            f"stacked = {study.stacked} trains models as one batch in this process.",
            remedy="Leave backend and executor out, or set stacked = 0.",
        )
    if backend == "flower-simulation":
        return in_simulation
    pool = in_ray if executor == "ray" else in_processes
    own = of_script(study)
    return lambda orders, jobs: pool([(with_script, (own, run_job, *o)) for o in orders], jobs)


def in_simulation(orders: Sequence[Order], jobs: int) -> Iterator[Job]:
    """Yield the jobs one after the other, each one's clients over `jobs` workers of Ray."""
    if not orders:
        return
    if any(setting.study.cross_evaluation for setting, _, _ in orders):
        raise UnseenError(
            "cross_evaluation looks at clients in this process.", remedy="Leave it out."
        )

    def main(grid: Any) -> None:
        for setting, job, task in orders:
            folder = job.folder(setting.out) / MEMORIES
            often = replace(setting, checkpoint_seconds=0.0)  # with the clients' memories in step
            pickled = pickle.dumps(partial(workplace, often, job, task))
            run_job(often, job, task, partial(Nodes.place, grid, pickled, folder))
            shutil.rmtree(folder, ignore_errors=True)

    nodes = max(
        len(task.sources) * clients_per_domain(setting.study.partition)
        + len(task.targets)
        + len(task.validation)
        for setting, _, task in orders
    )
    simulate(main, nodes, jobs)
    for setting, job, _ in orders:
        if not is_done(job.folder(setting.out)):
            raise UnseenError(f"the simulation ended before {job} was done; its log says why.")
    yield from (job for _, job, _ in orders)


def workplace(setting: Setting, job: Job, task: Task) -> Workplace:
    """Return what a worker needs to answer for any client of the job."""
    study = setting.study
    with reproducible(study.threads, study.device):
        data = dataset(setting)
        prepared = prepare(data, task, study, job.seed)
        runtime = Runtime.of(setting, data, prepared, setting.tuned or job.method, job.seed)
        return Workplace(
            runtime.method, runtime.model, runtime.clients, study.threads, study.device
        )


def in_batches(alone: Mapping[str, str], orders: Sequence[Order], jobs: int) -> Iterator[Job]:
    """Yield the jobs in batches of up to `stacked` models, each batch in one process.

    A job of a method in `alone` is a batch by itself.
    """
    own = of_script(orders[0][0].study) if orders else {}
    calls: list[tuple[Callable[..., Job | list[Job]], tuple[object, ...]]] = [
        *((with_script, (own, run_together, batch)) for batch in batches(alone, orders, jobs)),
        *((with_script, (own, run_job, *o)) for o in orders if o[1].method in alone),
    ]
    for outcome in in_processes(calls, jobs):
        yield from outcome if isinstance(outcome, list) else [outcome]


def batches(alone: Mapping[str, str], orders: Sequence[Order], jobs: int) -> list[list[Order]]:
    """Return the jobs in batches of up to `stacked` models, about as large for every process.

    A job of more models than that is a batch by itself.
    """
    sizes = [
        len(task.sources)
        * clients_per_domain(setting.study.partition)
        * (0 if job.method in alone else models_of(compose(job.method)))
        for setting, job, task in orders
    ]
    limit = orders[0][0].study.stacked if orders else 1
    share = sum(sizes) / (jobs * math.ceil(sum(sizes) / (jobs * limit)) or 1)
    parts: list[list[Order]] = []
    models = 0
    for order, own in zip(orders, sizes, strict=True):
        if not own:
            continue
        if not parts or models >= share or models + own > limit:
            parts.append([])
            models = 0
        parts[-1].append(order)
        models += own
    return parts


def run_together(batch: Sequence[Order]) -> list[Job]:
    """Run the jobs to their ends; the models of all of them train together."""
    study = batch[0][0].study
    clients: dict[tuple[object, ...], Prepared] = {}
    with reproducible(study.threads, study.device):
        data = dataset(batch[0][0])
        meeting = Meeting(Trainer())
        place = partial(Stacked, trainer=meeting)

        def run(setting: Setting, job: Job, task: Task) -> Job:
            torch.set_num_threads(study.threads)  # of this thread
            key = task, job.seed, *read_by_prepare(setting.study)
            if key not in clients:
                clients[key] = placed(prepare(data, task, setting.study, job.seed), study)
            # One process saves for all, so each saves as much more seldom.
            seldom = replace(setting, checkpoint_seconds=len(batch) * setting.checkpoint_seconds)
            parts = seldom, job, data, clients[key]
            return Running(*parts, place, meeting.seconds).to_end()

        return meeting.hold([partial(run, *order) for order in batch])


def placed(prepared: Prepared, study: StudySpec) -> Prepared:
    """Return the clients with their data on the study's device, for all jobs that share them."""

    def there(clients: Mapping[str, Client]) -> dict[str, Client]:
        moved = {}
        for name, client in clients.items():
            train = None if client.train is None else client.train.to(study.device)
            validation = client.split("validation").to(study.device)
            moved[name] = replace(client, train=train, validation=validation)
        return moved

    groups: dict[str, Any] = {
        name: there(getattr(prepared, name)) for name in ("sources", "validators", "targets")
    }
    return replace(prepared, **groups)


def carry_out(
    planned: Plan,
    jobs: int = 1,
    progress: bool = False,
    temporary: Any = None,
    track: Sequence[str] = (),
    work: Way | None = None,
    after: AfterJob | None = None,
) -> Results:
    """Run the missing jobs of a checked study, and write its tables.

    Args:
        planned: The study.
        jobs: How many processes run jobs.
        progress: Whether a bar shows the jobs that are done.
        temporary: What removes the folder when the results are gone.
        track: The trackers that jobs are written to as they end.
        work: What carries out the jobs; None: this process and `jobs` like it.
        after: Is called with each job that ends.
    """
    study, folder = planned.setting.study, planned.setting.out
    for warning in planned.warnings:
        warnings.warn(warning, stacklevel=2)
    with only_one(folder):
        check_folder(planned, strict=folder.joinpath(FOLDER).exists())
        if differs(planned):
            study_file.clear(folder)
        planned.check_code()
        study_file.write(folder, planned.content())
        tasks = {task.name: task for task in planned.tasks}
        work = partial(in_batches, planned.alone) if study.stacked else work or way(study)
        records = searched(planned, work, jobs, progress) if study.tune else {}
        settings = winners(planned.setting, records)
        orders = [
            (settings.get((job.method, job.task), planned.setting), job, tasks[job.task])
            for job in planned.missing
        ]
        finished = len(planned.jobs) - len(orders)
        total = len(planned.jobs)
        tracking = JobTracking(folder, track)
        for job in planned.jobs:
            if track and job not in planned.missing:
                tracking.write(job, before=True)
        with progress_bar(total, finished, "jobs", progress) as show:
            for ended, job in enumerate(work(orders, jobs), finished + 1):
                show(ended, described(job))
                tracking.write(job)
                if after is not None:
                    after(job, ended, total)
        results = results_of(planned, temporary)
        results.write()
    return results


def searched(
    planned: Plan, work: Way, jobs: int, progress: bool
) -> dict[tuple[str, str], SearchRecord]:
    """Search for every method at every task.

    Returns:
        (method, task) -> the record of its search.
    """
    able = [name for name in planned.methods if name not in planned.not_applicable]
    most = jobs_of(planned.setting.study, able, planned.tasks)
    with progress_bar(most, 0, "jobs", progress) as show:
        ended = count(1)
        return search(
            planned.setting,
            able,
            planned.tasks,
            lambda orders: work(orders, jobs),
            lambda job: show(next(ended), described(job)),
        )


def search_alone(planned: Plan, jobs: int = 1, progress: bool = False) -> tuple[SearchRecord, ...]:
    """Run the missing trials of a checked study's searches, and no job of the study itself.

    Args:
        planned: The study.
        jobs: How many processes run jobs.
        progress: Whether a bar shows the jobs that are done.
    """
    folder = planned.setting.out
    unable = [f"{name} {reason}" for name, reason in planned.not_applicable.items()]
    if len(unable) == len(planned.methods):
        raise UnseenError(f"no method of this study can be searched: {'; '.join(unable)}.")
    for warning in (*planned.warnings, *(f"not searched: {text}" for text in unable)):
        warnings.warn(warning, stacklevel=2)
    with only_one(folder):
        check_folder(planned, strict=folder.joinpath(FOLDER).exists())
        planned.check_code()
        study_file.write(folder, planned.content())
        records = searched(planned, way(planned.setting.study), jobs, progress)
    return tuple(records.values())


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
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        what = f"another run is writing to {folder}."
        raise UnseenError(what, remedy="Wait for it, or choose another --out.") from None


def described(job: Job) -> str:
    """Return what a bar says of the job that ended last."""
    return f"{job.method} · {job.task} · {job.seed}"
