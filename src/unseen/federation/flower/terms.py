"""What the sites tell of their data, in names only, and what they agree on before any training.

In one process a data set's classes, categories and levels are read off all domains together. Here
each site tells its own, and their union, in the same order, is what all of them code by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from unseen.datasets.dataset import DataSet, Domain
from unseen.datasets.encoding import Schema
from unseen.datasets.sheet import coded, identity
from unseen.errors import UnseenError

#: What a site knows of a column of a table: nothing, if all of its cells are missing.
NUMBER, CATEGORY, FLAG, NOTHING = "number", "category", "flag", "nothing"


@dataclass(frozen=True)
class Facts:
    """What one site says of its data: names and shapes, no value of any example and no count.

    Attributes:
        classes: Names of the classes; None for regression.
        columns: Name -> what the column holds; empty for other data than tables.
        categories, levels: Names of the codes by column.
        shape: Of one raw input.
        digest: Sixteen digits that change with the data.
        stand_in: Whether the data are a synthetic stand-in.
        standardise: Name of the number to predict, where it is to be standardised.
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

    @classmethod
    def of(cls, data: DataSet, role: str, digest: str, versions: Mapping[str, str]) -> Facts:
        """Return the facts of a data set that holds the site's one domain."""
        (domain,) = data.domains
        columns, categories = {}, {}
        if data.schema is not None:
            for j, name in enumerate(data.schema.columns):
                unknown = bool(domain.x[:, j].isnan().all())
                columns[name] = NOTHING if unknown else NUMBER
                if name in data.schema.flags:
                    columns[name] = FLAG
                if name in data.schema.categories:
                    columns[name] = CATEGORY
                    categories[name] = data.schema.categories[name]
        shape = tuple(domain.x.shape[1:])
        return cls(
            domain.name, role, data.name, data.classes, columns, categories, data.levels,
            shape, digest, versions, data.stand_in, data.standardise,
        )  # fmt: skip

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Facts:
        """Return the facts from what JSON made of them."""
        return cls(
            **{
                **fields,
                "classes": None if fields["classes"] is None else tuple(fields["classes"]),
                "categories": {k: tuple(v) for k, v in fields["categories"].items()},
                "levels": {k: tuple(v) for k, v in fields["levels"].items()},
                "shape": tuple(fields["shape"]),
            }
        )


@dataclass(frozen=True)
class Terms:
    """What all sites code their data by."""

    data: str
    classes: tuple[str, ...] | None
    schema: Schema | None
    levels: Mapping[str, tuple[str, ...]]
    shape: tuple[int, ...]
    standardise: str | None = None

    @classmethod
    def agree(cls, sites: Sequence[Facts]) -> Terms:
        """The union of what the sites told; refuses, by their names, sites that do not fit."""
        first = sites[0]
        for other in sites[1:]:
            _same("data set", first, other, first.data, other.data)
            _same("columns", first, other, sorted(first.columns), sorted(other.columns))
            _same("shape of inputs", first, other, first.shape, other.shape)
            kind, other_kind = first.classes is None, other.classes is None
            _same("numbers as labels", first, other, kind, other_kind)
            names = first.standardise, other.standardise
            _same("labels to standardise", first, other, *names)
        table = bool(first.columns)
        classes = None if first.classes is None else _classes(sites, table)
        return cls(first.data, classes, _schema(sites) if table else None, _levels(sites, table),
                   first.shape, first.standardise)  # fmt: skip

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Terms:
        """Return the terms from what JSON made of them."""
        schema = fields["schema"]
        if schema is not None:
            categories = {k: tuple(v) for k, v in schema["categories"].items()}
            schema = Schema(tuple(schema["columns"]), categories, tuple(schema["flags"]))
        classes = None if fields["classes"] is None else tuple(fields["classes"])
        levels = {k: tuple(v) for k, v in fields["levels"].items()}
        shape = tuple(fields["shape"])
        return cls(fields["data"], classes, schema, levels, shape, fields.get("standardise"))

    def empty(self) -> DataSet:
        """Return a data set of no domain, with the names that the sites agreed on."""
        return DataSet(
            self.data, (), self.classes, "", "", "", self.schema, self.levels,
            standardise=self.standardise,
        )  # fmt: skip

    def coded(self, data: DataSet) -> DataSet:
        """Return a site's data set with the codes of these terms."""
        (domain,) = data.domains
        where = f"site {domain.name!r}"
        y, x = domain.y, domain.x
        if self.classes is not None and data.classes is not None:
            y = _table(data.classes, self.classes, "class", where)[y]
        if self.schema is not None and data.schema is not None:
            x = _columns(data.schema, self.schema, domain.x, where)
        meta = {
            name: _table(data.levels[name], self.levels[name], f"{name}", where)[codes]
            if data.levels.get(name) != self.levels[name]
            else codes
            for name, codes in domain.meta.items()
        }
        recoded: Domain = replace(domain, x=x, y=y, meta=meta)
        return replace(
            data, domains=(recoded,), classes=self.classes, schema=self.schema, levels=self.levels
        )


