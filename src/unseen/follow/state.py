"""What a folder of records says of its study at this moment: what is done, at work and left.

Everything is read from disk, so that it can be watched from another terminal, or from another
machine that shares the disk; nothing is written, and no lock is taken.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Literal

from unseen.errors import UnseenError
from unseen.expression import parse, text
from unseen.results import records
from unseen.results.records import Job, Record
from unseen.results.selection import main_metric, value
from unseen.results.statistics import mean

State = Literal["done", "diverged", "running", "stopped", "damaged", "waiting"]
Curve = Mapping[int, float]
#: Seconds after which a folder is taken for still, where its lock does not tell.
STILL = 60.0
#: Bytes at the end of a file in which its last record is sought first.
TAIL = 1 << 16


@dataclass(frozen=True)
class Progress:
    """One job. rounds: how many are recorded; written: when its records last grew; seconds: what
    it took, once it is done; why: what happened to it, where it diverged."""

    job: Job
    state: State = "waiting"
    rounds: int = 0
    validation: Curve = field(default_factory=dict)
    target: Curve = field(default_factory=dict)
    written: float | None = None
    seconds: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Snapshot:
    """A study at one moment. rounds: those that each job plays, None where that is unknown;
    active: whether a run is at work; begun: when it was started; notes: what a reader must know."""

    folder: Path
    title: str
    metric: str
    rounds: int | None
    jobs: tuple[Progress, ...]
    active: bool
    begun: float
    now: float
    refused: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, *states: State) -> tuple[Progress, ...]:
        """The jobs in these states."""
        return tuple(one for one in self.jobs if one.state in states)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods, in the study's order."""
        return tuple(dict.fromkeys(one.job.method for one in self.jobs))

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return bool(self.jobs) and len(self.of("done", "diverged")) == len(self.jobs)

    def share(self) -> float:
        """The share of all rounds that is played; a job that diverged counts as whole."""
        if self.rounds is None or not self.jobs:
            return 0.0
        played = [self.rounds - _left(self, one) for one in self.jobs]
        return sum(played) / (self.rounds * len(self.jobs))

    def left(self) -> float | None:
        """Seconds until the end as the run has gone so far; None where nothing tells it.

        Rounds count by what a round of their method took in jobs that are done. The pace is that
        of this run, over all its processes: what it has played since it was started.
        """
        if self.rounds is None or not self.active or self.finished:
            return None
        cost = costs(self)
        this_run = [one for one in self.jobs if (one.written or 0) > self.begun]
        played = sum(one.rounds * cost[one.job.method] for one in this_run)
        ahead = sum(_left(self, one) * cost[one.job.method] for one in self.jobs)
        return (self.now - self.begun) * ahead / played if played else None


def _left(snapshot: Snapshot, one: Progress) -> int:
    if one.state in ("done", "diverged"):
        return 0
    return max((snapshot.rounds or 0) - one.rounds, 0)


def costs(snapshot: Snapshot) -> dict[str, float]:
    """Seconds per round by method, as far as jobs are done; else the mean of those known, or 1."""
    known: dict[str, list[float]] = {}
    for one in snapshot.of("done"):
        if one.seconds and one.rounds:
            known.setdefault(one.job.method, []).append(one.seconds / one.rounds)
    means = {method: mean(found) for method, found in known.items()}
    usual = mean(list(means.values())) if means else 1.0
    return {method: means.get(method, usual) for method in snapshot.methods}


@dataclass
class Reader:
    """Reads a study's folder again and again; files that have not changed are not read twice."""

    folder: Path
    metric: str | None = None
    seen: dict[Path, tuple[object, Progress]] = field(default_factory=dict)

    def snapshot(self) -> Snapshot:
        """The study as it is now."""
        file = self.folder / "study.json"
        about, notes = read_about(file)
        study, identity = _table(about, "study"), _table(about, "identity")
        settings = study or _table(identity, "settings")
        active, begun = at_work(self.folder), _time(file) or 0.0
        refused = {str(k): str(v) for k, v in _table(about, "not_applicable").items()}
        places = self._places(about, study, refused)
        metric = self._shown(study, identity)
        now = time.time()
        jobs = [self._progress(job, place, metric, active, begun) for place, job in places.items()]
        others = len(set(job_folders(self.folder)) - set(places))
        if others:
            notes.append(f"{others} more jobs, of earlier settings, lie in the same folder")
        if "tasks" not in about and study and not study.get("targets"):
            notes.append("written by an earlier version: targets without records are not counted")
        rounds = settings.get("rounds")
        return Snapshot(
            self.folder,
            str(study.get("title") or study.get("name") or self.folder.name),
            metric,
            rounds if isinstance(rounds, int) else None,
            tuple(jobs),
            active,
            begun,
            now,
            refused,
            tuple(notes),
        )

    def _shown(self, study: Record, identity: Record) -> str:
        """The metric to show; UnseenError for one that the records do not have."""
        files = (path / "source.jsonl" for path in job_folders(self.folder))
        first = next((row for file in files for row in records.read_lines(file)[:1]), {})
        if self.metric is not None and first:
            value(first, self.metric)
        return self.metric or chosen(study, identity) or first_metric(first)

    def _places(self, about: Record, study: Record, refused: Mapping[str, str]) -> dict[Path, Job]:
        """Every job by its folder: those that the study asks for, or else those that are there."""
        there = {path: named(path) for path in job_folders(self.folder)}
        if not study:
            return there
        methods = [canonical(method) for method in study.get("methods", ())]
        tasks = about.get("tasks") or dict.fromkeys(
            [*(study.get("targets") or ()), *(job.task for job in there.values())]
        )
        seeds = study.get("seeds", 1)
        every = range(seeds) if isinstance(seeds, int) else seeds
        jobs = [Job(*key) for key in product(methods, tasks, every) if key[0] not in refused]
        return {job.folder(self.folder): job for job in jobs}

    def _progress(self, job: Job, place: Path, metric: str, active: bool, begun: float) -> Progress:
        files = [place / name for name in (*records.FILES, "done.json")]
        key = [(file.stat().st_size, _time(file)) if file.exists() else None for file in files]
        if place in self.seen and self.seen[place][0] == (key, metric):
            found = self.seen[place][1]
        else:
            found = read_job(job, place, metric)
            self.seen[place] = ((key, metric), found)
        if found.state != "stopped":
            return found
        # Records that this run has touched are at work; others wait for it to come to them.
        running = active and (found.written or 0) > begun
        return replace(found, state="running") if running else found


