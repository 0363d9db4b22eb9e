"""What all jobs of a study share, and the data that they read."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from unseen.datasets import load
from unseen.datasets.dataset import DataSet
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.models.weight_files import Source
from unseen.spec.study import StudySpec

#: Seconds between checkpoints. They change when a job can go on from, never what it computes.
CHECKPOINT_SECONDS = 20.0
_read: dict[tuple[str, Path | None, str], DataSet] = {}


@dataclass(frozen=True)
class Setting:
    """What all jobs of a study share.

    Attributes:
        study: The settings.
        out: The folder of the records.
        data_dir: Where data files are.
        data: The data set's digest, which every process checks.
        model: The model's expression.
        metrics: What is recorded.
        checkpoint_seconds: The time between checkpoints.
        weights: The file of initial weights, whose digest every process checks too.
        tuned: What runs in the place of the job's method: the same with options that were searched.
    """

    study: StudySpec
    out: Path
    data_dir: Path | None
    data: str
    model: str
    metrics: tuple[str, ...]
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    weights: Source | None = None
    tuned: str = ""


def dataset(expression: str, data_dir: Path | None, digest: str) -> DataSet:
    """Return the data set of an expression, kept for this process's next job.

    Args:
        expression: The expression.
        data_dir: Where data files are.
        digest: What `digest_of` said of them when the study began.

    Raises:
        UnseenError: If its files are no longer those of the digest.
    """
    key = (expression, data_dir, digest)
    if key not in _read:
        data = read(expression, data_dir)
        if digest_of(data) != digest:
            what = f"the files of {expression} changed while the study was running."
            raise UnseenError(what, remedy="Run it again, into another folder.")
        keep(key, data)
    return _read[key]


def keep(key: tuple[str, Path | None, str], data: DataSet) -> None:
    """Keep one data set per process."""
    _read.clear()
    _read[key] = data


def read(expression: str, data_dir: Path | None) -> DataSet:
    """Read the data set of an expression."""
    (call,) = parse(expression)
    return load(call.name, data_dir, **call.arguments)


def digest_of(data: DataSet) -> str:
    """Return sixteen hexadecimal digits that differ whenever two data sets do."""
    digest = hashlib.sha256()
    names: list[object] = [data.classes, data.schema, dict(data.levels)]
    names += [data.standardise] if data.standardise is not None else []
    digest.update(repr(names).encode())
    for domain in data.domains:
        # An array that stays on disk brings its digest along: it may be larger than the memory.
        digest.update(f"{domain.name}{domain.digest or ''}".encode())
        x = domain.x if domain.digest is None else None
        meta = (domain.meta[column] for column in sorted(domain.meta))
        for tensor in (x, domain.y, domain.validation, *meta, domain.units):
            if tensor is not None:
                digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()[:16]