def _same(what: str, first: Facts, other: Facts, expected: object, actual: object) -> None:
    if expected != actual:
        raise UnseenError(
            f"sites {first.site!r} and {other.site!r} do not fit together: {what} {expected} at "
            f"the one, {actual} at the other."
        )


def _classes(sites: Sequence[Facts], table: bool) -> tuple[str, ...]:
    if sites[0].data == "folder" and any(other.classes != sites[0].classes for other in sites):
        return tuple(sorted({name for facts in sites for name in facts.classes or ()}))
    if table:
        return coded([name for facts in sites for name in facts.classes or ()])[0]
    for other in sites[1:]:
        _same("classes", sites[0], other, sites[0].classes, other.classes)
    return sites[0].classes or ()


def _schema(sites: Sequence[Facts]) -> Schema:
    categories, flags = {}, []
    for name in sites[0].columns:
        kinds = {facts.columns[name]: facts.site for facts in sites}
        kinds.pop(NOTHING, None)
        if len(kinds) > 1:
            (one, site), (other, second) = list(kinds.items())[:2]
            raise UnseenError(
                f"column {name!r} is a {one} at site {site!r} and a {other} at {second!r}. Name "
                "it in the option 'categorical', or the stray word in 'missing', of the study's "
                "data set."
            )
        if CATEGORY in kinds:
            names = [c for facts in sites for c in facts.categories.get(name, ())]
            categories[name] = coded(names)[0]
        if FLAG in kinds:
            flags.append(name)
    return Schema(tuple(sites[0].columns), categories, tuple(flags))


def _levels(sites: Sequence[Facts], table: bool) -> dict[str, tuple[str, ...]]:
    levels = {}
    for name in sites[0].levels:
        if not table:
            for other in sites[1:]:
                expected, actual = sites[0].levels[name], other.levels.get(name)
                _same(f"levels of {name}", sites[0], other, expected, actual)
            levels[name] = sites[0].levels[name]
            continue
        every = [level for facts in sites for level in facts.levels.get(name, ())]
        names = coded([level for level in every if level != "missing"])[0]
        levels[name] = (*names, "missing") if "missing" in every else names
    return levels


def _table(names: Sequence[str], agreed: Sequence[str], what: str, where: str) -> Tensor:
    """The agreed code of each of a site's codes; the last entry serves code −1."""
    index = {identity(name): code for code, name in enumerate(agreed)}
    for name in names:
        if identity(name) not in index:
            raise UnseenError(
                f"{where} has the {what} {name!r}; agreed were {', '.join(agreed) or 'none'}. A "
                "federation begun with this site would know it: start again in another folder."
            )
    return torch.tensor([*(index[identity(name)] for name in names), -1])


def _columns(schema: Schema, agreed: Schema, x: Tensor, where: str) -> Tensor:
    """A raw table [N, C] in the agreed order of columns and with the agreed codes."""
    parts = []
    for name in agreed.columns:
        values = x[:, schema.columns.index(name)]
        if name in agreed.categories and name in schema.categories:
            what = f"category of {name}"
            codes = _table(schema.categories[name], agreed.categories[name], what, where)
            agreed_codes = codes[values.nan_to_num(-1).long()].double()
            values = agreed_codes.masked_fill(values.isnan(), math.nan)
        parts.append(values)
    return torch.stack(parts, dim=1)
