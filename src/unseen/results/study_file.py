"""`study.json`: what a folder's records belong to; written in one way by whoever runs a study."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen.core.atomic import write_atomically
from unseen.errors import UnseenError
from unseen.results.records import Job
from unseen.spec import user_code

NAME = "study.json"


@dataclass(frozen=True)
class Content:
    """What a folder's study file says.

    identity: all that decides what a job computes; study: its settings; tasks: their names; code:
    digests of the user's own parts. not_applicable, stand_in: as `Plan` has them; notes: remarks on
    the data.
    """

    identity: Mapping[str, Any]
    study: Mapping[str, Any]
    tasks: Sequence[str]
    not_applicable: Mapping[str, str]
    stand_in: bool
    notes: Sequence[str]
    code: user_code.Code


def write(folder: Path, content: Content, **more: Any) -> None:
    """Write what the study is, with `more` of who runs it."""
    about = {
        "identity": content.identity,
        "study": content.study,
        "not_applicable": content.not_applicable,
        "tasks": list(content.tasks),
        **more,
    }
    about |= {"stand_in": True} if content.stand_in else {}
    about |= {"notes": list(content.notes)} if content.notes else {}
    # Records of methods that are not asked for this time stay, and so does what made them.
    parts = {**code(read(folder)), **content.code}
    about |= {"code": parts} if parts else {}
    write_atomically(folder / NAME, json.dumps(about, indent=1).encode())


def read(folder: Path) -> dict[str, Any]:
    """What a folder's file says; nothing where it is not there or damaged."""
    try:
        found = json.loads((folder / NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check_code(folder: Path, now: user_code.Code, methods: Collection[str]) -> None:
    """Refuse to show records of other code than today's as what today's code does.

    methods: those of the study, whose records lie apart; every other part is in all records.
    """
    parts: dict[str, None] = {}
    stale: dict[str, None] = {}
    for where, names in user_code.changed(code(read(folder)), now).items():
        place = _place(folder, where if where in methods else None)
        if any(place.rglob("*.jsonl")):
            parts |= dict.fromkeys(names)
            stale[str(place)] = None
    if parts:
        raise UnseenError(
            f"the code of {', '.join(parts)} has changed since these records were written: take "
            f"another --out, or remove the records ({', '.join(stale)})."
        )


def begun(folder: Path) -> bool:
    """Whether a job in the folder is finished, so that its settings are the folder's."""
    return any((folder / "records").glob("*/*/seed-*/done.json"))


def clear(folder: Path) -> None:
    """Take records of other settings, of which no job is finished, out of the way.

    Those with rounds to go on from move into a folder of their own, where the same study goes on.
    """
    old = folder / "records"
    if not any(old.rglob("checkpoint.pt")):
        shutil.rmtree(old, ignore_errors=True)
        return
    aside = next(place for place in _unused(folder) if not place.exists())
    aside.mkdir()
    old.rename(aside / "records")
    (folder / NAME).rename(aside / NAME)
    warnings.warn(
        f"{folder} held an unfinished run of other settings, which is now in {aside}: with them, "
        f"--out {aside} goes on from there.",
        stacklevel=2,
    )


def _unused(folder: Path) -> Iterator[Path]:
    return (folder / f"unfinished-{i}" for i in range(1, 10**6))


def _place(folder: Path, method: str | None) -> Path:
    """Where a method's records lie, or all of them."""
    return folder / "records" if method is None else Job(method, "", 0).folder(folder).parents[1]


def code(about: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The digests of the user's own parts, by where they stand; none where a file has none."""
    found = about.get("code")
    return found if isinstance(found, dict) else {}
