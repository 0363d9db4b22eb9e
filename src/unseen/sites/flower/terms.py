"""What both ends of a message agree on, and what the sites agree on before any training.

Sites tell of their data in names only. In one process a data set's classes, categories and levels
are read off all domains together. Here each site tells its own, and their union, in the same order,
is what all of them code by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from unseen.core.vector import Model
from unseen.data.dataset import DataSet
from unseen.data.tables.cells import identity
from unseen.data.tables.encoding import Schema
from unseen.data.tables.hashing import Hashed
from unseen.data.tables.label_column import check_positive, positive_last
from unseen.data.tables.sheet import coded
from unseen.errors import UnseenError

#: Changes whenever a message is made or read otherwise.
PROTOCOL = 14
STATISTICS = "statistics"
REFUSED, FAILED = "refused", "failed"
#: Of a refusal: the rule of the site that it follows from; and of every answer: its line in the
#: site's own ledger, as number and hash.
RULE, ENTRY = "rule", "ledger"
#: Of a channel: prefixes of sealed rows and of what goes along, and a question about such rows.
SEALED, CARGO, ASK = "sealed/", "carried/", "channel"
#: Of the model that a study ends with: what it does at a site, and its directory there.
MEASURE, KEEP = "measure", "keep"
#: What a site knows of a column of a table: nothing, if all of its cells are missing.
NUMBER, CATEGORY, FLAG, NOTHING = "number", "category", "flag", "nothing"


class Refused(UnseenError):
    """What the site will not do. The message is about the protocol, and goes to the server.

    Attributes:
        rule: The rule of site.toml that it follows from, or `protocol` or `study`.
    """

    def __init__(self, what: str = "", rule: str = "protocol", remedy: str = "") -> None:
        super().__init__(what, remedy=remedy)
        self.rule = rule


def fingerprint(model: Model) -> str:
    """Return digits that differ whenever two models' parameters or buffers lie otherwise."""
    return f"{model.layout.fingerprint}/{model.buffer_layout.fingerprint}"


@dataclass(frozen=True)
class Facts:
    """What one site says of its data: names and shapes.

    The names of classes, categories and levels are values that occur in the data. They leave only
    as the site's own rules allow, see `unseen.sites.flower.gate`.

    Attributes:
        site: The site's name.
        role: `train` or `evaluate`.
        data: Name of the data set.
        classes: Names of the classes; None for regression.
        columns: Name -> what the column holds; empty for other data than tables.
        categories: Column -> names of its codes, of a table's inputs.
        levels: Column -> names of its codes, of what is known of the examples beyond that.
        shape: Of one raw input.
        digest: Sixteen digits that change with the data.
        versions: What the site runs.
        stand_in: Whether the data are a synthetic stand-in.
        standardise: Name of the number to predict, where it is to be standardised.
        texts: Columns of text -> how their words are hashed.
        examples: How many it has, which no reply may exceed; None where no number leaves.
        times: Of times until an event: what time and event are called.
        masks: Whether every pixel of an image has a class.
        positive: Of two classes, the one that metrics look for, where the study names it.
    """

    site: str
    role: str
    data: str
    classes: tuple[str, ...] | None
    columns: Mapping[str, str]
    categories: Mapping[str, tuple[str, ...]]
    levels: Mapping[str, tuple[str, ...]]
    shape: tuple[int, ...]
    digest: str
    versions: Mapping[str, str] = field(default_factory=dict)
    stand_in: bool = False
    standardise: str | None = None
    texts: Mapping[str, Hashed] = field(default_factory=dict)
    examples: int | None = None
    times: tuple[str, str] | None = None
    masks: bool = False
    positive: str | None = None

    @classmethod
    def of(
        cls, data: DataSet, role: str, digest: str, versions: Mapping[str, str],
        counted: bool = True,
    ) -> Facts:  # fmt: skip
        """Return the facts of a data set that holds the site's one domain."""
        (domain,) = data.domains
        schema, columns = data.schema or Schema(()), kinds_of(data)
        categories = {n: schema.categories[n] for n in columns if columns[n] == CATEGORY}
        return cls(
            domain.name, role, data.name, data.classes, columns, categories, data.levels,
            tuple(domain.x.shape[1:]), digest, versions, data.stand_in, data.standardise,
            schema.texts, len(domain.y) if counted else None, data.times, data.masks,
            data.positive,
        )  # fmt: skip

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Facts:
        return FACTS.validate_python(fields)


