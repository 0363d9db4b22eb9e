"""How a run over sites stands: what the app wrote last, for those who watch it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.sites.control import control
from unseen.sites.kits.kit import Kit
from unseen.sites.process import say

#: Written by the app: who is connected, which round and exchange, the last error; what the sites
#: told at the start; every message of a job. And the coordinator's signature under the study.
STANDING, TERMS, MESSAGES = "federation.json", "terms.json", "messages.jsonl"
SIGNATURE = "signature.json"
#: Where the records of `train` and of `choose` lie in the folder that was named.
INSIDE = ("training", "records")
#: What is said of a run for each piece of news.
PROGRESS = {
    "seed": "{method} on {task}, seed {seed}", "round": "round {from_one} of {rounds}",
    "exchange": "{exchange}", "error": "error: {error}",
}  # fmt: skip


def status(kit: Kit, out: Path | None) -> None:
    """Tell who is connected, and how the run stands by the folder of its records, if any."""
    try:
        with control(kit) as link:
            for node in sorted(link.nodes(), key=lambda n: n.name):
                say(f"{node.name or node.node_id}: {node.status}")
            busy = link.running()
            say(f"run {busy[0]}: {link.run(busy[0]).state}" if busy else "no run")
    except UnseenError as error:
        if out is None:
            raise
        say(str(error))  # what the run wrote last is there without it
    if out is None:
        return
    if not (news := standing(out)):
        say(f"{out / STANDING}: not written yet")
        return
    waiting, connected = news.get("waiting"), ", ".join(map(str, news.get("connected", ())))
    say(f"study {news.get('name', '?')}: {'finished' if news.get('finished') else 'not finished'}")
    sites = connected and f"last seen by the run: {connected}"
    waits = waiting and f"waiting {waiting}"
    for line in filter(None, (progress(news), waits, sites, *remarks(news))):
        say(line)


def standing(out: Path) -> Mapping[str, Any]:
    """Return what the app wrote last; empty before, or in the middle of a write."""
    return content_of(records_in(out, STANDING) / STANDING)


def content_of(path: Path) -> dict[str, Any]:
    """Return what a file says; nothing where it is missing, or in the middle of a write."""
    with suppress(OSError, ValueError):
        return dict(json.loads(path.read_bytes()))
    return {}


def whole_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of a file, without those that were cut short when the server was killed."""
    for text in path.read_text("utf-8").splitlines() if path.is_file() else ():
        with suppress(ValueError):
            yield json.loads(text)


def records_in(out: Path, file: str) -> Path:
    """Return the folder of a run's records: the one that was named, or one inside that has a file.

    `out` is what --out of `run`, `train` or `choose` was.
    """
    places = (out, *(out / name for name in INSIDE))
    return next((place for place in places if (place / file).is_file()), out)


def remarks(news: Mapping[str, Any]) -> list[str]:
    """Return what deserves a remark: of the data, and whom run and last exchange go without."""
    without, absent = news.get("without"), news.get("absent")
    return [
        *(f"of the data: {note}" for note in news.get("remarks", ())),
        *([f"does not take part: {without}"] if without else ()),
        *([f"goes on without {absent}"] if absent else ()),
    ]


def progress(news: Mapping[str, Any]) -> str:
    """Return one line about it."""
    values = {key: value for key, value in {"rounds": "?", **news}.items() if value != ""}
    values["from_one"] = int(values.get("round", 0)) + 1
    return "; ".join(text.format_map(values) for key, text in PROGRESS.items() if key in values)
