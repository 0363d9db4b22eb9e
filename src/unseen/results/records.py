"""Records on disk: one JSON line per evaluation, files that survive a crash, marks when done.

A job's folder holds `source.jsonl` and `target.jsonl` (evaluations; kept apart so that no
selection rule can read the target by accident), `rounds.jsonl` (who took part, the weights, the
scalars), `checkpoint.pt` while it runs and `done.json` once it is finished.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from unseen.core.atomic import write_atomically
from unseen.results.metric_name import MetricName

if TYPE_CHECKING:
    from unseen.core.client import Memories
    from unseen.core.exchange import Outcome, State

FILES = ("source.jsonl", "target.jsonl", "rounds.jsonl")
#: Every local model on every domain, where a study asks for it.
CROSS = "cross.jsonl"
#: What left each client in each exchange; older folders have none.
LEDGER = "ledger.jsonl"
#: Pairs of clients whose encrypted inner product could not be told from 0.
UNDECIDED = "undecided.jsonl"
#: What an answer that looks at no input scores where figures are reported; older folders have none.
CONSTANT = "constant.jsonl"
OPTIONAL = (CROSS, LEDGER, UNDECIDED, CONSTANT)
#: The exchanges that evaluate.
VALIDATE, TEST = "validate", "test"
Record = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One cell's share of a study: a method on a task with a seed."""

    method: str
    task: str
    seed: int

    def folder(self, out: Path) -> Path:
        """Where its records lie."""
        return out / "records" / _slug(self.method) / _slug(self.task) / f"seed-{self.seed}"


def read_lines(path: Path) -> list[Record]:
    """The whole records of a file; what follows the first damaged line is left out."""
    records: list[Record] = []
    if not path.exists():
        return records
    for line in path.read_bytes().split(b"\n")[:-1]:  # the last piece has no newline: unfinished
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict):
            break
        records.append(record)
    return records


def to_line(record: Mapping[str, Any]) -> bytes:
    """One record as a line of JSON; NaN cannot be written."""
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"


@dataclass
class Log:
    """The record files of one running job, opened for appending."""

    folder: Path
    files: dict[str, IO[bytes]] = field(default_factory=dict)

    @classmethod
    def resume(cls, folder: Path, lengths: Mapping[str, int]) -> Self:
        """Keep the first `lengths` bytes of each file (0 for a new job), drop what came later."""
        folder.mkdir(parents=True, exist_ok=True)
        files: dict[str, IO[bytes]] = {}
        for name in FILES:
            files[name] = (folder / name).open("ab")
            files[name].truncate(lengths.get(name, 0))
        for name in OPTIONAL:
            if (folder / name).exists():
                files[name] = (folder / name).open("ab")
                files[name].truncate(lengths.get(name, 0))
        return cls(folder, files)

    def append(self, name: str, records: Iterable[Record]) -> None:
        """Add records; a reader sees them at once."""
        if name not in self.files:
            self.files[name] = (self.folder / name).open("ab")
        for record in records:
            self.files[name].write(to_line(record))
        self.files[name].flush()

    def close(self) -> None:
        """Close the files."""
        for file in self.files.values():
            file.close()


def mark_done(
    folder: Path,
    versions: Mapping[str, str],
    seconds: float,
    peak_mib: float,
    commit: str = "",
    diverged: str = "",
    fallbacks: int = 0,
) -> None:
    """Write the mark of a finished job: its records' digests, what made them, what it cost, why it
    ended early if it diverged, and how often a rule's solver failed and its prior stood in."""
    mark: Record = {
        "records": digests(folder),
        "versions": dict(versions),
        "seconds": round(seconds, 3),
        "peak_mib": round(peak_mib),
    }
    mark |= {"commit": commit} if commit else {}
    mark |= {"diverged": diverged} if diverged else {}
    mark |= {"fallbacks": fallbacks} if fallbacks else {}
    write_atomically(folder / "done.json", json.dumps(mark, indent=1).encode())
    (folder / "checkpoint.pt").unlink(missing_ok=True)


def mark(folder: Path) -> Record:
    """The mark of a finished job."""
    found: Record = json.loads((folder / "done.json").read_bytes())
    return found


