"""What a data set is once it has left the disk: named domains in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from unseen.datasets.dialect import Dialect
    from unseen.datasets.encoding import Schema

#: The code of an example that no group of a metadata column counts.
NO_GROUP = -1


@dataclass(frozen=True)
class Domain:
    """The examples of one distribution.

    Attributes:
        name: The domain.
        x: Inputs, uint8 (read as x / 255) or float32 [N, ...].
        y: Classes [N] int64, or float32 targets.
        validation: Rows of an official validation split; None lets the study draw one.
        meta: Metadata column -> integer codes [N]; `DataSet.levels` names the codes, and examples
            of the code `NO_GROUP` belong to none of the column's groups.
        digest: Of x, where it is known without reading x, as it is for arrays that stay on disk.
        units: The code [N] of the patient, or of whatever an example belongs to: examples of one
            code are never split between training and validation; equal codes are one unit in all
            domains.
    """

    name: str
    x: Tensor
    y: Tensor
    validation: Tensor | None = None
    meta: Mapping[str, Tensor] = field(default_factory=dict)
    digest: str | None = None
    units: Tensor | None = None


@dataclass(frozen=True)
class DataSet:
    """Named domains with one label space.

    Attributes:
        name: The data set.
        domains: In the data set's own order.
        classes: Names of the classes, or None for regression.
        source: Where the files come from.
        licence: On what terms.
        citation: BibTeX.
        schema: Set for tables, whose columns are still raw (NaN for missing, category codes) and
            are encoded with statistics of the training clients.
        levels: Metadata column -> names of its codes.
        stand_in: Whether the files are a synthetic stand-in, as `unseen data sketch` marks it; set
            by `unseen.datasets.load`.
        standardise: Of a regression, what the labels are called, if models are trained on them less
            the training clients' mean and over their deviation (predictions and metrics are in the
            labels' own units all the same); None to train on the labels as they are.
        dialect: How a csv file was written.
        notes: What readers of figures on it should know.
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
    dialect: Dialect | None = None
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Domain:
        return {domain.name: domain for domain in self.domains}[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The domains' names, in the data set's own order."""
        return tuple(domain.name for domain in self.domains)


def lone_classes(domains: Sequence[Domain], classes: Sequence[str] | None) -> list[str]:
    """Return a remark on the classes that only one of several domains has."""
    if classes is None or len(domains) < 2:
        return []
    owners: dict[int, list[str]] = {}
    for domain in domains:
        for code in domain.y.unique().tolist():
            owners.setdefault(code, []).append(domain.name)
    lone = [
        f"{classes[c]!r} at {sites[0]}" for c, sites in sorted(owners.items()) if len(sites) == 1
    ]
    if not lone:
        return []
    shown = ", ".join(lone[:5]) + (f" and {len(lone) - 5:,} more" if lone[5:] else "")
    what = "a class occurs" if len(lone) == 1 else f"{len(lone):,} classes occur"
    return [f"{what} at one site alone, {shown}: is that right, or a misspelling?"]


def shared_units(domains: Sequence[Domain], names: Sequence[str], what: str) -> list[str]:
    """Return a remark on units that occur in more than one domain."""
    owners: dict[int, list[str]] = {}
    for domain in domains:
        if domain.units is not None:
            for code in domain.units.unique().tolist():
                owners.setdefault(code, []).append(domain.name)
    shared = [(names[code], sites) for code, sites in sorted(owners.items()) if len(sites) > 1]
    if not shared:
        return []
    (name, sites), count = shared[0], f"{len(shared):,} of {len(owners):,}"
    return [
        f"{count} values of the unit {what!r} occur at more than one site, such as {name} at "
        f"{' and '.join(sites[:3])}: if they are the same people, a held-out site is not unseen; "
        "if each site numbers its own, nothing is wrong"
    ]
