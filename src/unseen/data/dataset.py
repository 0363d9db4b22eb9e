"""A data set in memory: named domains, checked, and the sums that clients exchange about it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from unseen.core.client import Client
from unseen.core.exchange import Reply
from unseen.core.label_scale import Scale
from unseen.core.labels import Kind, kind_of
from unseen.core.survival import Intervals
from unseen.core.turn import Turn
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model
from unseen.data.label_faults import check_arrays, label_faults, outside
from unseen.data.tables import encoding, site_sums, sums_check
from unseen.data.tables.encoding import FLAT, Schema
from unseen.errors import UnseenError

if TYPE_CHECKING:
    from unseen.data.tables.dialect import Dialect

#: The code of an example that no group of a metadata column counts.
NO_GROUP = -1
#: The column of a split's metadata that says whose rows these are.
UNIT = "unit of rows"
#: Columns of tables of results, which no domain may be called like.
RESERVED = ("method", "average", "worst", "rank")
#: Letters of a domain's name, which names folders of records.
LONGEST = 200


@dataclass(frozen=True)
class Domain:
    """The examples of one distribution.

    Attributes:
        name: The domain.
        x: Inputs, uint8 (read as x / 255) or float32 [N, ...].
        y: Classes [N] int64; float32 targets [N]; times and events [N, 2]; or masks [N, H, W] int64
            of the class of each pixel of x [N, C, H, W], where `IGNORED` is the code of a pixel
            that does not count.
        validation: Rows of an official validation split; None lets the study draw one.
        meta: Metadata column -> integer codes [N]; `DataSet.levels` names the codes, and examples
            of the code `NO_GROUP` belong to none of the column's groups.
        digest: Of x, where it is known without reading x, as it is for arrays that stay on disk.
        units: The code [N] of the patient, or of whatever an example belongs to: examples of one
            code are never split between training and validation; equal codes are one unit in all
            domains.
        views: Inputs like x of changed copies of the same examples, to train on as well.
    """

    name: str
    x: Tensor
    y: Tensor
    validation: Tensor | None = None
    meta: Mapping[str, Tensor] = field(default_factory=dict)
    digest: str | None = None
    units: Tensor | None = None
    views: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """Named domains with one label space.

    Attributes:
        name: The data set.
        domains: In the data set's own order.
        classes: Names of the classes, or None for regression; of masks, the first is background.
        source: Where the files come from.
        licence: On what terms.
        citation: BibTeX.
        schema: Set for tables, whose columns are still raw (NaN for missing, category codes) and
            are encoded with statistics of the training clients.
        levels: Metadata column -> names of its codes.
        stand_in: Whether the files are a synthetic stand-in, as its marker says; set by
            `unseen.data.load`.
        standardise: Of a regression, what the labels are called, if models are trained on them less
            the training clients' mean and over their deviation (predictions and metrics are in the
            labels' own units all the same); None to train on the labels as they are.
        dialect: How a csv file was written.
        notes: What readers of figures on it should know.
        whole: The shape of one image, if inputs are the features that the frozen part of a network
            makes of images.
        masks: Whether labels are masks.
        times: Where labels are times until an event: what time and event are called. Labels are
            then [N, 2], a time and 1 for an event or 0 for a censored row, and classes None.
        positive: Of two classes the last, where a user named it as what metrics look for.
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
    whole: tuple[int, ...] | None = None
    masks: bool = False
    times: tuple[str, str] | None = None
    positive: str | None = None

    def __getitem__(self, name: str) -> Domain:
        return {domain.name: domain for domain in self.domains}[name]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(domain.name for domain in self.domains)

    @property
    def kind(self) -> Kind:
        """What its labels are."""
        return kind_of(self.classes, self.masks, self.times is not None)


def lone_classes(domains: Sequence[Domain], classes: Sequence[str] | None) -> list[str]:
    """Return a remark on the classes that only one of several domains has."""
    if classes is None or len(domains) < 2:
        return []
    owners = _owners((domain.name, domain.y) for domain in domains)
    lone = [f"{classes[code]!r} at {sites[0]}" for code, sites in owners if len(sites) == 1]
    if not lone:
        return []
    first = ", ".join(lone[:5]) + (f" and {len(lone) - 5:,} more" if lone[5:] else "")
    what = "a class occurs" if len(lone) == 1 else f"{len(lone):,} classes occur"
    return [f"{what} at one site alone, {first}: is that right, or a misspelling?"]