FACTS = TypeAdapter(Facts)
#: What to do about sites that differ, and about columns that one of them lacks.
ALIGN = "Make the files alike and start again, or leave one of these sites out."
ALIGN_COLUMNS = (
    "Rename what is spelled in two ways. A column that one site alone has is not read there once "
    "[columns] in its site.toml lists the others."
)
#: What must be the same at all sites, beside the names of columns.
ALIKE: Mapping[str, Callable[[Facts], object]] = {
    "data set": attrgetter("data"),
    "texts": attrgetter("texts"),
    "shape of inputs": attrgetter("shape"),
    "numbers as labels": lambda facts: facts.classes is None,
    "labels to standardise": attrgetter("standardise"),
    "columns of time and event": attrgetter("times"),
    "masks as labels": attrgetter("masks"),
    "positive class": attrgetter("positive"),
}


@dataclass(frozen=True)
class Terms:
    """What all sites code their data by.

    Each is as in `Facts`.
    """

    data: str
    classes: tuple[str, ...] | None
    schema: Schema | None
    levels: Mapping[str, tuple[str, ...]]
    shape: tuple[int, ...]
    standardise: str | None = None
    times: tuple[str, str] | None = None
    masks: bool = False

    @classmethod
    def agree(cls, sites: Sequence[Facts]) -> Terms:
        """Return the union of what the sites told, or name two that do not fit together."""
        for what, value in ALIKE.items():
            _same(what, sites, value)
            if what == "data set":
                _same_columns(sites)
        first, table = sites[0], bool(sites[0].columns or sites[0].texts)
        classes = None if first.classes is None else _classes(sites, table)
        return cls(first.data, classes, _schema(sites) if table else None, _levels(sites, table),
                   first.shape, first.standardise, first.times, first.masks)  # fmt: skip

    def empty(self) -> DataSet:
        """Return a data set of no domain, with the names that the sites agreed on."""
        own, scale = (self.classes, "", "", "", self.schema, self.levels), self.standardise
        return DataSet(self.data, (), *own, standardise=scale, masks=self.masks, times=self.times)

    def check(self, data: DataSet) -> None:
        """Refuse terms that read a site's data as anything else than the site does.

        A number that is read as a category would leave as a count of each of its values.
        """
        own, agreed = data.schema, self.schema
        if (own is None) != (agreed is None):
            raise Refused("the terms differ from the site's data: one is a table.", "study")
        alike = {
            "data set": (self.data, data.name), "masks": (self.masks, data.masks),
            "numbers as labels": (self.classes is None, data.classes is None),
            "labels to standardise": (self.standardise, data.standardise),
            "columns of time and event": (self.times, data.times),
            "levels": (sorted(self.levels), sorted(data.levels)),
        }  # fmt: skip
        if own is not None and agreed is not None:
            alike["texts"] = agreed.texts, own.texts
            alike["columns"] = sorted(agreed.columns), sorted(own.columns)
            for name, kind in kinds_of(data).items():
                if kind != NOTHING:
                    alike[f"column {name!r}"] = kind_of(name, agreed), kind
        for what, (server, site) in alike.items():
            if server != site:
                raise Refused(
                    f"the terms differ from the site's data: {what} is {server!r} in the terms "
                    f"and {site!r} here.", "study",
                )  # fmt: skip

    def coded(self, data: DataSet) -> DataSet:
        """Return a site's data set with the codes of these terms."""
        self.check(data)
        (domain,) = data.domains
        y, x, where = domain.y, domain.x, f"site {domain.name!r}"
        if self.classes is not None and data.classes is not None:
            y = _table(data.classes, self.classes, "class", where)[y]
        if self.schema is not None and data.schema is not None:
            x = _columns(data.schema, self.schema, domain.x, where)
        meta = dict(domain.meta)
        for name, codes in domain.meta.items():
            if data.levels.get(name) != self.levels[name]:
                meta[name] = _table(data.levels[name], self.levels[name], name, where)[codes]
        data = replace(data, domains=(replace(domain, x=x, y=y, meta=meta),))
        return replace(data, classes=self.classes, schema=self.schema, levels=self.levels)


def kind_of(name: str, schema: Schema) -> str:
    """Return what a column of a table holds where it has values."""
    if name in schema.categories:
        return CATEGORY
    return FLAG if name in schema.flags else NUMBER


