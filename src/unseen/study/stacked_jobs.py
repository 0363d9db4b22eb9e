"""A study's jobs as batches of models: `stacked`, for GPUs. The bits are not those of one by one.

Every job goes its own way from round to round, with its own records and checkpoints; before each
round the clients of all jobs of a batch train as one batch of models. A job that is done, or that
diverged, leaves its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from unseen.core.client import Client
from unseen.core.exchange import Method
from unseen.datasets.dataset import DataSet
from unseen.engine.determinism import reproducible
from unseen.engine.processes import in_processes
from unseen.engine.stacked import Run, Stacked, pooled, train_together, unstackable
from unseen.results.records import Job
from unseen.spec.holdout import Task
from unseen.spec.study import StudySpec
from unseen.study.job import Pending, Running, run_job
from unseen.study.network import first_model
from unseen.study.prepare import Prepared, prepare
from unseen.study.setting import Setting, dataset

Arguments = tuple[Setting, Job, Task]


def alone(
    setting: Setting, data: DataSet, tasks: Sequence[Task], methods: Mapping[str, Method]
) -> dict[str, str]:
    """The methods whose models cannot train in a batch, with the reason."""
    study, found = setting.study, {}
    prepared = prepare(data, tasks[0], study, study.seed_list[0])
    model = first_model(setting, prepared, study.seed_list[0], device="cpu")
    for name, method in methods.items():
        if reason := unstackable(method, model, prepared.sources):
            found[name] = reason
    return found


def in_batches(
    alone: Mapping[str, str], calls: Iterable[tuple[Callable[..., Job], tuple[Any, ...]]], jobs: int
) -> Iterator[Job]:
    """The jobs of a study in batches of up to `stacked` models, each batch in one of the processes;
    those of the methods in `alone` one by one.

    calls: `run_job` with a setting, a job and a task.
    """
    listed: list[Arguments] = [(s, job, task) for _, (s, job, task) in calls]
    single = [one for one in listed if one[1].method in alone]
    groups = filled([one for one in listed if one[1].method not in alone])
    work: list[tuple[Callable[..., list[Job]], tuple[object, ...]]] = [
        *((run_together, (group,)) for group in groups),
        *((_one, one) for one in single),
    ]
    for done in in_processes(work, jobs):
        yield from done


def filled(jobs: Sequence[Arguments]) -> list[list[Arguments]]:
    """The jobs in groups of at most `stacked` models, or of one job that has more."""
    groups: list[list[Arguments]] = []
    models = 0
    for one in jobs:
        setting, _, task = one
        count = len(task.sources)
        if not groups or models + count > setting.study.stacked:
            groups.append([])
            models = 0
        groups[-1].append(one)
        models += count
    return groups


def _one(setting: Setting, job: Job, task: Task) -> list[Job]:
    return [run_job(setting, job, task)]


def run_together(group: Sequence[Arguments]) -> list[Job]:
    """Run the jobs to their ends, the clients of all of them as one batch of models."""
    setting = group[0][0]
    study = setting.study
    with reproducible(study.threads, study.device):
        data = dataset(study.dataset, setting.data_dir, setting.data)
        clients: dict[tuple[str, int], Prepared] = {}
        for _, job, task in group:
            if (job.task, job.seed) not in clients:
                clients[job.task, job.seed] = placed(prepare(data, task, study, job.seed), study)
        with ExitStack() as stack:
            going = [
                stack.enter_context(
                    Running(setting, job, data, clients[job.task, job.seed], Stacked)
                )
                for _, job, _ in group
            ]
            play(going, study.rounds)
    return [job for _, job, _ in group]


def play(going: Sequence[Running], rounds: int) -> None:
    """Round after round of all jobs, until the last of them is done."""
    pool = None
    while left := [running for running in going if not running.finished]:
        runs = [stacked_run(running.pending) for running in left]
        pool = pool or pooled(runs)
        train_together(runs, rounds, pool)
        for running in left:
            running.round()


def stacked_run(at: Pending) -> Run:
    """A job's coming round, as one federation of a batch."""
    assert isinstance(at.backend, Stacked)
    return Run(at.method, at.state, at.backend, at.clients, at.participation)


def placed(prepared: Prepared, study: StudySpec) -> Prepared:
    """The clients with their data on the study's device, once for all jobs that share them."""

    def there(clients: Mapping[str, Client]) -> dict[str, Client]:
        return {
            name: replace(
                client,
                train=None if client.train is None else client.train.to(study.device),
                validation=client.split("validation").to(study.device),
            )
            for name, client in clients.items()
        }

    return replace(
        prepared,
        sources=there(prepared.sources),
        validators=there(prepared.validators),
        targets=there(prepared.targets),
    )
