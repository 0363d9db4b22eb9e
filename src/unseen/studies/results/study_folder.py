"""A study's folder, read: what `study.json` says of it, its jobs, their states and records.

Note:
    Nothing is written, and no lock is taken: another process, or another machine that shares the
    disk, may read while the study runs.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from unseen.core import record_lines
from unseen.core.record_lines import Record
from unseen.errors import UnseenError
from unseen.studies.results import records, study_file
from unseen.studies.results.metric_name import main_metric
from unseen.studies.results.records import Job
from unseen.studies.results.selection import Records, names, value
from unseen.studies.results.statistics import mean
from unseen.studies.results.study_file import NAME, code
from unseen.studies.settings import user_code

State = Literal["done", "diverged", "stopped", "damaged", "waiting"]
#: round -> value.
Curve = Mapping[int, float]
#: Bytes at the end of a file in which its last record is sought first.
TAIL = 1 << 16


def _lines(name: str, doc: str) -> cached_property[list[Record]]:
    def lines(self: JobFolder) -> list[Record]:
        return record_lines.read_lines(self.folder / name)

    lines.__doc__ = doc
    return cached_property(lines)


@dataclass(frozen=True)
class JobFolder:
    """One job and its records; each file is read once, when it is first used.

    Attributes:
        job: The job.
        folder: Where its records are, or would be.
    """

    job: Job
    folder: Path

    @property
    def place(self) -> str:
        """The folder below `records`, METHOD/TASK/seed-N."""
        return "/".join(self.folder.parts[-3:])

    @cached_property
    def state(self) -> State:
        """Whether the job is done, diverged or damaged, has begun ("stopped") or not ("waiting").

        Note:
            A running job is "stopped" here: its records do not show whether a run is active.
        """
        if not (self.folder / "done.json").exists():
            return "stopped" if self.folder.is_dir() else "waiting"
        if not records.is_done(self.folder):
            return "damaged"
        return "diverged" if "diverged" in records.mark(self.folder) else "done"

    @property
    def finished(self) -> bool:
        """Whether the job ran to its end or diverged, and its records are as they were then."""
        return self.state in ("done", "diverged")

    @cached_property
    def mark(self) -> Record:
        """The mark of a finished job; empty for any other."""
        return records.mark(self.folder) if self.finished else {}

    source = _lines("source.jsonl", "Evaluations at the sources and at validation domains.")
    target = _lines("target.jsonl", "Evaluations at the targets.")
    rounds = _lines("rounds.jsonl", "Training exchanges.")
    cross = _lines(records.CROSS, "Evaluations of local models on every domain.")
    constant = _lines(records.CONSTANT, "What an answer without any input scores.")

    def stamp(self) -> object:
        """Return sizes and times of all files: equal stamps, equal records."""
        stats = ((file.name, file.stat()) for file in sorted(self.folder.glob("*.json*")))
        return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


@dataclass(frozen=True)
class StudyFolder:
    """What a folder of records says of its study.

    Attributes:
        path: The folder.
        about: The content of `study.json`; {} where it is missing or damaged.
        problem: "missing" or "damaged" where there is no `study.json` to read, else "".
    """

    path: Path
    about: Record = field(default_factory=dict)
    problem: Literal["", "missing", "damaged"] = ""

    @classmethod
    def open(cls, path: Path) -> Self:
        if about := study_file.read(path):
            return cls(path, about)
        return cls(path, problem="damaged" if (path / NAME).exists() else "missing")

    @property
    def identity(self) -> Record:
        return self._section("identity")

    @property
    def settings(self) -> Record:
        """The study's settings as last run; {} where the file does not say."""
        return self._section("study")

    @property
    def refused(self) -> dict[str, str]:
        """Methods that the data or the model cannot serve, with the reason."""
        return {str(k): str(v) for k, v in self._section("not_applicable").items()}

    @property
    def stand_in(self) -> bool:
        return self.about.get("stand_in") is True

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the data, and on code that has changed since."""
        return (*map(str, self.about.get("notes") or ()), *user_code.remarks(code(self.about)))

    @property
    def metric(self) -> str:
        """The study's metric; where the file does not say, that of its first record."""
        recorded = (name for name, x in self.first.items() if isinstance(x, float))
        metrics = self.identity.get("metrics") or list(recorded)
        return main_metric(self.settings.get("metric") or None, metrics or ["accuracy"])

    @property
    def first(self) -> Record:
        """The first evaluation of the first job that has one; {} where there is none."""
        rows = (first_record(folder / "source.jsonl") for folder in self._folders())
        return next(filter(None, rows), {})

    def job(self, job: Job) -> JobFolder:
        return JobFolder(job, job.folder(self.path))

    def jobs(self) -> Iterator[JobFolder]:
        """Yield every job that has a folder, whether or not the study asks for it."""
        for folder in self._folders():
            yield JobFolder(self._named(folder), folder)

    def _folders(self) -> Iterator[Path]:
        return (p for p in sorted((self.path / "records").glob("*/*/seed-*")) if p.is_dir())

    def _named(self, folder: Path) -> Job:
        """Return a folder's job by its first evaluation, else by the names of the folders."""
        slug, task, seed = folder.parts[-3:]
        number = seed.removeprefix("seed-")
        slugs = {Job(m, "", 0).folder(Path()).parts[1]: m for m in self.settings.get("methods", ())}
        row: Record = {"method": slugs.get(slug, slug), "task": task}
        row["seed"] = int(number) if number.isdigit() else -1
        for name in ("source.jsonl", "target.jsonl"):
            row |= first_record(folder / name)
        return Job(str(row["method"]), str(row["task"]), int(str(row["seed"])))

    def _section(self, key: str) -> Record:
        section: Any = self.about.get(key)
        return section if isinstance(section, dict) else {}


