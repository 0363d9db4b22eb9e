"""MLflow: one run per job, in the experiment of the study's name.

The store is what MLFLOW_TRACKING_URI names, else the file `mlflow.db` (SQLite) in the study's
folder: MLflow makes no new stores of plain files (`mlruns`) any more unless it is told to.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from unseen.follow.reader import Points
from unseen.results.records import Job

T = TypeVar("T")
#: Tags by which a job's run is found again: its study's folder, its place, its finished records.
FOLDER, PLACE, DONE = "unseen.folder", "unseen.job", "unseen.records"
#: MLflow's limits on one message and on names and values.
METRICS, PARAMS, NAME, VALUE = 1000, 100, 200, 500


@dataclass
class MLflow:
    """Runs of one study. runs: by place, those that are there."""

    client: Any
    experiment: str
    folder: str
    settings: Mapping[str, str]
    runs: dict[str, Any] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, folder: Path, about: Mapping[str, Any]) -> MLflow:
        """The study's experiment, made if it is new, and the runs of this folder in it."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would report its use
        from mlflow.tracking import MlflowClient

        for name in ("mlflow", "alembic"):  # how a database is set up interests nobody here
            logging.getLogger(name).setLevel(logging.WARNING)
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        inside = folder.resolve() / "mlflow.db"
        client = MlflowClient(uri or f"sqlite:///{inside}")
        study = about.get("study") or {}
        name = str(study.get("name") or folder.resolve().name)
        known = client.get_experiment_by_name(name)
        place = None if uri else (inside.parent / "mlflow-artifacts").as_uri()
        id = known.experiment_id if known else client.create_experiment(name, place)
        own = "." if not uri else str(folder.resolve())  # a folder that moves keeps its store
        settings = dict(flat(study or (about.get("identity") or {}).get("settings") or {}))
        found = cls(client, id, own, settings)
        found.runs = {run.data.tags.get(PLACE, ""): run for run in found._listed()}
        return found

    def _listed(self) -> Iterator[Any]:
        token = None
        while True:
            page = self.client.search_runs([self.experiment], page_token=token)
            yield from (run for run in page if run.data.tags.get(FOLDER) == self.folder)
            token = page.token
            if not token:
                return

    def name(self, tag: str) -> str:
        """A tag in the letters that MLflow allows; a digest keeps different ones apart."""
        safe = "/".join(
            re.sub(r"[^\w.\- ]", "_", part).strip(". ") or "_" for part in tag.split("/")
        )
        if safe == tag and len(tag) <= NAME:
            return tag
        return f"{safe[:NAME]}-{hashlib.sha256(tag.encode()).hexdigest()[:6]}"

    def complete(self, place: str) -> str:
        """The digest that the run of a finished job was marked with."""
        run = self.runs.get(place)
        return run.data.tags.get(DONE, "") if run else ""

    def known(self, place: str, job: Job) -> Points:
        """The history of every metric of the job's run, which is made if there is none."""
        if place not in self.runs:
            self.runs[place] = self._made(place, job)
            self.opened.add(place)
            return {}
        run = self.runs[place].info.run_id
        if place not in self.opened:
            self.client.update_run(run, status="RUNNING")
            self.opened.add(place)
        return {
            (point.key, point.step): point.value
            for name in self.client.get_run(run).data.metrics
            for point in self.client.get_metric_history(run, name)
        }

    def _made(self, place: str, job: Job) -> Any:
        from mlflow.entities import Param

        named = {"method": job.method, "task": job.task, "seed": str(job.seed)}
        tags = {FOLDER: self.folder, PLACE: place, "mlflow.source.name": "unseen", **named}
        title = f"{job.method} · {job.task} · {job.seed}"
        run = self.client.create_run(self.experiment, run_name=title, tags=tags)
        params = [
            Param(self.name(key), value[:VALUE])
            for key, value in {**self.settings, **named}.items()
        ]
        for part in parts(params, PARAMS):
            self.client.log_batch(run.info.run_id, params=part)
        return run

    def forget(self, place: str) -> None:
        """Remove the job's run; MLflow keeps it among the deleted."""
        if place in self.runs:
            self.client.delete_run(self.runs.pop(place).info.run_id)
        self.opened.discard(place)

    def write(self, place: str, new: Points) -> None:
        """Add points to the job's run."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for (name, step), value in new.items()]
        for part in parts(metrics, METRICS):
            self.client.log_batch(self.runs[place].info.run_id, metrics=part)

    def done(self, place: str, mark: Mapping[str, Any], digest: str) -> None:
        """End the job's run: FINISHED, or FAILED with the reason where it diverged."""
        run = self.runs[place].info.run_id
        if why := mark.get("diverged"):
            self.client.set_tag(run, "diverged", str(why)[:VALUE])
        self.client.set_terminated(run, "FAILED" if why else "FINISHED")
        self.client.set_tag(run, DONE, digest)
        self.opened.discard(place)

    def close(self) -> None:
        """Runs of jobs that were stopped half-way are marked so; they go on when these do."""
        for place in self.opened:
            self.client.set_terminated(self.runs[place].info.run_id, "KILLED")
        self.opened.clear()


def parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items, so many at a time."""
    return (items[i : i + size] for i in range(0, len(items), size))


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings by dotted names; those of the whole study that are no one job's are left out."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif prefix or name not in ("methods", "seeds", "targets", "published"):
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)
