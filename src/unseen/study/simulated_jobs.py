"""A study's jobs on Flower's engine: one after the other, each one's clients over its workers."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from unseen.engine.determinism import reproducible
from unseen.engine.simulation import MEMORIES, Nodes, Workplace, simulate
from unseen.errors import UnseenError
from unseen.results.records import Job, is_done
from unseen.spec.holdout import Task
from unseen.study.job import run_job
from unseen.study.prepare import prepare
from unseen.study.runtime import Runtime
from unseen.study.setting import Setting, dataset

Call = tuple[Callable[..., Job], tuple[Any, ...]]


def in_simulation(calls: Iterable[Call], jobs: int) -> Iterator[Job]:
    """Yield a study's jobs one after the other, each one's clients over workers of Ray.

    Args:
        calls: `run_job` with a setting, a job and a task.
        jobs: How many workers there are.
    """
    listed = [arguments for _, arguments in calls]
    if not listed:
        return
    if any(setting.study.cross_evaluation for setting, _, _ in listed):
        raise UnseenError(
            "cross_evaluation looks at clients in this process.", remedy="Leave it out."
        )
    done: list[Job] = []

    def main(grid: Any) -> None:
        for setting, job, task in listed:
            folder = job.folder(setting.out) / MEMORIES
            often = replace(setting, checkpoint_seconds=0.0)  # with the clients' memories in step
            made = pickle.dumps(partial(workplace, often, job, task))
            done.append(run_job(often, job, task, partial(Nodes.place, grid, made, folder)))
            shutil.rmtree(folder, ignore_errors=True)

    nodes = max(len(task.sources) + len(task.targets) + len(task.validation) for *_, task in listed)
    simulate(main, nodes, jobs)
    unfinished = [job for setting, job, _ in listed if not is_done(job.folder(setting.out))]
    if unfinished:
        raise UnseenError(
            f"the simulation ended before {unfinished[0]} was done; its log says why."
        )
    yield from done


def workplace(setting: Setting, job: Job, task: Task) -> Workplace:
    """Return what a worker needs to answer for any client of the job."""
    study = setting.study
    with reproducible(study.threads, study.device):
        data = dataset(study.dataset, setting.data_dir, setting.data)
        prepared = prepare(data, task, study, job.seed)
        made = Runtime.of(setting, data, prepared, job.method, job.seed)
        return Workplace(made.method, made.model, made.clients, study.threads, study.device)
