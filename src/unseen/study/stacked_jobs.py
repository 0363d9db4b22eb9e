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
from unseen.study.job import Running, run_job
from unseen.study.network import first_model
from unseen.study.prepare import Prepared, prepare
from unseen.study.setting import Setting, dataset

Arguments = tuple[Setting, Job, Task]


def alone(
    setting: Setting, data: DataSet, tasks: Sequence[Task], methods: Mapping[str, Method]
) -> dict[str, str]:
    """Return the methods whose models cannot train in a batch, with the reason."""
    seed = setting.study.seed_list[0]
    prepared = prepare(data, tasks[0], setting.study, seed)
    model = first_model(setting, prepared, seed, device="cpu")
    reasons = {name: unstackable(m, model, prepared.sources) for name, m in methods.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def in_batches(
    alone: Mapping[str, str], calls: Iterable[tuple[Callable[..., Job], tuple[Any, ...]]], jobs: int
) -> Iterator[Job]:
    """Yield a study's jobs in batches of up to `stacked` models, each batch in one process.

    Args:
        alone: The methods whose jobs run one by one.
        calls: `run_job` with a setting, a job and a task.
        jobs: How many processes there are.
    """
    listed: list[Arguments] = [arguments for _, arguments in calls]  # type: ignore[misc]
    groups = filled([one for one in listed if one[1].method not in alone])
    work: list[tuple[Callable[..., list[Job]], tuple[object, ...]]] = [
        *((run_together, (group,)) for group in groups),
        *((_one, one) for one in listed if one[1].method in alone),
    ]
    for done in in_processes(work, jobs):
        yield from done


def filled(jobs: Sequence[Arguments]) -> list[list[Arguments]]:
    """Return the jobs in groups of at most `stacked` models, or of one job that has more."""
    groups: list[list[Arguments]] = []
    models = 0
    for one in jobs:
        setting, _, task = one
        models += len(task.sources)
        if not groups or models > setting.study.stacked:
            groups.append([])
            models = len(task.sources)
        groups[-1].append(one)
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
            going = []
            for _, job, _ in group:
                prepared = clients[job.task, job.seed]
                running = Running(setting, job, data, prepared, Stacked)
                going.append(stack.enter_context(running))
            play(going, study.rounds)
    return [job for _, job, _ in group]


def play(going: Sequence[Running], rounds: int) -> None:
    """Play round after round of all jobs, until the last of them is done."""
    pool = None
    while left := [running for running in going if not running.finished]:
        runs = [pending(running) for running in left]
        pool = pool or pooled(runs)
        train_together(runs, rounds, pool)
        for running in left:
            running.round()


def pending(job: Running) -> Run:
    """Return a job's coming round, as one federation of a batch."""
    assert isinstance(job.backend, Stacked)
    runtime = job.runtime
    return Run(job.method, job.state, job.backend, runtime.names, runtime.participation)


def placed(prepared: Prepared, study: StudySpec) -> Prepared:
    """Return the clients with their data on the study's device, for all jobs that share them."""

    def there(clients: Mapping[str, Client]) -> dict[str, Client]:
        moved = {}
        for name, client in clients.items():
            train = None if client.train is None else client.train.to(study.device)
            validation = client.split("validation").to(study.device)
            moved[name] = replace(client, train=train, validation=validation)
        return moved

    return replace(
        prepared,
        sources=there(prepared.sources),
        validators=there(prepared.validators),
        targets=there(prepared.targets),
    )
