"""Folders of records as a page shows them: what is finished, and what is left out and why."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from unseen.results.study_folder import JobFolder, StudyFolder

#: What identifies a job in the lines of its records.
KEYS = ("method", "task", "seed")


@dataclass(frozen=True)
class Omission:
    """Something that is not on the page.

    Attributes:
        place: Where it is.
        reason: Why it is left out.
    """

    place: str
    reason: str


class Folder(StudyFolder):
    """A folder of which at least the protocol is known."""

    @cached_property
    def _checked(self) -> list[tuple[JobFolder, str]]:
        return [(job, unusable(job, self.settings.get("holdout") != "none")) for job in self.jobs()]

    @property
    def runs(self) -> tuple[JobFolder, ...]:
        """The finished jobs."""
        return tuple(job for job, reason in self._checked if not reason)

    @property
    def left(self) -> tuple[Omission, ...]:
        """The jobs that are left out."""
        return tuple(
            Omission(str(job.folder.relative_to(self.path.parent)), reason)
            for job, reason in self._checked
            if reason
        )


def read_folder(path: Path) -> Folder | Omission:
    """Return a folder, or why there is nothing to show of it."""
    if not path.is_dir():
        return Omission(str(path), "is not a folder")
    folder = Folder.open(path)
    if folder.problem == "missing":
        return Omission(str(path), "has no study.json, so its protocol is unknown")
    if not isinstance(folder.identity.get("settings"), dict):
        return Omission(str(path), "its study.json is damaged, so its protocol is unknown")
    return folder


def unusable(job: JobFolder, targets: bool) -> str:
    """Return why a job is left out; "" for one to show.

    Args:
        job: The job's folder.
        targets: Whether its study has targets.
    """
    if not (job.folder / "done.json").exists():
        return f"unfinished: {len({r.get('round') for r in job.rounds})} rounds are recorded"
    if job.state == "damaged":
        return "damaged: its records are not those of the day it was finished"
    jobs = {tuple(row.get(key) for key in KEYS) for row in (*job.source, *job.target)}
    if job.state == "diverged" and not jobs:
        return ""
    if job.state == "done" and not (job.source and (job.target or not targets)):
        return "it holds no evaluations"
    if len(jobs) != 1 or None in next(iter(jobs)):
        return "its records are those of several jobs"
    return ""