def kinds_of(data: DataSet) -> dict[str, str]:
    """Return what each column of a site's table holds; nothing of other data."""
    (domain,) = data.domains
    schema, kinds = data.schema or Schema(()), {}
    for j, name in enumerate(schema.columns):
        kind = kind_of(name, schema)
        empty = kind == NUMBER and bool(domain.x[:, j].isnan().all())
        kinds[name] = NOTHING if empty else kind
    return kinds


def _same(what: str, sites: Sequence[Facts], value: Callable[[Facts], object]) -> None:
    first, *others = sites
    for other in others:
        if value(first) != value(other):
            values = f"{value(first)} at the one, {value(other)} at the other"
            names = f"sites {first.site!r} and {other.site!r}"
            raise UnseenError(f"{names} do not fit together: {what} {values}.", remedy=ALIGN)


def _same_columns(sites: Sequence[Facts]) -> None:
    first, *others = sites
    for other in others:
        here, there = set(first.columns), set(other.columns)
        alone = (first.site, sorted(here - there)), (other.site, sorted(there - here))
        own = [f"{site!r} alone has {', '.join(names)}" for site, names in alone if names]
        if own:
            names = f"sites {first.site!r} and {other.site!r}"
            what = f"{names} do not fit together: of the columns {' and '.join(own)}."
            raise UnseenError(what, remedy=ALIGN_COLUMNS)


def _classes(sites: Sequence[Facts], table: bool) -> tuple[str, ...]:
    every = [name for facts in sites for name in facts.classes or ()]
    if table:
        classes = positive_last(coded(every)[0], sites[0].positive)
        check_positive(classes, sites[0].positive)
        return classes
    if sites[0].data == "folder" and any(other.classes != sites[0].classes for other in sites):
        return tuple(sorted({*every}))
    _same("classes", sites, attrgetter("classes"))
    return sites[0].classes or ()


def _schema(sites: Sequence[Facts]) -> Schema:
    categories, flags = {}, []
    for name in sites[0].columns:
        kinds = {facts.columns[name]: facts.site for facts in sites}
        kinds.pop(NOTHING, None)
        if len(kinds) > 1:
            (one, site), (other, second) = list(kinds.items())[:2]
            what = f"column {name!r} is a {one} at site {site!r} and a {other} at {second!r}."
            remedy = "Name it in the data set's 'categorical', or the stray word in 'missing'."
            raise UnseenError(what, remedy=remedy)
        if CATEGORY in kinds:
            names = [c for facts in sites for c in facts.categories.get(name, ())]
            categories[name] = coded(names)[0]
        if FLAG in kinds:
            flags.append(name)
    return Schema(tuple(sites[0].columns), categories, tuple(flags), sites[0].texts)


def _levels(sites: Sequence[Facts], table: bool) -> dict[str, tuple[str, ...]]:
    names = sites[0].levels
    if not table:
        _same("levels", sites, lambda facts: {name: facts.levels.get(name) for name in names})
        return dict(names)
    levels = {}
    for name in names:
        every = [level for facts in sites for level in facts.levels.get(name, ())]
        codes = coded([level for level in every if level != "missing"])[0]
        levels[name] = (*codes, "missing") if "missing" in every else codes
    return levels


def _table(names: Sequence[str], agreed: Sequence[str], what: str, where: str) -> Tensor:
    """The agreed code of each of a site's codes; the last entry serves code −1."""
    index = {identity(name): code for code, name in enumerate(agreed)}
    for name in names:
        if identity(name) not in index:
            fault = f"{where} has the {what} {name!r}; agreed were {', '.join(agreed) or 'none'}."
            raise UnseenError(fault, remedy="Start again in another folder, with this site.")
    return torch.tensor([*(index[identity(name)] for name in names), -1])


def _columns(schema: Schema, agreed: Schema, x: Tensor, where: str) -> Tensor:
    """A raw table [N, C] in the agreed order of columns and with the agreed codes.

    Texts are in the order of the study's settings at all sites.
    """
    parts = []
    for name in agreed.columns:
        values = x[:, schema.columns.index(name)]
        if name in agreed.categories and name in schema.categories:
            names = schema.categories[name], agreed.categories[name]
            codes = _table(*names, f"category of {name}", where)[values.nan_to_num(-1).long()]
            values = codes.double().masked_fill(values.isnan(), math.nan)
        parts.append(values[:, None])
    return torch.cat([*parts, x[:, len(schema.columns) :]], dim=1)
