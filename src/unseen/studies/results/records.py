"""Records on disk: one JSON line per evaluation, files that survive a crash, marks when done.

The evaluations in `source.jsonl` and `target.jsonl` are kept apart, so that no selection rule can
read the target by accident.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from unseen.core.atomic import write_atomically
from unseen.core.record_lines import LEDGER, Record, to_line
from unseen.studies.results.metric_name import MetricName

if TYPE_CHECKING:
    from unseen.core.exchange import Outcome
    from unseen.core.types import Table

FILES = ("source.jsonl", "target.jsonl", "rounds.jsonl")
#: Every local model on every domain, where a study asks for it.
CROSS = "cross.jsonl"
#: What left sites after the training, for the model that it ended with.
AFTER = "after.jsonl"
#: Pairs of clients whose encrypted inner product was indistinguishable from 0.
UNDECIDED = "undecided.jsonl"
#: What an answer that looks at no input scores where figures are reported; not in older folders.
CONSTANT = "constant.jsonl"
OPTIONAL = (CROSS, LEDGER, UNDECIDED, CONSTANT)
#: The exchanges that evaluate.
VALIDATE, TEST = "validate", "test"
EVALUATIONS = {VALIDATE: "source.jsonl", TEST: "target.jsonl"}
#: Letters of a text in a folder's name, which file systems end at 255 bytes, with a digest.
LONGEST = 248
#: What a table says of the turn and not of the replies.
TURN = ("client", "progress", "rounds")


@dataclass(frozen=True)
class Job:
    """One cell's share of a study: a method on a task with a seed."""

    method: str
    task: str
    seed: int

    def folder(self, out: Path) -> Path:
        return out / "records" / slug(self.method) / slug(self.task) / f"seed-{self.seed}"


@dataclass
class Log:
    """The record files of one running job, opened for appending.

    Attributes:
        folder: The job's folder.
        files: Name -> file.
    """

    folder: Path
    files: dict[str, IO[bytes]] = field(default_factory=dict)

    @classmethod
    def resume(cls, folder: Path, lengths: Mapping[str, int]) -> Self:
        """Open the files, and drop what they hold beyond these lengths.

        Args:
            folder: The job's folder.
            lengths: Name -> how many bytes to keep, 0 where it is missing.
        """
        folder.mkdir(parents=True, exist_ok=True)
        names = (*FILES, *(name for name in OPTIONAL if (folder / name).exists()))
        files: dict[str, IO[bytes]] = {name: (folder / name).open("ab") for name in names}
        for name, file in files.items():
            file.truncate(lengths.get(name, 0))
        return cls(folder, files)

    def append(self, name: str, records: Iterable[Record]) -> None:
        """Add records to a file; a reader sees them at once."""
        if name not in self.files:
            self.files[name] = (self.folder / name).open("ab")
        self.files[name].writelines(map(to_line, records))
        self.files[name].flush()

    def close(self) -> None:
        for file in self.files.values():
            file.close()


def mark_done(
    folder: Path,
    versions: Mapping[str, str],
    seconds: float,
    peak_mib: float,
    **further: object,
) -> None:
    """Write the mark of a finished job, with its records' digests, and remove its checkpoint.

    Args:
        folder: The job's folder.
        versions: Package -> the version that made the records.
        seconds: How long the job took.
        peak_mib: How much memory it took.
        further: What the mark says only where it is not empty: `commit` of the code; `diverged`,
            why the job ended early, if its numbers stopped being finite; `fallbacks`, how often a
            rule's solver failed and its prior replaced the result; `separated`, the columns that
            separate the classes, so that a penalty came in; `settings`, their digest.
    """
    mark: Record = {"records": digests(folder), "versions": dict(versions)}
    mark |= {"seconds": round(seconds, 3), "peak_mib": round(peak_mib)}
    mark |= {key: value for key, value in further.items() if value}
    write_atomically(folder / "done.json", json.dumps(mark, indent=1).encode())
    (folder / "checkpoint.pt").unlink(missing_ok=True)


def mark(folder: Path) -> Record:
    """Return the mark of a finished job."""
    content: Record = json.loads((folder / "done.json").read_bytes())
    return content