def read_job(job: Job, place: Path, metric: str) -> Progress:
    """A job as its records have it; one that is neither done nor new is "stopped"."""
    if not place.is_dir():
        return Progress(job)
    source = records.read_lines(place / "source.jsonl")
    target = records.read_lines(place / "target.jsonl")
    last = last_record(place / "rounds.jsonl")
    rounds = int(last.get("round", -1)) + 1
    times = [t for name in records.FILES if (t := _time(place / name)) is not None]
    state: State = "stopped"
    mark: Record = {}
    if (place / "done.json").exists():
        state = "done" if records.is_done(place) else "damaged"
        mark = records.mark(place) if state == "done" else {}
    seconds, why = mark.get("seconds"), str(mark.get("diverged", ""))
    return Progress(
        job,
        "diverged" if why else state,
        rounds,
        curve([r for r in source if r.get("role") == "source"], metric),
        curve(target, metric),
        max(times, default=None),
        float(seconds) if isinstance(seconds, int | float) else None,
        why,
    )


def curve(rows: Sequence[Record], metric: str) -> Curve:
    """A metric by round, the mean over domains where it is defined."""
    found: dict[int, list[float]] = {}
    for row in rows:
        try:
            measured = value(row, metric)
        except UnseenError:
            continue
        if measured is not None:
            found.setdefault(int(row["round"]), []).append(measured)
    return {r: mean(values) for r, values in sorted(found.items())}


def last_record(path: Path) -> Record:
    """The last whole record of a file, without reading all of it; empty where there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return next(reversed(records.read_lines(path)), {}) if size > TAIL else {}


def read_about(file: Path) -> tuple[Record, list[str]]:
    """What `study.json` says, and what to note of it."""
    try:
        found = json.loads(file.read_bytes())
        if isinstance(found, dict):
            return found, []
    except FileNotFoundError:
        return {}, ["there is no study.json: how much is left is unknown"]
    except (OSError, ValueError):
        pass
    return {}, ["study.json is damaged: how much is left is unknown"]


def chosen(study: Record, identity: Record) -> str:
    """The metric that the study goes by."""
    metrics = [str(m) for m in identity.get("metrics") or ()]
    return str(study.get("metric") or (main_metric(None, metrics) if metrics else ""))


def first_metric(row: Record) -> str:
    """The metric that a record would be reported by."""
    names = [n for n, v in row.items() if isinstance(v, float) and "@" not in n]
    return main_metric(None, names) if names else "accuracy"


def canonical(expression: str) -> str:
    """A method as records call it."""
    try:
        return text(parse(expression))
    except UnseenError:
        return expression


def job_folders(folder: Path) -> Iterator[Path]:
    """Where records of jobs lie, whoever made them."""
    return (path for path in sorted((folder / "records").glob("*/*/seed-*")) if path.is_dir())


def named(place: Path) -> Job:
    """The job of a folder, from its first evaluation or else from its place."""
    method, task, seed = place.parts[-3:]
    for name in ("source.jsonl", "target.jsonl"):
        for row in records.read_lines(place / name)[:1]:
            method, task = str(row.get("method", method)), str(row.get("task", task))
    number = seed.removeprefix("seed-")
    return Job(method, task, int(number) if number.isdigit() else -1)


def at_work(folder: Path) -> bool:
    """Whether a run holds the folder's lock; it is looked at as a second reader would."""
    lock = folder / ".lock"
    try:
        import fcntl

        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except (ImportError, OSError):
        files = (path / "rounds.jsonl" for path in job_folders(folder))
        return any((_time(file) or 0) > time.time() - STILL for file in files)


def find(path: Path) -> Path:
    """The folder of a study's records, at the path or, if it is the only one, below it."""
    if not path.exists():
        raise UnseenError(
            f"there is no folder {path}. Name what --out of a study is: results/NAME without --out."
        )
    if not path.is_dir():
        raise UnseenError(f"{path} is a file; name the folder that a study writes to.")
    if (path / "study.json").exists() or (path / "records").is_dir():
        return path
    below = [file.parent for file in (*path.glob("*/study.json"), *path.glob("*/*/study.json"))]
    if len(below) == 1:
        return below[0]
    if below:
        newest = sorted(below, key=lambda folder: -(_time(folder / "study.json") or 0))
        names = ", ".join(map(str, newest[:8])) + (", ..." if len(newest) > 8 else "")
        raise UnseenError(f"{path} holds several studies; name one, newest first: {names}.")
    if not any(path.iterdir()):
        raise UnseenError(f"{path} is empty: no study has begun to write there.")
    raise UnseenError(
        f"{path} holds no study: neither study.json nor records/. Name what --out of a study is."
    )


def _time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _table(about: Record, key: str) -> Record:
    found = about.get(key)
    return found if isinstance(found, dict) else {}
