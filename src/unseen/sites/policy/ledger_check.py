"""Whether a site's ledger is whole, and whether the server's says the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from unseen.core.record_lines import LEDGER, Record, parsed, read_lines
from unseen.errors import UnseenError
from unseen.sites.control import MESSAGES, TERMS, records_in
from unseen.sites.policy.approvals import SHORT
from unseen.sites.policy.site_ledger import BEFOREHAND, Line, entry_of
from unseen.studies.results.records import AFTER, Job

#: Of a group of lines, how many numbers and rounds are listed.
MOST = 6


def against(lines: Sequence[Line], site: str, *outs: Path) -> tuple[list[str], list[str]]:
    """Compare a site's ledger with the records of runs, in both directions.

    `outs` are folders of records, or of what holds them: a model, a choice.

    Returns:
        What the two say differently, and what left the site that the records do not account for.
    """
    differences, extra, entries = [], [], set[str]()
    by_entry = {entry_of(line): line for line in lines}
    for out in (records_in(out, TERMS) for out in outs):
        run, named = _run(out), set[str]()
        for folder, message in _messages(out, site):
            entry = str(message["entry"])
            named.add(entry)
            if why := _unlike(by_entry.get(entry), message, folder, out):
                differences.append(f"{_where(message)}: the server has an answer {why}")
        own = [line for line in lines if entry_of(line) in named]
        for name, job_lines in _jobs(own, run).items():
            here, there = _counted(job_lines), _server(_folder(name, out), site)
            where = "/".join(name.split("/")[1:])
            differences += [
                f"{where}: the server's ledger has {_words(item)}, this one has not"
                for item in (there - here).elements()
            ]
            extra += [f"{where}: {_words(item)}" for item in (here - there).elements()]
            extra += [f"{where}: {text}" for text in _twice(job_lines)]
        jobs = {_folder(name, out) for name in _jobs(own, run)}
        differences += [
            f"{folder}: the server has a job that is not in this ledger"
            for folder in sorted(path.parent for path in out.rglob(LEDGER))
            if folder not in jobs and _server(folder, site)
        ]
        entries |= named
    return differences, extra + _unnamed(lines, entries)


def _where(message: Mapping[str, Any]) -> str:
    at = f"round {message['round'] + 1}, " if isinstance(message.get("round"), int) else ""
    return f"{at}{message.get('exchange') or message.get('kind', '')}"


def _unlike(line: Line | None, message: Mapping[str, Any], folder: Path, out: Path) -> str:
    """Why a line of the site is not the one of a message of the server; nothing where it is."""
    entry = str(message["entry"])
    if line is None:
        return f"{entry[:20]}… that is not in this ledger"
    if "round" not in message or "round" not in line:
        fits = line.get("kind") == message.get("kind") and "round" not in message
    else:
        fits = all(line.get(key) == message.get(key) for key in ("kind", "round", "exchange"))
        fits = fits and _folder(line["job"], out) == folder
    # A refusal of a question that could not be read knows of no round.
    return "" if fits or "rule" in line else f"that here is line {line['n']}, {_where(line)}"


def _twice(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the exchanges of a job to which different answers left."""
    answers: dict[tuple[int, str], list[int]] = {}
    for line in lines:
        if line["kind"] == "exchange":
            answers.setdefault((line["round"], line["exchange"]), []).append(line["n"])
    for (round, exchange), numbers in answers.items():
        if len(numbers) > 1:
            yield f"round {round + 1}, {exchange}: {len(numbers)} answers, lines {_listed(numbers)}"


def _unnamed(lines: Sequence[Line], entries: Set[str]) -> list[str]:
    """Say which answers of a ledger no record names; refusals of a study by their number."""
    groups: dict[tuple[str, str, bool], list[Line]] = {}
    for line in lines:
        if (
            "answer" in line
            and entry_of(line) not in entries
            and line.get("rule") not in BEFOREHAND
        ):
            study = f"{line.get('name', '')} {str(line.get('study', ''))[:SHORT]}".strip()
            run = str(line.get("job", "")).partition("/")[0]
            groups.setdefault((study, run, "rule" in line), []).append(line)
    return [_group(*key, group) for key, group in groups.items()]


def _group(study: str, run: str, refused: bool, lines: Sequence[Line]) -> str:
    what = "refusal" if refused else "answer"
    count = f"{len(lines)} {what}{'s' if len(lines) > 1 else ''}"
    size = sum(item["bytes"] for line in lines for item in line["left"])
    where = ", ".join(filter(None, (study and f"study {study}", run and f"run {run}")))
    places = dict.fromkeys(_where(line) for line in lines)
    first = "; ".join([*places][:MOST]) + (" ..." if len(places) > MOST else "")
    numbers = _listed([line["n"] for line in lines])
    return f"{where or 'no study'}: {count} of {size:,} bytes, lines {numbers}: {first}"


def _listed(numbers: Sequence[int]) -> str:
    first = ", ".join(map(str, numbers[:MOST]))
    return first + (f" ... {numbers[-1]}" if len(numbers) > MOST else "")


def _run(out: Path) -> str:
    try:
        return str(json.loads((out / TERMS).read_bytes())["run"])
    except (OSError, ValueError, KeyError):
        remedy = "Name by --server what --out of `unseen federation run`, `train` or `choose` was."
        raise UnseenError(f"{out} holds no records of a federation.", remedy=remedy) from None


def _messages(out: Path, site: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the folder, and what the server noted, of each answer with a line in the ledger."""
    for path in sorted(out.rglob(MESSAGES)):
        for line in messages_in(path):
            if line.get("site") == site and line.get("entry"):
                yield path.parent, line


def messages_in(path: Path) -> list[Record]:
    """Return the messages that a server noted, but for those that it was killed amid."""
    content = path.read_bytes() if path.is_file() else b""
    return [record for record in map(parsed, content.splitlines()) if record is not None]


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