def is_done(folder: Path) -> bool:
    """Return whether the job is finished and its records are as they were then."""
    try:
        return bool(mark(folder)["records"] == digests(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def lines_of(
    outcome: Outcome,
    job: Job,
    roles: Mapping[str, str],
    levels: Mapping[str, Sequence[str]],
    traffic: Mapping[str, tuple[int, int]],
) -> tuple[str, list[Record]]:
    """Return the file that an exchange's records belong in, and the records.

    Args:
        outcome: What the exchange gave.
        job: The job.
        roles: Domain -> what it is in the task.
        levels: Metadata column -> the names of its groups.
        traffic: Exchange -> bytes to and from each client.
    """
    exchange = outcome.turn.exchange
    if exchange not in EVALUATIONS:
        return "rounds.jsonl", [training(outcome, traffic[exchange])]
    return EVALUATIONS[exchange], evaluations(outcome, job, roles, levels)


def evaluations(
    outcome: Outcome, job: Job, roles: Mapping[str, str], levels: Mapping[str, Sequence[str]]
) -> list[Record]:
    """Return one record per participant of an evaluation exchange; see `lines_of`."""
    table = outcome.table
    parsed = (MetricName.parse(n) for n in table if n not in TURN)
    metrics = [metric for metric in parsed if not metric.metric.endswith(".undefined")]
    metrics.sort(key=lambda metric: bool(metric.column))
    head = {**vars(job), "round": outcome.turn.round}
    records = [{**head, "role": roles[domain], "domain": domain} for domain in outcome.names]
    for metric in metrics:
        name, kind = str(metric), int if metric.metric == "examples" else float
        for record, values in zip(records, _figures(table, metric, kind), strict=True):
            record[name] = values[0]
            if metric.column:
                record[name] = dict(zip(levels[metric.column], values, strict=True))
    return records


def _figures(
    table: Table, metric: MetricName, kind: type[float]
) -> Iterator[Sequence[float | None]]:
    """Yield each participant's values of a metric, of every group; None where undefined."""
    rows = table[str(metric)]
    missing = table.get(metric.undefined, rows.new_zeros(rows.shape))
    for row, gaps in zip(map(_listed, rows.tolist()), map(_listed, missing.tolist()), strict=True):
        yield [None if gap else kind(value) for value, gap in zip(row, gaps, strict=True)]


def _listed(value: float | list[float]) -> list[float]:
    return value if isinstance(value, list) else [value]


def training(outcome: Outcome, traffic: tuple[int, int]) -> Record:
    """Return the record of a training exchange.

    Args:
        outcome: What the exchange gave.
        traffic: Bytes to and from each client.

    Returns:
        Who took part, their scalars, the rules' weights, the bytes sent down and up, and what else
        a study asked for.
    """
    down, up = (size * len(outcome.names) for size in traffic)
    notes = dict(outcome.notes)
    if "drift" in notes:
        counts = {name: effective(w.tolist()) for name, w in outcome.weights.items()}
        notes["drift"] = {n: d | {"effective": counts.get(n)} for n, d in notes["drift"].items()}
    return {
        "round": outcome.turn.round,
        "exchange": outcome.turn.exchange,
        "clients": list(outcome.names),
        "scalars": {n: v.tolist() for n, v in outcome.table.items() if n not in TURN},
        "weights": {n: v.tolist() for n, v in outcome.weights.items() if n != "buffers"},
        "dropped": dict(outcome.dropped),
        "bytes": {"down": down, "up": up},
        **notes,
    }


def effective(weights: Sequence[Any]) -> float | None:
    """Return the effective number of clients (Σ |w_i|)² / Σ w_i², over blocks the mean.

    It is K where all weigh alike, 1 where one decides, and None where all weights are 0.

    Example:
        >>> effective([0.25, 0.25, 0.25, 0.25]), effective([[1.0, 0.0], [0.5, 0.5]])
        (4.0, 1.5)
    """
    rows = weights if weights and isinstance(weights[0], list) else [weights]
    sums = [(sum(map(abs, row)) ** 2, sum(w * w for w in row)) for row in rows]
    counts = [total / squares for total, squares in sums if squares > 0]
    return sum(counts) / len(counts) if counts else None


def digests(folder: Path, lengths: Mapping[str, int] | None = None) -> dict[str, str]:
    """Return the SHA-256 of each record file, or of its first bytes.

    Args:
        folder: The job's folder.
        lengths: Name -> how many bytes count; None: all bytes of all files.
    """
    hashes = {}
    for name, end in (lengths_of(folder) if lengths is None else lengths).items():
        content = (folder / name).read_bytes() if (folder / name).exists() else b""
        hashes[name] = hashlib.sha256(content[:end]).hexdigest()
    return hashes


def lengths_of(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each record file; an optional file that is empty is left out."""
    paths = {name: folder / name for name in (*FILES, *OPTIONAL)}
    sizes = {name: path.stat().st_size if path.exists() else 0 for name, path in paths.items()}
    return {name: size for name, size in sizes.items() if size or name in FILES}


def slug(text: str, longest: int = LONGEST) -> str:
    """Return a name for a file or folder; a short digest keeps different texts apart.

    Args:
        text: What is named.
        longest: Letters of the text that the name has at most.

    Example:
        >>> slug("cost"), slug("curves-loss-ppdg(lam=0.2)")
        ('cost', 'curves-loss-ppdg_lam=0.2-cb9ec3')
    """
    safe = re.sub(r"[^A-Za-z0-9.=+_-]+", "_", text).strip("_.")[:longest] or "_"
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
