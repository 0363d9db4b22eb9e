"""From records to trackers: only points that a tracker lacks are written."""

import hashlib
import json
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import isclose
from pathlib import Path

from filelock import FileLock, Timeout

from unseen.errors import UnseenError, absent, nearest
from unseen.follow.boards import MLflow, Points, TensorBoard, points
from unseen.results.study_folder import JobFolder, StudyFolder

#: Seconds between two reads of a running study, and those that a slow tracker gets at its end.
EVERY, PATIENCE = 3.0, 60.0


#: Where points go. A job is named by its place below `records`, METHOD/TASK/seed-N.
Tracker = TensorBoard | MLflow
TRACKERS: dict[str, Callable[[StudyFolder], Tracker]] = {
    "tensorboard": TensorBoard.of, "mlflow": MLflow.of,
}  # fmt: skip
#: What each needs; SQLAlchemy and Alembic are for MLflow's SQLite store.
PACKAGES = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}


def check(names: Sequence[str]) -> None:
    """Refuse an unknown tracker, and one whose package is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise nearest("tracker", name, TRACKERS)
        for package in PACKAGES[name]:
            if find_spec(package) is None:
                instead = "leave it out and follow the run by unseen watch"
                raise absent(package, f"track = {name!r} needs", name, instead)


@dataclass
class Feed:
    """One tracker and what it holds.

    Attributes:
        tracker: The tracker.
        points: Its points, by place.
        stamps: The stamp of the files that these points are from, by place.
        new: How many points were new to it, by place.
    """

    tracker: Tracker
    points: dict[str, Points] = field(default_factory=dict)
    stamps: dict[str, object] = field(default_factory=dict)
    new: Counter[str] = field(default_factory=Counter)

    def sync(self, study: StudyFolder) -> None:
        for job in study.jobs():
            stamp = job.stamp()
            if self.stamps.get(job.place) != stamp:
                self._write(job)
                self.stamps[job.place] = stamp

    def _write(self, job: JobFolder) -> None:
        place, tracker = job.place, self.tracker
        mark = job.mark  # read before the records: those of a finished job grow no more
        digest = hashlib.sha256(json.dumps(mark.get("records")).encode()).hexdigest()
        if job.finished and tracker.complete(place) == digest:
            return
        current = {(tracker.name(tag), r): value for (tag, r), value in points(job).items()}
        past = self.points[place] if place in self.points else tracker.history(place, job.job)
        # In single precision, which is what TensorBoard keeps.
        if any(not isclose(past[k], current[k], rel_tol=1e-6) for k in past.keys() & current):
            tracker.forget(place)  # these points are of another run of the job
            past = tracker.history(place, job.job)
        # By round, then by name.
        new = {k: current[k] for k in sorted(current.keys() - past, key=lambda k: (k[1], k[0]))}
        if new:
            tracker.write(place, new)
            self.new[place] += len(new)
        self.points[place] = past | new
        if job.finished:
            tracker.finish(place, mark, digest)
            del self.points[place]


def listed(text: str) -> tuple[str, ...]:
    """Return names of trackers with commas between them, checked.

    Example:
        >>> listed("tensorboard,"), listed("")
        (('tensorboard',), ())
    """
    names = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    check(names)
    return names


def track(folder: Path, names: Sequence[str]) -> list[str]:
    """Give trackers what they lack of a folder's jobs; return a line on each.

    Args:
        folder: The study's folder.
        names: Names in `TRACKERS`.

    Raises:
        UnseenError: A tracker is unknown or not installed, or the folder is being tracked.
    """
    check(names)
    lines = []
    with alone(folder):
        study = StudyFolder.open(folder)
        for name in names:
            feed = Feed(TRACKERS[name](study))
            try:
                feed.sync(study)
            finally:
                feed.tracker.close()
            lines.append(f"{name}: {feed.new.total()} new points of {len(feed.new)} jobs")
    return lines


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process track at a time, so that no two write the same points."""
    try:
        with FileLock(folder / ".track", timeout=1):
            yield
    except Timeout:
        raise UnseenError(f"{folder} is already being tracked, by the running study.") from None


@contextmanager
def following(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Give trackers what a running study records, from a thread; a failure is a warning.

    Args:
        folder: The study's folder.
        names: Names in `TRACKERS`.
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
            rest = f"`unseen track {folder} --to {','.join(names)}` gives trackers the rest."
            warnings.warn(f"not all was taken within {PATIENCE:.0f} s; {rest}", stacklevel=2)


def _follow(folder: Path, names: Sequence[str], stop: threading.Event) -> None:
    if hasattr(signal, "pthread_sigmask"):  # Ctrl-C is for the study
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    feeds: dict[str, Feed] = {}
    with _harmless("tracking", feeds), alone(folder):
        study, last = StudyFolder.open(folder), False
        for name in names:
            with _harmless(name, feeds):
                feeds[name] = Feed(TRACKERS[name](study))
        while feeds:
            for name, feed in list(feeds.items()):
                with _harmless(name, feeds):
                    feed.sync(study)
                    if last:
                        feed.tracker.close()
            if last:
                break
            last = stop.wait(EVERY)  # once more after the end


@contextmanager
def _harmless(name: str, feeds: dict[str, Feed]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        feeds.pop(name, None)
        kind = type(error).__name__
        reason = f"{kind}: {(' '.join(str(error).split()) or kind)[:300]}"
        what = f"{name} failed and is left out, the study goes on: {reason}"
        warnings.warn(what, stacklevel=2)
