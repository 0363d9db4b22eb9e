"""What all jobs of a study share, and the data that they read."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen.data import load
from unseen.data.dataset import DataSet
from unseen.data.label_faults import check_several
from unseen.data.networks.pretrained import PRETRAINED, from_data
from unseen.data.networks.pretrained import source as pretrained
from unseen.data.networks.weight_files import Source
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.studies.execution.frozen import featured
from unseen.studies.settings.study import StudySpec

#: Seconds between checkpoints. They change when a job can go on from, never what it computes.
CHECKPOINT_SECONDS = 20.0
#: Settings that choose what is run or shown, not what a job computes.
FREE = {
    "name",
    "title",
    "methods",
    "targets",
    "seeds",
    "selection",
    "metric",
    "reference",
    "published",
    "weights",  # the file's name and digest decide, not its folder
    "federation",
    "memory_limit",
}
_read: dict[tuple[Path | None, str], DataSet] = {}


@dataclass(frozen=True)
class Trial:
    """What a setting has in the place of the study's own values.

    Attributes:
        method: The method as the study names it.
        values: Name of a range -> value.
        searching: Whether the search is trying it; otherwise it is the search's winner, which
            trains as long as the study says.
    """

    method: str
    values: Mapping[str, Any]
    searching: bool = False


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
        tuned: What runs instead of the job's method: the same with options that were searched.
        trial: What a search put in the place of the study's ranges, if one did.
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
    trial: Trial | None = None

    @property
    def digest(self) -> str:
        """Sixteen digits of all that decides what a job computes beside method, task and seed.

        A setting at its default plays no part, so that one that is younger than the records does
        not change it.
        """
        free = FREE | {"metrics"}
        study = self.study.model_dump(mode="json", exclude=free, exclude_defaults=True)
        weights = str(self.weights) if self.weights else ""
        text = json.dumps([study, self.model, self.data, weights], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def dataset(setting: Setting) -> DataSet:
    """Return the data set of a study, kept for this process's next job.

    Raises:
        UnseenError: If its files are no longer those that the study began with.
    """
    key, expression = (setting.data_dir, setting.data), setting.study.dataset
    if key not in _read:
        raw = read(expression, setting.data_dir)
        data = featured(raw, setting.study, setting.model, setting.weights, setting.data_dir)
        if digest_of(data) != setting.data:
            what = f"the files of {expression} changed while the study was running."
            raise UnseenError(what, remedy="Run it again, into another folder.")
        keep(setting, data)
    return _read[key]


def keep(setting: Setting, data: DataSet) -> None:
    """Keep one data set per process, for the studies that read it."""
    _read.clear()
    _read[setting.data_dir, setting.data] = data


def read(expression: str, data_dir: Path | None) -> DataSet:
    """Read the data set of an expression."""
    (call,) = parse(expression)
    data = load(call.name, data_dir, **call.arguments)
    check_several(data.name, data.classes)
    return data


def initial_weights(study: StudySpec, model: str, directory: Path | None) -> Source | None:
    """Return the study's file of initial weights, if it has one."""
    if study.weights == PRETRAINED or (study.weights is None and from_data(model)):
        return pretrained(model, directory)
    if study.weights is not None:
        return Source.of(study.weights, directory, study.weights_bands)
    if study.weights_bands is not None:
        what = "weights_bands is for a file of weights."
        raise UnseenError(what, remedy="Set weights, or leave it out.")
    return None


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
