"""`study.json`: what a folder's records belong to; written in one way by whoever runs a study."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.errors import UnseenError
from unseen.study import records, sources
from unseen.study.records import Job

if TYPE_CHECKING:
    from unseen.study.plan import Plan

NAME = "study.json"


def write(planned: Plan, **more: Any) -> None:
    """Write what the study is, with `more` of who runs it."""
    folder = planned.setting.out
    about = {
        "identity": planned.identity,
        "study": planned.setting.study.model_dump(mode="json"),
        "not_applicable": planned.not_applicable,
        "tasks": [task.name for task in planned.tasks],
        **more,
    }
    about |= {"stand_in": True} if planned.stand_in else {}
    about |= {"notes": list(planned.data.notes)} if planned.data.notes else {}
    # Records of methods that are not asked for this time stay, and so does what made them.
    parts = {**code(read(folder)), **planned.code}
    about |= {"code": parts} if parts else {}
    records.write_atomically(folder / NAME, json.dumps(about, indent=1).encode())


def read(folder: Path) -> dict[str, Any]:
    """What a folder's file says; nothing where it is not there or damaged."""
    try:
        found = json.loads((folder / NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check_code(planned: Plan) -> None:
    """Refuse to show records of other code than today's as what today's code does."""
    folder = planned.setting.out
    parts: dict[str, None] = {}
    stale: dict[str, None] = {}
    for where, names in sources.changed(code(read(folder)), planned.code).items():
        # What a model or a data set makes is in every record of the folder.
        method = where if where in planned.methods else None
        place = _place(folder, method)
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
