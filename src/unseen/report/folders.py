"""Folders of records, read as they are: what is finished, and what is left out and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unseen.results import records
from unseen.results.records import Job, Record
from unseen.results.study_file import code
from unseen.spec import user_code

#: What identifies a job in the lines of its records.
KEYS = ("method", "task", "seed")


@dataclass(frozen=True)
class Omission:
    """Something that is not on the page."""

    place: str
    reason: str


@dataclass(frozen=True)
class Raw:
    """The records of one finished job."""

    job: Job
    folder: Path
    source: list[Record]
    target: list[Record]
    rounds: list[Record]
    cross: list[Record]
    mark: Record
    constant: list[Record] = field(default_factory=list)


@dataclass(frozen=True)
class Folder:
    """One DIR. identity: what decides what its jobs compute; settings: the study as last run, empty
    where the folder does not say. stand_in: whether the data are a synthetic stand-in; notes: what
    there is to say of them."""

    path: Path
    identity: Mapping[str, Any]
    settings: Mapping[str, Any]
    runs: tuple[Raw, ...]
    left: tuple[Omission, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    stand_in: bool = False
    notes: tuple[str, ...] = ()


def read_folder(path: Path) -> Folder | Omission:
    """A folder's finished jobs, or why there is nothing to show."""
    if not path.is_dir():
        return Omission(str(path), "is not a folder")
    try:
        found = json.loads((path / "study.json").read_bytes())
        identity = dict(found["identity"])
        assert isinstance(identity["settings"], dict)
    except FileNotFoundError:
        return Omission(str(path), "has no study.json, so its protocol is unknown")
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        return Omission(str(path), "its study.json is damaged, so its protocol is unknown")
    runs, left = [], []
    settings, refused = found.get("study"), found.get("not_applicable")
    settings = settings if isinstance(settings, dict) else {}
    for folder in sorted((path / "records").glob("*/*/seed-*")):
        read = read_job(folder, settings)
        if isinstance(read, Raw):
            runs.append(read)
        else:
            left.append(Omission(str(folder.relative_to(path.parent)), read))
    return Folder(
        path,
        identity,
        settings,
        tuple(runs),
        tuple(left),
        refused if isinstance(refused, dict) else {},
        found.get("stand_in") is True,
        (*map(str, found.get("notes") or ()), *user_code.remarks(code(found))),
    )


def read_job(folder: Path, settings: Mapping[str, Any]) -> Raw | str:
    """A finished job's records, or why it is left out."""
    rounds = records.read_lines(folder / "rounds.jsonl")
    if not (folder / "done.json").exists():
        return f"unfinished: {len({r.get('round') for r in rounds})} rounds are recorded"
    if not records.is_done(folder):
        return "damaged: its records are not those of the day it was finished"
    source = records.read_lines(folder / "source.jsonl")
    target = records.read_lines(folder / "target.jsonl")
    mark = records.mark(folder)
    named = {tuple(r.get(key) for key in KEYS) for r in (*source, *target)}
    if "diverged" in mark and not named:
        named = {_from_path(folder, settings)}
    elif "diverged" not in mark and not (source and (target or settings.get("holdout") == "none")):
        return "it holds no evaluations"
    if len(named) != 1 or None in (key := next(iter(named))):
        return "its records are those of several jobs"
    job = Job(str(key[0]), str(key[1]), int(str(key[2])))
    cross = records.read_lines(folder / records.CROSS)
    constant = records.read_lines(folder / records.CONSTANT)
    return Raw(job, folder, source, target, rounds, cross, mark, constant)


def _from_path(folder: Path, settings: Mapping[str, Any]) -> tuple[str, str, int]:
    """The job of a folder without any line that names it: by the method that would lie there."""
    slug, task, seed = folder.parts[-3:]
    places = {Job(m, "", 0).folder(Path()).parts[1]: m for m in settings.get("methods", ())}
    return places.get(slug, slug), task, int(seed.removeprefix("seed-"))
