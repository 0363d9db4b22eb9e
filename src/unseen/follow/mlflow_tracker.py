"""MLflow: one run per job, in the experiment of the study's name.

The store is what MLFLOW_TRACKING_URI names, else the file `mlflow.db` (SQLite) in the study's
folder: MLflow no longer makes new stores of plain files (`mlruns`) by itself.
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
from typing import Any, Self, TypeVar

from unseen.follow.points import Points
from unseen.results.records import Job
from unseen.results.study_folder import StudyFolder

T = TypeVar("T")
#: Tags by which a job's run is found again: its study's folder, its place, its finished records.
FOLDER, PLACE, DONE = "unseen.folder", "unseen.job", "unseen.records"
#: MLflow's limits: metrics and parameters of a message, letters of a name and a value, runs of a
#: search.
METRICS, PARAMS, NAME, VALUE, RUNS = 1000, 100, 200, 500, 1000


@dataclass
class MLflow:
    """Runs of one study.

    Attributes:
        client: MLflow's client.
        experiment: The experiment's id.
        folder: What the runs are tagged with: the study's folder.
        settings: The study's settings, by dotted names.
        runs: The runs that are there, by place.
        opened: Places whose run is marked as running.
    """

    client: Any
    experiment: str
    folder: str
    settings: Mapping[str, str]
    runs: dict[str, Any] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, study: StudyFolder) -> Self:
        """Find or make the study's experiment, and find the runs of this folder in it."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would report its use
        from mlflow.tracking import MlflowClient

        for name in ("mlflow", "alembic"):  # they would log how a database is set up
            logging.getLogger(name).setLevel(logging.WARNING)
        uri, folder = os.environ.get("MLFLOW_TRACKING_URI"), study.path.resolve()
        client = MlflowClient(uri or f"sqlite:///{folder / 'mlflow.db'}")
        name = str(study.settings.get("name") or folder.name)
        experiment = client.get_experiment_by_name(name)
        artifacts = None if uri else (folder / "mlflow-artifacts").as_uri()
        id = experiment.experiment_id if experiment else client.create_experiment(name, artifacts)
        tag = str(folder) if uri else "."  # a folder that moves keeps its store
        settings = study.settings or study.identity.get("settings") or {}
        tracker = cls(client, id, tag, dict(flat(settings)))
        tracker.runs = {run.data.tags.get(PLACE, ""): run for run in tracker._listed()}
        return tracker

    def _listed(self) -> Iterator[Any]:
        token: str | None = ""
        search = f"tags.`{FOLDER}` = '{self.folder}'"
        while token is not None:
            page = self.client.search_runs([self.experiment], search, 1, RUNS, page_token=token)
            yield from page
            token = page.token or None

    def name(self, tag: str) -> str:
        """Return a tag in the letters that MLflow allows; a digest keeps different ones apart."""
        parts = (re.sub(r"[^\w.\- ]", "_", part).strip(". ") or "_" for part in tag.split("/"))
        safe = "/".join(parts)
        if safe == tag and len(tag) <= NAME:
            return tag
        return f"{safe[:NAME]}-{hashlib.sha256(tag.encode()).hexdigest()[:6]}"

    def complete(self, place: str) -> str:
        """Return the digest that the run of a finished job was marked with."""
        run = self.runs.get(place)
        return run.data.tags.get(DONE, "") if run else ""

    def known(self, place: str, job: Job) -> Points:
        """Return the history of every metric of the job's run, which is made if there is none."""
        new = place not in self.runs
        if new:
            self.runs[place] = self._created(place, job)
        run = self.runs[place].info.run_id
        if not new and place not in self.opened:
            self.client.update_run(run, status="RUNNING")
        self.opened.add(place)
        return {
            (point.key, point.step): point.value
            for name in ([] if new else self.client.get_run(run).data.metrics)
            for point in self.client.get_metric_history(run, name)
        }

    def _created(self, place: str, job: Job) -> Any:
        from mlflow.entities import Param

        named = {"method": job.method, "task": job.task, "seed": str(job.seed)}
        tags = {FOLDER: self.folder, PLACE: place, "mlflow.source.name": "unseen", **named}
        title = f"{job.method} · {job.task} · {job.seed}"
        run = self.client.create_run(self.experiment, run_name=title, tags=tags)
        values = {**self.settings, **named}.items()
        for part in parts([Param(self.name(k), v[:VALUE]) for k, v in values], PARAMS):
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
        """Mark runs of jobs that were stopped half-way as killed; they resume when these do."""
        for place in self.opened:
            self.client.set_terminated(self.runs[place].info.run_id, "KILLED")
        self.opened.clear()


def parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in parts of at most `size`."""
    return (items[i : i + size] for i in range(0, len(items), size))


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield settings by dotted names, but for those that no single job has."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif prefix or name not in ("methods", "seeds", "targets", "published"):
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)
