"""What a data set is once it has left the disk: named domains in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from unseen.datasets.table import Schema

#: The code of an example that no group of a metadata column counts.
NO_GROUP = -1


@dataclass(frozen=True)
class Domain:
    """One distribution's examples.

    x: uint8 (read as x / 255) or float32 [N, ...]; y: classes [N] int64, or float32 targets.
    validation: rows of an official validation split; None lets the study draw one.
    meta: integer codes [N] per metadata column; `DataSet.levels` names the codes, and examples of
    the code `NO_GROUP` belong to none of the column's groups. digest: of x, where it is known
    without reading x, as it is for arrays that stay on disk.
    """

    name: str
    x: Tensor
    y: Tensor
    validation: Tensor | None = None
    meta: Mapping[str, Tensor] = field(default_factory=dict)
    digest: str | None = None


@dataclass(frozen=True)
class DataSet:
    """Named domains with one label space.

    classes: class names, or None for regression. schema: set for tables, whose columns are
    still raw (NaN for missing, category codes) and are encoded with statistics of the training
    clients. levels: names of the codes of each metadata column. source: where the files come
    from, licence: on what terms, citation: BibTeX. stand_in: whether they are a synthetic stand-in,
    as `unseen data sketch` marks it; set by `unseen.datasets.load`. standardise: of a
    regression, what the labels are called, if models are trained on them less the training clients'
    mean and over their deviation (predictions and metrics are in the labels' own units all the
    same); None to train on the labels as they are.
    """

    name: str
    domains: tuple[Domain, ...]
    classes: tuple[str, ...] | None
    source: str
    licence: str
    citation: str
    schema: Schema | None = None
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stand_in: bool = False
    standardise: str | None = None

    def __getitem__(self, name: str) -> Domain:
        return {domain.name: domain for domain in self.domains}[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The domains' names, in the data set's own order."""
        return tuple(domain.name for domain in self.domains)