def shared_units(domains: Sequence[Domain], names: Sequence[str], what: str) -> list[str]:
    """Return a remark on units that occur in more than one domain.

    Args:
        domains: The domains.
        names: The units' names, by code.
        what: What the user calls a unit.
    """
    owners = _owners((domain.name, domain.units) for domain in domains)
    shared = [(names[code], sites) for code, sites in owners if len(sites) > 1]
    return [
        f"{len(shared):,} of {len(owners):,} values of the unit {what!r} occur at more than one "
        f"site, such as {name} at {' and '.join(sites[:3])}: if they are the same people, a "
        "held-out site is not unseen; if each site numbers its own, nothing is wrong"
        for name, sites in shared[:1]
    ]


def _owners(codes: Iterable[tuple[str, Tensor | None]]) -> list[tuple[int, list[str]]]:
    owners: dict[int, list[str]] = {}
    for name, own in codes:
        for code in own.unique().tolist() if own is not None else ():
            owners.setdefault(code, []).append(name)
    return sorted(owners.items())


def check(data: DataSet) -> DataSet:
    """Return the data set itself, if its labels, inputs, validation rows and metadata are sound.

    Raises:
        UnseenError: Unless classes have different names and are int64 [N] in [0, C), regression
            targets finite float32 [N], times finite and not below 0 with events 0 or 1; inputs
            finite, except for a table, whose missing cells are NaN; validation rows distinct and in
            range, and some but not all of them; codes have names; no unit is on both sides of an
            official split; no domain is empty, or called like a column of results or by more than
            `LONGEST` letters.
    """
    for name in data.names:
        _check_name(name)
    check_arrays(data.name, data.classes, map(vars, data.domains))
    if len(set(data.names)) != len(data.names):
        raise UnseenError(f"domains of one data set need different names; found {data.names}.")
    if len({domain.x.shape[1:] for domain in data.domains}) > 1:
        shapes = {domain.name: list(domain.x.shape[1:]) for domain in data.domains}
        raise UnseenError(f"all domains need inputs of one shape; found {shapes}.")
    for domain in data.domains:
        where = f"domain {domain.name!r} of data set {data.name!r} has"
        if not len(domain.y):
            raise UnseenError(f"{where} no examples.", remedy="Remove it, or look at its files.")
        if fault := next(_faults(data, domain), None):
            raise UnseenError(f"{where} {fault}.")
    return data


def _check_name(name: str) -> None:
    if name in RESERVED:
        what = f"a domain is called {name!r}, as is a column of every table of results."
        raise UnseenError(what, remedy="Rename that site in the data.")
    if len(name) > LONGEST:
        what = f"the name of the domain {name[:40] + '…'!r} has {len(name)} letters, and folders of"
        what += f" records are named by it: at most {LONGEST} were expected."
        raise UnseenError(what, remedy="Give the site a shorter name in the data.")


def _faults(data: DataSet, domain: Domain) -> Iterator[str]:
    x, y, rows, units = domain.x, domain.y, domain.validation, domain.units
    if x.dtype not in (torch.uint8, torch.float32) and data.schema is None:
        yield f"inputs of type {x.dtype}; uint8 or float32 was expected"
    # Bytes cannot be infinite; what has a digest was looked at when it was decoded.
    if x.is_floating_point() and domain.digest is None:
        unfit = x.isinf() if data.schema is not None else ~x.isfinite()
        if bad := int(unfit.sum()):
            yield f"{bad} input values that are NaN or infinite"
    if len(y) != len(x):
        yield f"{len(x)} inputs and {len(y)} labels"
    yield from label_faults(data.classes, x, y, data.masks, data.times is not None)
    if rows is not None and (outside(rows, len(y)) or len(rows.unique()) < len(rows)):
        yield "validation rows that repeat or lie outside the domain"
    if rows is not None and len(rows) in (0, len(y)):
        yield f"{len(rows)} validation rows of {len(y)}; a source trains and validates"
    for column, codes in domain.meta.items():
        grouped = codes[codes != NO_GROUP]
        if len(codes) != len(y) or outside(grouped, len(data.levels.get(column, ()))):
            yield f"metadata {column!r} that does not give every example a code with a name"
    if units is not None and (len(units) != len(y) or units.dtype != torch.int64):
        yield f"units that do not give every example a code (int64 [{len(y)}])"
    if units is not None and rows is not None:
        validates = torch.zeros(len(y), dtype=torch.bool)
        validates[rows] = True
        if both := set(units[validates].tolist()) & set(units[~validates].tolist()):
            yield f"{len(both)} units with examples on both sides of its official split"


