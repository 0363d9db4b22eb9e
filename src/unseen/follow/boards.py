"""The points of a job, and where they can go: TensorBoard and MLflow.

TensorBoard has one folder of event files per job, to which each run of a study adds a file. MLflow
has one run per job, in the experiment of the study's name; its store is what MLFLOW_TRACKING_URI
names, else the file `mlflow.db` (SQLite) in the study's folder: MLflow no longer makes new stores
of plain files (`mlruns`) by itself.
"""

import hashlib
import json
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from unseen.core.atomic import write_atomically
from unseen.results.records import Job, Record
from unseen.results.selection import KEYS
from unseen.results.statistics import mean
from unseen.results.study_file import flat
from unseen.results.study_folder import JobFolder, StudyFolder

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


#: Next to the event files of a finished job: the digest of the records that they hold.
DIGEST = "records.sha256"
#: Tags by which a job's run is found again: its study's folder, its place, its finished records.
FOLDER, PLACE, DONE = "unseen.folder", "unseen.job", "unseen.records"
#: MLflow's limits: letters of a name and a value, runs of a search.
NAME, VALUE, RUNS = 200, 500, 50_000


@dataclass
class TensorBoard:
    """Scalars in single precision, as TensorBoard keeps them.

    Attributes:
        root: TensorBoard's `--logdir`.
        writers: The open writers, by place.
    """

    root: Path
    writers: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, study: StudyFolder) -> Self:
        return cls(study.path / "tensorboard")

    def name(self, tag: str) -> str:
        """Return a tag in the letters that the tracker allows: any."""
        return tag

    def complete(self, place: str) -> str:
        """Return the digest of the records with which a job was done; "" where it is not."""
        file = self.root / place / DIGEST
        return file.read_text() if file.exists() else ""

    def history(self, place: str, job: Job) -> Points:
        """Return the points in the job's event files; a truncated file is read up to its end."""
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray

        return {
            # The loader turns simple values into tensors.
            (value.tag, event.step): float(make_ndarray(value.tensor).item())
            for path in sorted((self.root / place).glob("events.out.tfevents.*"))
            for event in EventFileLoader(str(path)).Load()
            for value in event.summary.value
        }

    def forget(self, place: str) -> None:
        self._close(place)
        shutil.rmtree(self.root / place, ignore_errors=True)

    def write(self, place: str, new: Points) -> None:
        """Append to this process's file, and bring it to disk."""
        from torch.utils.tensorboard import SummaryWriter

        if place not in self.writers:
            self.writers[place] = SummaryWriter(str(self.root / place))  # type: ignore[no-untyped-call]
        for (tag, step), value in new.items():
            self.writers[place].add_scalar(tag, value, step)
        self.writers[place].flush()

    def finish(self, place: str, mark: Mapping[str, Any], digest: str) -> None:
        """Close the job's file, and write down what it holds."""
        self._close(place)
        write_atomically(self.root / place / DIGEST, digest.encode())

    def close(self) -> None:
        for place in list(self.writers):
            self._close(place)

    def _close(self, place: str) -> None:
        if place in self.writers:
            self.writers.pop(place).close()


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
    runs: dict[str, Any]
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
        settings = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in flat(study.settings or study.identity.get("settings") or {})
            if name not in ("methods", "seeds", "targets", "published")
        }
        existing = client.search_runs([id], f"tags.`{FOLDER}` = '{tag}'", max_results=RUNS)
        runs = {run.data.tags.get(PLACE, ""): run for run in existing}
        return cls(client, id, tag, settings, runs)

    def name(self, tag: str) -> str:
        """Return a tag in the letters that MLflow allows; a digest keeps different ones apart."""
        parts = (re.sub(r"[^\w.\- ]", "_", part).strip(". ") or "_" for part in tag.split("/"))
        safe = "/".join(parts)
        if safe == tag and len(tag) <= NAME:
            return tag
        return f"{safe[:NAME]}-{hashlib.sha256(tag.encode()).hexdigest()[:6]}"

    def complete(self, place: str) -> str:
        return self.runs[place].data.tags.get(DONE, "") if place in self.runs else ""

    def history(self, place: str, job: Job) -> Points:
        """Return the history of every metric of the job's run, which is made if there is none."""
        from mlflow.entities import Param

        if place not in self.runs:
            keys = {"method": job.method, "task": job.task, "seed": str(job.seed)}
            tags = {FOLDER: self.folder, PLACE: place, "mlflow.source.name": "unseen", **keys}
            title = " · ".join(keys.values())
            run = self.client.create_run(self.experiment, run_name=title, tags=tags)
            params = [Param(self.name(k), v[:VALUE]) for k, v in {**self.settings, **keys}.items()]
            self.client.log_batch(run.info.run_id, params=params)
            self.runs[place] = run
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

    def forget(self, place: str) -> None:
        if place in self.runs:
            self.client.delete_run(self.runs.pop(place).info.run_id)
        self.opened.discard(place)

    def write(self, place: str, new: Points) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for (name, step), value in new.items()]
        self.client.log_batch(self.runs[place].info.run_id, metrics)

    def finish(self, place: str, mark: Mapping[str, Any], digest: str) -> None:
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
