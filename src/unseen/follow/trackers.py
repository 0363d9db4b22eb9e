"""From records to trackers: what they lack is written, what they have is left."""

from __future__ import annotations

import hashlib
import json
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from unseen.errors import UnseenError, nearest
from unseen.follow.reader import Points, points
from unseen.follow.state import job_folders, named
from unseen.results import records
from unseen.results.records import Job

#: Seconds between two looks at a study at work, and those that a slow tracker has at its end.
EVERY, PATIENCE = 3.0, 60.0


class Tracker(Protocol):
    """Where points go. Jobs go by their place below `records`, METHOD/TASK/seed-N."""

    def name(self, tag: str) -> str:
        """A tag in the letters that the tracker allows."""
        ...

    def complete(self, place: str) -> str:
        """The digest of the records with which a job was done; "" where it is not."""
        ...

    def known(self, place: str, job: Job) -> Points:
        """What it holds of a job already."""
        ...

    def forget(self, place: str) -> None:
        """Remove all of a job."""
        ...

    def write(self, place: str, new: Points) -> None:
        """Add points, in the order of rounds."""
        ...

    def done(self, place: str, mark: Mapping[str, Any], digest: str) -> None:
        """The job is finished, or has diverged."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


def tensorboard(folder: Path, about: Mapping[str, Any]) -> Tracker:
    """Event files below the study's folder."""
    from unseen.follow.tensorboard_tracker import TensorBoard

    return TensorBoard(folder / "tensorboard")


def mlflow(folder: Path, about: Mapping[str, Any]) -> Tracker:
    """Runs in MLflow's store."""
    from unseen.follow.mlflow_tracker import MLflow

    return MLflow.of(folder, about)


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any]], Tracker]] = {
    "tensorboard": tensorboard,
    "mlflow": mlflow,
}
#: What each needs; SQLAlchemy and Alembic are for MLflow's SQLite store.
PACKAGES = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}


def check(names: Sequence[str]) -> None:
    """Refuse an unknown tracker, and one whose package is not there."""
    for name in names:
        if name not in TRACKERS:
            raise nearest("tracker", name, TRACKERS)
        for package in PACKAGES[name]:
            if find_spec(package) is None:
                raise UnseenError(f"{name} needs {package}: pip install 'unseen[{name}]'.")


@dataclass
class Feed:
    """One tracker and what it has been told. told: by place; ended: places that are finished."""

    tracker: Tracker
    told: dict[str, Points] = field(default_factory=dict)
    seen: dict[str, object] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    points: int = 0
    jobs: set[str] = field(default_factory=set)

    def sync(self, folder: Path) -> None:
        """Tell the tracker what it lacks of every job."""
        for path in job_folders(folder):
            place = "/".join(path.parts[-3:])
            if place not in self.ended:
                self._job(path, place)

    def _job(self, path: Path, place: str) -> None:
        state = [(f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(path.glob("*.json*"))]
        if self.seen.get(place) == state:
            return
        finished = records.is_done(path)  # before the records are read: they grow no more then
        mark = records.mark(path) if finished else {}
        digest = hashlib.sha256(json.dumps(mark.get("records")).encode()).hexdigest()
        if finished and self.tracker.complete(place) == digest:
            self.ended.add(place)
            return
        found = {(self.tracker.name(t), r): value for (t, r), value in points(path).items()}
        told = self.told.get(place)
        if told is None:
            told = self.tracker.known(place, named(path))
        if any(key in told and not same(told[key], value) for key, value in found.items()):
            self.tracker.forget(place)  # another run of the same job
            told = self.tracker.known(place, named(path))
        new = {key: found[key] for key in sorted(found, key=order) if key not in told}
        if new:
            self.tracker.write(place, new)
            self.points += len(new)
            self.jobs.add(place)
        self.told[place], self.seen[place] = told | new, state
        if finished:
            self.tracker.done(place, mark, digest)
            self.ended.add(place)
            del self.told[place], self.seen[place]


def order(key: tuple[str, int]) -> tuple[int, str]:
    """By round, then by name."""
    return key[1], key[0]


def same(a: float, b: float) -> bool:
    """Equal as far as single precision tells, which is what TensorBoard keeps."""
    return a == b or abs(a - b) <= 1e-6 * max(abs(a), abs(b))


def listed(text: str) -> tuple[str, ...]:
    """Names of trackers with commas between them, checked.

    >>> listed("tensorboard,"), listed("")
    (('tensorboard',), ())
    """
    names = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    check(names)
    return names


def track(folder: Path, names: Sequence[str]) -> list[str]:
    """Give all that a folder's jobs have recorded to trackers that have it not yet; what became
    of it."""
    check(names)
    lines = []
    with alone(folder):
        about = read_about(folder)
        for name in names:
            feed = Feed(TRACKERS[name](folder, about))
            try:
                feed.sync(folder)
            finally:
                feed.tracker.close()
            lines.append(f"{name}: {feed.points} new points of {len(feed.jobs)} jobs")
    return lines


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One that tracks at a time, lest both write the same."""
    try:
        with FileLock(folder / ".track", timeout=1):
            yield
    except Timeout:
        raise UnseenError(f"{folder} is being tracked already, by the study at work.") from None


@contextmanager
def following(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """While a study runs, give its trackers what it records, from a thread of its own.

    Whatever a tracker does, the study goes on: a failure is a warning, once per tracker.
    """
    if not names:
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_follow, args=(folder, names, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)
        if thread.is_alive():
            warnings.warn(
                f"trackers have not taken everything within {PATIENCE:.0f} s; `unseen track "
                f"{folder} --to {','.join(names)}` gives them the rest.",
                stacklevel=2,
            )


def _follow(folder: Path, names: Sequence[str], stop: threading.Event) -> None:
    if hasattr(signal, "pthread_sigmask"):  # Ctrl-C is for the study
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with alone(folder):
            _loop(folder, names, stop)
    except Exception as error:
        _warn("tracking", error)


def _loop(folder: Path, names: Sequence[str], stop: threading.Event) -> None:
    about = read_about(folder)
    feeds: dict[str, Feed] = {}
    for name in names:
        with _harmless(name, feeds):
            feeds[name] = Feed(TRACKERS[name](folder, about))
    last = False
    while feeds:
        for name in list(feeds):
            with _harmless(name, feeds):
                feeds[name].sync(folder)
        if last:
            break
        last = stop.wait(EVERY)  # once more after the end
    for name, feed in list(feeds.items()):
        with _harmless(name, feeds):
            feed.tracker.close()


@contextmanager
def _harmless(name: str, feeds: dict[str, Feed]) -> Iterator[None]:
    """Drop a tracker that fails."""
    try:
        yield
    except Exception as error:
        feeds.pop(name, None)
        _warn(name, error)


def _warn(name: str, error: Exception) -> None:
    told = " ".join(str(error).split()) or type(error).__name__
    warnings.warn(
        f"{name} failed and is left out, the study goes on: {type(error).__name__}: {told[:300]}",
        stacklevel=2,
    )


def read_about(folder: Path) -> Mapping[str, Any]:
    """What `study.json` says; nothing where it cannot be read."""
    try:
        found = json.loads((folder / "study.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
