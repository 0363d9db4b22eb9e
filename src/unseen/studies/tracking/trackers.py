"""Write the records of finished jobs to TensorBoard and MLflow.

TensorBoard has one folder of event files per job. MLflow has one run per job, in the experiment of
the study's name; its store is what MLFLOW_TRACKING_URI names, else the file `mlflow.db` (SQLite) in
the study's folder: MLflow no longer makes new stores of plain files (`mlruns`) by itself.
"""

import hashlib
import json
import logging
import math
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from unseen.core.record_lines import Record
from unseen.errors import absent, nearest
from unseen.studies.results.records import Job
from unseen.studies.results.selection import KEYS
from unseen.studies.results.statistics import mean
from unseen.studies.results.study_file import flat
from unseen.studies.results.study_folder import JobFolder, StudyFolder

Points = dict[tuple[str, int], float]
ROLES = {"source": "validation"}


def points(job: JobFolder) -> Points:
    """Return what there is to draw of a job's records; what is undefined has no point.

    Returns:
        (tag, round) -> number:

        METRIC/ROLE             the mean over a role's domains: validation, ood-validation, target
        METRIC/ROLE/DOMAIN      each domain's, where a role has several
        METRIC@COLUMN/...       the same with the level of a group as last part
        EXCHANGE.SCALAR         the mean over the clients; with /CLIENT each client's
        weights.SLOT/CLIENT     the rule's weights; with /BLOCK before the client for blocks
        bytes/up, bytes/down    what all clients sent and received in the round
    """
    return evaluated([*job.source, *job.target]) | trained(job.rounds)


def evaluated(rows: Iterable[Record]) -> Points:
    """Return metrics by role and domain."""
    series: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in rows:
        role = ROLES.get(row["role"], str(row["role"]))
        for name, level, number in measured(row):
            key = (f"{name}/{role}", f"/{level}" if level else "", row["round"])
            series.setdefault(key, {})[str(row["domain"])] = number
    points: Points = {}
    for (tag, end, r), domains in series.items():
        points[tag + end, r] = mean(list(domains.values()))
        if len(domains) > 1:
            points |= {(f"{tag}/{domain}{end}", r): x for domain, x in domains.items()}
    return points


def measured(row: Record) -> Iterator[tuple[str, str, float]]:
    """Yield (metric, level of its group or "", value) of one evaluation."""
    for name, value in row.items():
        if name.partition("@")[0] not in KEYS:
            levels: Mapping[str, Any] = value if isinstance(value, dict) else {"": value}
            yield from ((name, level, x) for level, x in levels.items() if finite(x))


def trained(rows: Iterable[Record]) -> Points:
    """Return scalars and weights of training exchanges, and bytes of all exchanges of a round."""
    points: Points = {}
    for row in rows:
        r, names = row["round"], row["clients"]
        for scalar, values in row.get("scalars", {}).items():
            clients = {c: float(x) for c, x in zip(names, values, strict=False) if finite(x)}
            tag = f"{row['exchange']}.{scalar}"
            points |= {(f"{tag}/{client}", r): x for client, x in clients.items()}
            points |= {(tag, r): mean(list(clients.values()))} if clients else {}
        for slot, values in row.get("weights", {}).items():
            blocked = bool(values) and isinstance(values[0], list)
            for i, block in enumerate(values if blocked else [values]):
                tag = f"weights.{slot}/{i}" if blocked else f"weights.{slot}"
                pairs = zip(names, block, strict=False)
                points |= {(f"{tag}/{client}", r): float(x) for client, x in pairs if finite(x)}
        for way, size in row.get("bytes", {}).items():
            points[f"bytes/{way}", r] = points.get((f"bytes/{way}", r), 0.0) + size
    return points


def finite(value: object) -> bool:
    """Return whether a value is a number that can be drawn: defined, finite and no truth value."""
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)


#: Tags by which a job's run is found again: its study's folder and its place.
FOLDER, PLACE = "unseen.folder", "unseen.job"
#: MLflow's limits: letters of a name and a value, runs of a search, metrics of a request.
NAME, VALUE, RUNS, BATCH = 200, 500, 50_000, 1000


@dataclass
class TensorBoard:
    """Scalars in single precision, as TensorBoard keeps them.

    Attributes:
        root: TensorBoard's `--logdir`.
    """

    root: Path

    @classmethod
    def of(cls, study: StudyFolder) -> Self:
        return cls(study.path / "tensorboard")

    def has(self, job: JobFolder) -> bool:
        """Return whether the job was written before."""
        return (self.root / job.place).exists()

    def write(self, job: JobFolder) -> None:
        """Write a finished job in place of what is there of it."""
        from torch.utils.tensorboard import SummaryWriter

        folder = self.root / job.place
        shutil.rmtree(folder, ignore_errors=True)
        with SummaryWriter(str(folder)) as writer:  # type: ignore[no-untyped-call]
            for (tag, step), value in in_order(points(job)):
                writer.add_scalar(tag, value, step)  # type: ignore[no-untyped-call]


