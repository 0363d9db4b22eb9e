"""`study.json`: what a folder's records belong to; written in one way by whoever runs a study."""

import json
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from unseen.core.atomic import write_atomically
from unseen.errors import UnseenError
from unseen.studies.results.records import Job
from unseen.studies.settings import user_code

NAME = "study.json"


@dataclass(frozen=True)
class Content:
    """What a folder's study file says.

    Attributes:
        identity: All that decides what a job computes.
        study: The study's settings.
        tasks: Names of the tasks.
        not_applicable: Method -> why it cannot run.
        stand_in: Whether the data are a synthetic stand-in.
        notes: Remarks on the data.
        code: Digests of the user's own parts.
    """

    identity: Mapping[str, Any]
    study: Mapping[str, Any]
    tasks: Sequence[str]
    not_applicable: Mapping[str, str]
    stand_in: bool
    notes: Sequence[str]
    code: user_code.Code


def write(folder: Path, content: Content, **more: Any) -> None:
    """Write what the study is.

    Args:
        folder: The study's folder.
        content: What to write.
        more: Further entries, of who runs the study.
    """
    about: dict[str, Any] = {"identity": content.identity, "study": content.study}
    about |= {"not_applicable": content.not_applicable, "tasks": list(content.tasks), **more}
    # Records of methods that are not asked for this time stay, and so does what made them.
    parts = {**code(read(folder)), **content.code}
    extras = {"stand_in": content.stand_in, "notes": list(content.notes), "code": parts}
    about |= {key: value for key, value in extras.items() if value}
    write_atomically(folder / NAME, json.dumps(about, indent=1).encode())


def read(folder: Path) -> dict[str, Any]:
    """Return what a folder's file says; {} where it is missing or damaged."""
    with suppress(OSError, ValueError):
        if isinstance(about := json.loads((folder / NAME).read_bytes()), dict):
            return about
    return {}


def check_code(folder: Path, now: user_code.Code, methods: Collection[str]) -> None:
    """Refuse to show records of other code than today's as what today's code does.

    Args:
        folder: The study's folder.
        now: Digests of the user's own parts as they are.
        methods: The study's methods, each with its own records; other parts are in all records.
    """
    parts: dict[str, None] = {}
    stale: dict[str, None] = {}
    for where, names in user_code.changed(code(read(folder)), now).items():
        place = folder / "records"
        if where in methods:
            place = Job(where, "", 0).folder(folder).parents[1]
        if any(place.rglob("*.jsonl")):
            parts |= dict.fromkeys(names)
            stale[str(place)] = None
    if parts:
        raise UnseenError(
            f"the code of {', '.join(parts)} has changed since these records were written.",
            remedy=f"Take another --out, or remove the records ({', '.join(stale)}).",
        )


def has_results(folder: Path) -> bool:
    """Return whether a job in the folder is finished, so that its settings are the folder's."""
    return any((folder / "records").glob("*/*/seed-*/done.json"))


def clear(folder: Path) -> None:
    """Remove records of other settings, of which no job is finished.

    Those with a checkpoint move into a folder of their own, where the same study can resume.
    """
    old = folder / "records"
    if not any(old.rglob("checkpoint.pt")):
        shutil.rmtree(old, ignore_errors=True)
        return
    places = (folder / f"unfinished-{i}" for i in count(1))
    aside = next(place for place in places if not place.exists())
    aside.mkdir()
    old.rename(aside / "records")
    (folder / NAME).rename(aside / NAME)
    warnings.warn(
        f"{folder} held an unfinished run of other settings, which is now in {aside}: with them, "
        f"--out {aside} resumes it.",
        stacklevel=2,
    )


def code(about: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the digests of the user's own parts, by where they are used; {} for none."""
    digests = about.get("code")
    return digests if isinstance(digests, dict) else {}


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting by its dotted name."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
