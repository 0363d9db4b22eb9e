"""Whether a site's ledger is whole, and whether the server's says the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.federation.policy.site_ledger import Line, entry_of
from unseen.federation.standing import records_in
from unseen.results.records import AFTER, LEDGER, Job, read_lines

#: Of the records: what the sites told at the start, and every message of a job.
TERMS, MESSAGES = "terms.json", "messages.jsonl"


def against(lines: Sequence[Line], site: str, out: Path) -> tuple[list[str], list[str]]:
    """Compare a site's ledger with the records of a run.

    Args:
        lines: The site's.
        site: The site's name.
        out: Folder of the records with the server's ledgers, or what holds it: a model, a choice.

    Returns:
        What the two say differently, and what left the site without being in the server's ledger:
        answers that came late or were not used.
    """
    out = records_in(out, TERMS)
    run = _run(out)
    by_entry = {entry_of(line) for line in lines}
    differences = [
        f"{where}: the server has an answer {entry[:20]}… that is not in this ledger"
        for where, entry in _entries(out, site)
        if entry not in by_entry
    ]
    extra = []
    for name, job_lines in _jobs(lines, run).items():
        here = _counted(job_lines)
        there = _server(_folder(name, out), site)
        where = "/".join(name.split("/")[1:])
        differences += [
            f"{where}: the server's ledger has {_words(item)}, this one has not"
            for item in (there - here).elements()
        ]
        extra += [f"{where}: {_words(item)}" for item in (here - there).elements()]
    jobs = {_folder(name, out) for name in _jobs(lines, run)}
    for folder in sorted(path.parent for path in out.rglob(LEDGER)):
        if folder not in jobs and _server(folder, site):
            differences.append(f"{folder}: the server has a job that is not in this ledger")
    return differences, extra


def _run(out: Path) -> str:
    try:
        return str(json.loads((out / TERMS).read_bytes())["run"])
    except (OSError, ValueError, KeyError):
        remedy = "Name by --server what --out of `unseen federation run`, `train` or `choose` was."
        raise UnseenError(f"{out} holds no records of a federation.", remedy=remedy) from None


def _entries(out: Path, site: str) -> Iterator[tuple[str, str]]:
    """Yield what the server noted of the answers' lines in the site's ledger."""
    for path in sorted(out.rglob(MESSAGES)):
        for line in _read(path):
            if line.get("site") == site and line.get("entry"):
                where = f"{line['kind']} {line.get('exchange', '')}".strip()
                yield where, str(line["entry"])


def _read(path: Path) -> list[Any]:
    lines = []
    for text in path.read_text("utf-8").splitlines() if path.is_file() else ():
        with suppress(ValueError):  # a line that was cut short when the server was killed
            lines.append(json.loads(text))
    return lines


def _jobs(lines: Sequence[Line], run: str) -> dict[str, list[Line]]:
    """The lines of each job of a run, without refusals; one that left twice is there once."""
    jobs: dict[str, dict[str, Line]] = {}
    for line in lines:
        if str(line.get("job", "")).partition("/")[0] == run and "rule" not in line:
            jobs.setdefault(line["job"], {})[line["answer"]] = line
    return {name: list(unique.values()) for name, unique in jobs.items()}


def _folder(name: str, out: Path) -> Path:
    _, rest = name.split("/", 1)
    place, _, job = rest.rpartition("//")  # a trial's records lie in a folder of their own
    method, task, seed = job.rsplit("/", 2)
    return Job(method, task, int(seed)).folder(out / place)


def _counted(lines: Sequence[Line]) -> Counter[tuple[Any, ...]]:
    """What left, once for each round: of a question that was asked again, one answer counts."""
    items = {
        (line["round"], line["exchange"], item["slot"], item["form"], item["bytes"])
        for line in lines
        for item in line["left"]
        if item["form"] != "header"
    }
    return Counter(items)


def _server(folder: Path, site: str) -> Counter[tuple[Any, ...]]:
    items = set()
    for line in (line for name in (LEDGER, AFTER) for line in read_lines(folder / name)):
        if site in line.get("clients", ()):
            place = line["clients"].index(site)
            for item in line["left"]:
                if size := item["bytes"][place]:
                    where = line["round"], line["exchange"]
                    items.add((*where, item["slot"], item["form"], size))
    return Counter(items)


def _words(item: tuple[Any, ...]) -> str:
    round, exchange, slot, form, size = item
    return f"round {round + 1}, {exchange}: {slot}, {form}, {size:,} bytes"
