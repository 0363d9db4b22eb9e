"""Run a study: check everything first, then every job that is missing, then read it all back."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

import unseen
from unseen.backend.processes import in_processes
from unseen.datasets import DATASETS
from unseen.datasets.base import DataSet
from unseen.errors import UnseenError, nearest
from unseen.methods.compose import method as compose
from unseen.metrics import check_metric
from unseen.study import records
from unseen.study.holdout import Task, plan
from unseen.study.job import Setting, dataset, module, run_job
from unseen.study.prepare import Prepared, check_clients, check_data, check_model, prepare
from unseen.study.records import Job
from unseen.study.results import Results
from unseen.study.spec import Study

#: Settings that choose what is run or shown, not what a job computes.
FREE = {"name", "title", "methods", "targets", "seeds", "selection", "metric"}


@dataclass(frozen=True)
class Plan:
    """What a study comes to: its tasks, its jobs, and methods that cannot run on this data."""

    setting: Setting
    data: DataSet
    tasks: tuple[Task, ...]
    jobs: tuple[Job, ...]
    missing: tuple[Job, ...]
    not_applicable: dict[str, str]
    warnings: tuple[str, ...]


def run(
    study: Study,
    out: str | Path | None = None,
    jobs: int = 1,
    data_dir: str | Path | None = None,
    progress: bool = False,
) -> Results:
    """See `Study.run`."""
    temporary = tempfile.TemporaryDirectory(prefix="unseen-") if out is None else None
    folder = Path(temporary.name if temporary else out or "")
    planned = prepare_study(study, folder, data_dir)
    for warning in planned.warnings:
        warnings.warn(warning, stacklevel=2)
    with _only_one(folder):
        _check_identity(planned)
        tasks = {task.name: task for task in planned.tasks}
        calls = ((run_job, (planned.setting, job, tasks[job.task])) for job in planned.missing)
        with _bar(len(planned.jobs), len(planned.jobs) - len(planned.missing), progress) as step:
            for job in in_processes(calls, jobs):
                step(job)
        results = results_of(planned, temporary)
        results.write()
    return results


def prepare_study(study: Study, out: Path, data_dir: str | Path | None = None) -> Plan:
    """Check everything that can be checked before any training, and list the jobs."""
    found = data_dir or os.environ.get("UNSEEN_DATA")
    directory = Path(found).expanduser() if found else None
    data = dataset(study.dataset, directory)
    check_data(data)
    for column in study.groups:
        if column not in data.levels:
            raise nearest("column to group by", column, data.levels)
    info = DATASETS[data.name]
    usual = info.metrics if data.classes is not None else ("loss", "pearson")
    metrics = tuple(dict.fromkeys(study.metrics or usual))
    for name in metrics:
        check_metric(name, regression=data.classes is None)
    setting = Setting(study, out, directory, study.model or info.model, metrics)
    study.training.build(data.classes is None)
    tasks = plan(study.holdout, data.names, study.targets)
    seeds = study.seed_list
    notes: list[str] = []
    for task in tasks:
        prepared = prepare(data, task, study, seeds[0])
        check_model(module(setting, prepared, seeds[0]), prepared, study)
        notes += check_clients(prepared, study, task)
    refused = _not_applicable(setting, data, prepared)
    jobs = tuple(
        Job(method, task.name, seed)
        for method in canonical(study.methods)
        if method not in refused
        for task in tasks
        for seed in seeds
    )
    missing = tuple(job for job in jobs if not records.is_done(job.folder(out)))
    return Plan(setting, data, tasks, jobs, missing, refused, tuple(dict.fromkeys(notes)))


def canonical(methods: Sequence[str]) -> tuple[str, ...]:
    """The methods' canonical expressions, each once."""
    return tuple(dict.fromkeys(compose(method).name for method in methods))


def results_of(planned: Plan, temporary: Any = None) -> Results:
    """The results of what has run so far."""
    study = planned.setting.study
    return Results(
        study=study,
        out=planned.setting.out,
        methods=canonical(study.methods),
        tasks=planned.tasks,
        metrics=planned.setting.metrics,
        model=planned.setting.model,
        data=identity(planned)["data"],
        not_applicable=planned.not_applicable,
        temporary=temporary,
    )


def identity(planned: Plan) -> dict[str, Any]:
    """All that decides what a job computes, with a digest of the data."""
    study = planned.setting.study
    digest = hashlib.sha256()
    for domain in planned.data.domains:
        digest.update(domain.name.encode())
        digest.update(domain.x.contiguous().numpy().data)
        digest.update(domain.y.contiguous().numpy().data)
    return {
        "settings": study.model_dump(mode="json", exclude=FREE),
        "model": planned.setting.model,
        "metrics": list(planned.setting.metrics),
        "data": f"{planned.data.name} sha256:{digest.hexdigest()[:16]}",
    }


def versions() -> dict[str, str]:
    """What a result was made with."""
    return {
        "unseen": unseen.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _check_identity(planned: Plan) -> None:
    """Refuse to mix two studies in one folder."""
    path, now = planned.setting.out / "study.json", identity(planned)
    try:
        before = json.loads(path.read_bytes())
    except (OSError, ValueError):
        before = None
    if before is not None and before["identity"] != now:
        raise UnseenError(
            f"{planned.setting.out} holds another study: {_difference(before['identity'], now)}. "
            "Choose another --out, or remove that folder."
        )
    content = {"identity": now, "versions": versions()}
    if before is None or before != content:
        records.write_atomically(path, json.dumps(content, indent=1).encode())


def _difference(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> str:
    found = []
    for key in sorted({*before, *now}):
        a, b = before.get(key), now.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            inner = _difference(a, b, f"{prefix}{key}.")
            if inner:
                found.append(inner)
        elif a != b:
            found.append(f"{prefix}{key} was {a!r} and is {b!r}")
    return ", ".join(found)


def _not_applicable(setting: Setting, data: DataSet, prepared: Prepared) -> dict[str, str]:
    """Methods that this data or model cannot serve, with the reason."""
    refused = {}
    network = module(setting, prepared, 0)
    norm = any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in network.modules())
    has = {"images": len(prepared.shape) == 3, "batchnorm": norm}
    for expression in setting.study.methods:
        built = compose(expression, setting.study.training.build(data.classes is None))
        lacking = [ask for ask in built.asks if not has[ask]]
        if lacking:
            refused[built.name] = f"needs {' and '.join(lacking)}"
    return refused


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """One run at a time per folder."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise UnseenError(
            f"another run is writing to {folder}. Wait for it, or choose another --out."
        ) from None


@contextmanager
def _bar(total: int, done: int, shown: bool) -> Iterator[Any]:
    """A progress bar over jobs with the time left."""
    if not shown:
        yield lambda job: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, transient=True) as progress:
        bar = progress.add_task("running", total=total, completed=done)

        def step(job: Job) -> None:
            progress.update(bar, advance=1, description=f"{job.method} · {job.task} · {job.seed}")

        yield step