def is_done(folder: Path) -> bool:
    """Whether the job is finished and its records are as they were then."""
    try:
        return bool(mark(folder)["records"] == digests(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def save_checkpoint(folder: Path, state: State, memories: Memories) -> None:
    """The server's state and every client's memory, in one file and one step."""
    import io

    import torch

    def own(value: Any) -> Any:  # views would carry their whole storage along
        if isinstance(value, torch.Tensor):
            return value.detach().cpu().clone()
        if isinstance(value, Mapping):
            return {key: own(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(own(inner) for inner in value)
        return value

    content = {
        "lengths": {name: _size(folder / name) for name in _files(folder)},
        "digests": digests(folder),
        "round": state.round,
        "seed": state.seed,
        "inbox": own(state.inbox),
        "rules": own(state.rules),
        "memories": own(memories.kept),
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getvalue()
    write_atomically(folder / "checkpoint.pt", hashlib.sha256(payload).digest() + payload)


def load_checkpoint(folder: Path, device: str) -> tuple[State, Memories, Mapping[str, int]] | None:
    """What `save_checkpoint` wrote, with the records' lengths then; None if there is nothing to
    go on from: no checkpoint, a damaged one, or records that are not those of its time."""
    import io

    import torch

    from unseen.core.client import Memories
    from unseen.core.exchange import State

    path = folder / "checkpoint.pt"
    stored = path.read_bytes() if path.exists() else b""
    digest, payload = stored[:32], stored[32:]
    if not payload or hashlib.sha256(payload).digest() != digest:
        return None
    content = torch.load(io.BytesIO(payload), weights_only=True)
    lengths: dict[str, int] = content["lengths"]
    if content["digests"] != digests(folder, lengths):
        return None

    def moved(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.to(device) for name, tensor in tensors.items()}

    kept = {
        client: [(tuple(label), moved(memory)) for label, memory in entries]
        for client, entries in content["memories"].items()
    }
    state = State(content["round"], moved(content["inbox"]), content["rules"], content["seed"])
    return state, Memories(kept), lengths


def written(
    outcome: Outcome,
    job: Job,
    roles: Mapping[str, str],
    levels: Mapping[str, Sequence[str]],
    traffic: Mapping[str, tuple[int, int]],
) -> tuple[str, list[Record]]:
    """The file that an exchange's records belong in, and the records.

    traffic: bytes to and from each client by exchange.
    """
    if outcome.turn.exchange == TEST:
        return "target.jsonl", evaluations(outcome, job, roles, levels)
    if outcome.turn.exchange == VALIDATE:
        return "source.jsonl", evaluations(outcome, job, roles, levels)
    return "rounds.jsonl", [training(outcome, traffic[outcome.turn.exchange])]


def evaluations(
    outcome: Outcome, job: Job, roles: Mapping[str, str], levels: Mapping[str, Sequence[str]]
) -> list[Record]:
    """One record per participant of an evaluation exchange."""
    names = [n for n in outcome.table if n not in ("client", "progress", "rounds")]
    plain = [n for n in names if "@" not in n and not n.endswith(".undefined")]
    grouped = [n for n in names if "@" in n and ".undefined@" not in n]
    records = []
    for i, domain in enumerate(outcome.names):
        record: Record = {"method": job.method, "task": job.task, "seed": job.seed}
        record |= {"round": outcome.turn.round, "role": roles[domain], "domain": domain}
        for name in plain:
            value = float(outcome.table[name][i])
            unknown = outcome.table.get(f"{name}.undefined")
            record[name] = None if unknown is not None and float(unknown[i]) else value
        for name in grouped:
            metric = MetricName.parse(name)
            unknown = outcome.table.get(metric.undefined)
            record[name] = {
                level: None if unknown is not None and float(unknown[i][g]) else float(value)
                for g, (level, value) in enumerate(
                    zip(levels[metric.column], outcome.table[name][i], strict=True)
                )
            }
        for name in ("examples", *(n for n in grouped if n.startswith("examples@"))):
            value = record[name]
            record[name] = (
                {k: int(v) for k, v in value.items()} if isinstance(value, dict) else int(value)
            )
        records.append(record)
    return records


def training(outcome: Outcome, traffic: tuple[int, int]) -> Record:
    """One record of a training exchange: who took part, their scalars, the rules' weights, the
    bytes sent down and up, and what a study asked for besides."""
    down, up = (size * len(outcome.names) for size in traffic)
    skipped = ("client", "progress", "rounds")
    return {
        "round": outcome.turn.round,
        "exchange": outcome.turn.exchange,
        "clients": list(outcome.names),
        "scalars": {n: v.tolist() for n, v in outcome.table.items() if n not in skipped},
        "weights": {n: v.tolist() for n, v in outcome.weights.items() if n != "buffers"},
        "dropped": dict(outcome.dropped),
        "bytes": {"down": down, "up": up},
        **outcome.seen,
    }


def digests(folder: Path, lengths: Mapping[str, int] | None = None) -> dict[str, str]:
    """SHA-256 of each record file, or of its first bytes."""
    found = {}
    for name in lengths if lengths is not None else _files(folder):
        path = folder / name
        content = path.read_bytes() if path.exists() else b""
        part = content if lengths is None else content[: lengths[name]]
        found[name] = hashlib.sha256(part).hexdigest()
    return found


def _files(folder: Path) -> tuple[str, ...]:
    return (*FILES, *(name for name in OPTIONAL if _size(folder / name)))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _slug(text: str) -> str:
    """A name for a folder; a short digest keeps different texts apart."""
    safe = re.sub(r"[^A-Za-z0-9.=+_-]+", "_", text).strip("_.") or "_"
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