def curve(rows: Records, metric: str, domain: str | None = None) -> dict[int, float]:
    """Return a metric by round.

    Args:
        rows: Evaluations.
        metric: The metric's name.
        domain: Where; None: the mean over the domains where it is defined.

    Example:
        >>> rows = [{"round": 0, "domain": d, "accuracy": a} for d, a in (("a", 0.5), ("b", 1.0))]
        >>> curve(rows, "accuracy"), curve(rows, "accuracy", "b")
        ({0: 0.75}, {0: 1.0})
    """
    values: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if (domain is None or row["domain"] == domain) and metric in names(row):
            level = value(row, metric)
            if isinstance(level, int | float):
                values[int(row["round"])].append(float(level))
    return {r: xs[0] if len(xs) == 1 else mean(xs) for r, xs in sorted(values.items())}


def first_record(path: Path) -> Record:
    """Return a file's first record; {} where there is none."""
    with suppress(OSError), path.open("rb") as file:
        return record_lines.parsed(file.readline()) or {}
    return {}


def last_record(path: Path) -> Record:
    """Return a file's last whole record, without reading all of it; {} where there is none."""
    with suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        lines = reversed(file.read().split(b"\n")[:-1])
        whole = (record for record in map(record_lines.parsed, lines) if record is not None)
        if (last := next(whole, None)) is not None:
            return last
        return next(reversed(record_lines.read_lines(path)), {}) if size > TAIL else {}
    return {}


def find(path: Path) -> Path:
    """Return the folder of a study: the path or, if it is the only one, a folder below it."""
    if not path.exists():
        remedy = "Name the study's --out: results/NAME without --out."
        raise UnseenError(f"there is no folder {path}.", remedy=remedy)
    if not path.is_dir():
        raise UnseenError(f"{path} is a file.", remedy="Name the folder that a study writes to.")
    if (path / NAME).exists() or (path / "records").is_dir():
        return path
    below = [file.parent for file in (*path.glob(f"*/{NAME}"), *path.glob(f"*/*/{NAME}"))]
    if len(below) == 1:
        return below[0]
    if below:
        below.sort(key=lambda folder: -(modified(folder / NAME) or 0))
        newest = ", ".join([*map(str, below[:8]), *["..."] * (len(below) > 8)])
        remedy = f"Name one, newest first: {newest}."
        raise UnseenError(f"{path} holds several studies.", remedy=remedy)
    if not any(path.iterdir()):
        raise UnseenError(f"{path} is empty: no study has begun to write there.")
    what = f"{path} holds no study: neither {NAME} nor records/."
    raise UnseenError(what, remedy="Name the study's --out.")


def modified(path: Path) -> float | None:
    """Return when a file was last written, in seconds since the epoch; None where it is missing."""
    with suppress(OSError):
        return path.stat().st_mtime
    return None