@dataclass
class MLflow:
    """Runs of one study.

    Attributes:
        client: MLflow's client.
        experiment: The experiment's id.
        folder: What the runs are tagged with: the study's folder.
        settings: The study's settings, by dotted names.
        runs: The runs that are there, by place.
    """

    client: Any
    experiment: str
    folder: str
    settings: Mapping[str, str]
    runs: Mapping[str, Any]

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
        settings = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in flat(study.settings or study.identity.get("settings") or {})
            if name not in ("methods", "seeds", "targets", "published")
        }
        existing = client.search_runs([id], f"tags.`{FOLDER}` = '{tag}'", max_results=RUNS)
        return cls(
            client, id, tag, settings, {run.data.tags.get(PLACE, ""): run for run in existing}
        )

    def has(self, job: JobFolder) -> bool:
        """Return whether the job was written before."""
        return job.place in self.runs

    def write(self, job: JobFolder) -> None:
        """Write a finished job in place of what is there of it: FAILED where it diverged."""
        from mlflow.entities import Metric, Param

        if job.place in self.runs:
            self.client.delete_run(self.runs[job.place].info.run_id)
        keys = {"method": job.job.method, "task": job.job.task, "seed": str(job.job.seed)}
        tags = {FOLDER: self.folder, PLACE: job.place, "mlflow.source.name": "unseen", **keys}
        title = " · ".join(keys.values())
        run = self.client.create_run(self.experiment, run_name=title, tags=tags).info.run_id
        settings = {**self.settings, **keys}.items()
        self.client.log_batch(run, params=[Param(safe(k), v[:VALUE]) for k, v in settings])
        now = int(time.time() * 1000)
        metrics = [Metric(safe(tag), v, now, r) for (tag, r), v in in_order(points(job))]
        for first in range(0, len(metrics), BATCH):
            self.client.log_batch(run, metrics=metrics[first : first + BATCH])
        if why := job.mark.get("diverged"):
            self.client.set_tag(run, "diverged", str(why)[:VALUE])
        self.client.set_terminated(run, "FAILED" if why else "FINISHED")


def in_order(points: Points) -> list[tuple[tuple[str, int], float]]:
    """Return the points by round, then by tag."""
    return sorted(points.items(), key=lambda item: (item[0][1], item[0][0]))


def safe(tag: str) -> str:
    """Return a tag in the letters that MLflow allows; a digest keeps different ones apart."""
    parts = (re.sub(r"[^\w.\- ]", "_", part).strip(". ") or "_" for part in tag.split("/"))
    name = "/".join(parts)
    if name == tag and len(tag) <= NAME:
        return tag
    return f"{name[:NAME]}-{hashlib.sha256(tag.encode()).hexdigest()[:6]}"


Tracker = TensorBoard | MLflow
TRACKERS: dict[str, Callable[[StudyFolder], Tracker]] = {
    "tensorboard": TensorBoard.of,
    "mlflow": MLflow.of,
}
#: What each needs; SQLAlchemy and Alembic are for MLflow's SQLite store.
PACKAGES = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}


def check(names: Sequence[str]) -> None:
    """Refuse an unknown tracker, and one whose package is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise nearest("tracker", name, TRACKERS)
        for package in PACKAGES[name]:
            if find_spec(package) is None:
                instead = "leave it out and follow the bar of the run"
                raise absent(package, f"track = {name!r} needs", name, instead)


def listed(text: str) -> tuple[str, ...]:
    """Return names of trackers with commas between them, checked.

    Example:
        >>> listed("tensorboard,"), listed("")
        (('tensorboard',), ())
    """
    names = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    check(names)
    return names


class JobTracking:
    """Writes the jobs of a running study as they end. A tracker that fails is left out.

    Args:
        folder: The study's folder.
        names: Names in `TRACKERS`.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self.names = folder, list(names)
        self.trackers: dict[str, Tracker] = {}

    def write(self, job: Job, before: bool = False) -> None:
        """Write a job.

        Args:
            job: The job.
            before: Whether it ended in an earlier run, which may have written it already.
        """
        if not self.names:
            return
        study = StudyFolder.open(self.folder)
        for name in list(self.names):
            try:
                if name not in self.trackers:
                    self.trackers[name] = TRACKERS[name](study)
                tracker, ended = self.trackers[name], study.job(job)
                if not (before and tracker.has(ended)):
                    tracker.write(ended)
            except Exception as error:
                self.names.remove(name)
                kind = type(error).__name__
                reason = f"{kind}: {(' '.join(str(error).split()) or kind)[:300]}"
                what = f"{name} failed and is left out, the study goes on: {reason}"
                warnings.warn(what, stacklevel=2)