@dataclass(frozen=True)
class Totals:
    """`Schema.sums` of the training rows of a table and of labels that are to be standardised.

    Attributes:
        schema: Of the table, None for other data.
        label: What the labels are called, None where they are taken as they are.
        intervals: Of times: how many intervals are made of the log times of events, which are then
            the label.

    Note:
        Labels count as one more numeric column, so that the same rules hold for them as for
        columns: one sum, one exchange, or one public range.
    """

    schema: Schema | None
    label: str | None
    intervals: int = 0

    @classmethod
    def of(cls, data: DataSet, intervals: int = 0) -> Self | None:
        """Return what a data set needs before training; None if it needs nothing, as text does.

        Args:
            data: The data set.
            intervals: Of times: how many intervals are made of sums, if any.
        """
        label = data.standardise if data.classes is None else None
        if data.times is not None:
            label = f"log({data.times[0]})" if intervals else None
        columns = data.schema is not None and data.schema.columns
        return cls(data.schema, label, intervals) if columns or label is not None else None

    @cached_property
    def joint(self) -> Schema:
        """The table's columns with the labels as the last."""
        table = self.schema or Schema(())
        labels = () if self.label is None else (self.label,)
        return Schema((*table.columns, *labels), table.categories, table.flags)

    @property
    def size(self) -> int:
        return sum(self.joint.parts)

    @property
    def columns(self) -> tuple[str, ...]:
        """The numeric columns, with the labels as the last."""
        return tuple(self.joint.columns[j] for j in self.joint.numeric)

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """Reply with the statistics of the client's training rows; nothing else is touched."""
        split = client.split("train")
        columns = [] if self.schema is None else [split.x[:][:, : len(self.schema.columns)]]
        if self.label is not None:
            columns = [x.double() for x in (*columns, self._labels(split.y))]
        return Reply(rows={"statistics": self.joint.sums(torch.cat(columns, dim=1))}), memory

    def _labels(self, y: Tensor) -> Tensor:
        """The column of labels [N, 1]: numbers, or log times of events, missing where censored."""
        if not self.intervals:
            return y[:, None]
        t, event = y[:, :1].double(), y[:, 1:] > 0
        return torch.where(event & (t > 0), t, math.nan).log()

    def impossible(self, sums: Tensor, most: int | None = None) -> str | None:
        """Return why no rows have these sums, or None, see `sums_check.impossible`."""
        return sums_check.impossible(self.joint, sums, most)

    def far(self, sums: Mapping[str, Tensor]) -> dict[str, str]:
        """Return whose values are out of proportion to the others', see `sums_check.far`."""
        return sums_check.far(self.joint, sums, self.columns)

    def typical(self, sums: Tensor) -> Tensor:
        """Return sums by the medians over sites, see `site_sums.typical`."""
        return site_sums.typical(self.joint, sums)

    def of_ranges(self, ranges: Mapping[str, tuple[float, float]]) -> Tensor:
        """Return statistics that follow from public ranges alone, see `encoding.of_ranges`."""
        return encoding.of_ranges(self.joint, ranges)

    def of_table(self, statistics: Tensor) -> Tensor | None:
        """Return the table's part of the statistics; None without a table."""
        if self.schema is None or self.label is None:
            return statistics if self.schema is not None else None
        numeric, codes = self._split(statistics)
        return torch.cat([numeric[:, :-1].flatten(), codes])

    def scale(self, statistics: Tensor) -> Scale | Intervals | None:
        """Return what the labels are standardised by; None where they are taken as they are.

        Returns:
            The mean, and the deviation of the population, 1 where all labels are equal; of times
            their intervals.
        """
        if self.label is None:
            return None
        count, _, total, squares = self._split(statistics)[0][:, -1].tolist()
        if not count:
            raise UnseenError(
                "no training site has an event after time 0, of which intervals could be made.",
                remedy="Check the column of the event, or name the ends: hazards(cuts=[...]).",
            )
        mean = total / count
        variance = squares / count - mean * mean
        deviation = 1.0 if variance <= FLAT * squares / count else variance**0.5
        if self.intervals:
            return Intervals.of_moments(mean, deviation, self.intervals)
        return Scale(mean, deviation)

    def _split(self, statistics: Tensor) -> tuple[Tensor, Tensor]:
        """The numeric part [4, M + 1], the labels last, and the counts of codes."""
        size = self.joint.parts[0]
        return statistics[:size].view(4, len(self.joint.numeric)), statistics[size:]
