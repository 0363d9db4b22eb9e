"""Run a study: check everything first, then every job that is missing, then read it all back."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unseen.backend.processes import in_processes
from unseen.errors import UnseenError
from unseen.study import records
from unseen.study.job import run_job
from unseen.study.plan import Plan, check_folder, prepare_study
from unseen.study.records import Job
from unseen.study.results import Results
from unseen.study.spec import Study


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
    with only_one(folder):
        check_folder(planned)
        about = {
            "identity": planned.identity,
            "study": study.model_dump(mode="json"),
            "not_applicable": planned.not_applicable,
        }
        records.write_atomically(folder / "study.json", json.dumps(about, indent=1).encode())
        tasks = {task.name: task for task in planned.tasks}
        calls = ((run_job, (planned.setting, job, tasks[job.task])) for job in planned.missing)
        with bar(len(planned.jobs), len(planned.jobs) - len(planned.missing), progress) as step:
            for job in in_processes(calls, jobs):
                step(job)
        results = results_of(planned, temporary)
        results.write()
    return results


def results_of(planned: Plan, temporary: Any = None) -> Results:
    """The results of what has run so far."""
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
        temporary=temporary,
    )


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """One run at a time per folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UnseenError(
            f"{folder} is a file; results need a folder. Choose another --out."
        ) from None
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise UnseenError(
            f"another run is writing to {folder}. Wait for it, or choose another --out."
        ) from None


@contextmanager
def bar(total: int, done: int, shown: bool) -> Iterator[Callable[[Job], None]]:
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
        task = progress.add_task("running", total=total, completed=done)

        def step(job: Job) -> None:
            progress.update(task, advance=1, description=f"{job.method} · {job.task} · {job.seed}")

        yield step
