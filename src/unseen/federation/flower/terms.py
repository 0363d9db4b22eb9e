"""What the sites tell of their data, in names only, and what they agree on before any training.

In one process a data set's classes, categories and levels are read off all domains at once. Here
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
    """What one site tells: names and shapes, no value of any example and no count.

    classes: None for regression; columns: name -> what it holds, none for other data than tables;
    categories and levels: names of the codes by column; shape: of one raw input; digest: sixteen
    digits that change with the data; stand_in: whether they are a synthetic stand-in; standardise:
    what numbers to predict are called that are to be standardised.
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
        """The facts of a data set that holds the site's one domain."""
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
    def read(cls, told: Mapping[str, Any]) -> Facts:
        """The facts from what JSON made of them."""
        return cls(
            **{
                **told,
                "classes": None if told["classes"] is None else tuple(told["classes"]),
                "categories": {k: tuple(v) for k, v in told["categories"].items()},
                "levels": {k: tuple(v) for k, v in told["levels"].items()},
                "shape": tuple(told["shape"]),
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
    def agree(cls, told: Sequence[Facts]) -> Terms:
        """The union of what the sites told; refuses, by their names, sites that do not fit."""
        first = told[0]
        for other in told[1:]:
            _same("data set", first, other, first.data, other.data)
            _same("columns", first, other, sorted(first.columns), sorted(other.columns))
            _same("shape of inputs", first, other, first.shape, other.shape)
            kind, found = first.classes is None, other.classes is None
            _same("numbers as labels", first, other, kind, found)
            names = first.standardise, other.standardise
            _same("labels to standardise", first, other, *names)
        table = bool(first.columns)
        classes = None if first.classes is None else _classes(told, table)
        return cls(first.data, classes, _schema(told) if table else None, _levels(told, table),
                   first.shape, first.standardise)  # fmt: skip

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Terms:
        """The terms from what JSON made of them."""
        schema = told["schema"]
        if schema is not None:
            categories = {k: tuple(v) for k, v in schema["categories"].items()}
            schema = Schema(tuple(schema["columns"]), categories, tuple(schema["flags"]))
        classes = None if told["classes"] is None else tuple(told["classes"])
        levels = {k: tuple(v) for k, v in told["levels"].items()}
        shape = tuple(told["shape"])
        return cls(told["data"], classes, schema, levels, shape, told.get("standardise"))

    def empty(self) -> DataSet:
        """A data set of no domain, with the names that the sites agreed on."""
        return DataSet(
            self.data, (), self.classes, "", "", "", self.schema, self.levels,
            standardise=self.standardise,
        )  # fmt: skip

    def coded(self, data: DataSet) -> DataSet:
        """A site's data set with the codes of these terms."""
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
        own: Domain = replace(domain, x=x, y=y, meta=meta)
        return replace(
            data, domains=(own,), classes=self.classes, schema=self.schema, levels=self.levels
        )


def _same(what: str, first: Facts, other: Facts, expected: object, found: object) -> None:
    if expected != found:
        raise UnseenError(
            f"sites {first.site!r} and {other.site!r} do not fit together: {what} {expected} at "
            f"the one, {found} at the other."
        )


def _classes(told: Sequence[Facts], table: bool) -> tuple[str, ...]:
    if told[0].data == "folder" and any(other.classes != told[0].classes for other in told):
        return tuple(sorted({name for facts in told for name in facts.classes or ()}))
    if table:
        return coded([name for facts in told for name in facts.classes or ()])[0]
    for other in told[1:]:
        _same("classes", told[0], other, told[0].classes, other.classes)
    return told[0].classes or ()


def _schema(told: Sequence[Facts]) -> Schema:
    categories, flags = {}, []
    for name in told[0].columns:
        kinds = {facts.columns[name]: facts.site for facts in told}
        kinds.pop(NOTHING, None)
        if len(kinds) > 1:
            (one, site), (other, second) = list(kinds.items())[:2]
            raise UnseenError(
                f"column {name!r} is a {one} at site {site!r} and a {other} at {second!r}. Name "
                "it in the option 'categorical', or the stray word in 'missing', of the study's "
                "data set."
            )
        if CATEGORY in kinds:
            names = [c for facts in told for c in facts.categories.get(name, ())]
            categories[name] = coded(names)[0]
        if FLAG in kinds:
            flags.append(name)
    return Schema(tuple(told[0].columns), categories, tuple(flags))


def _levels(told: Sequence[Facts], table: bool) -> dict[str, tuple[str, ...]]:
    levels = {}
    for name in told[0].levels:
        if not table:
            for other in told[1:]:
                expected, found = told[0].levels[name], other.levels.get(name)
                _same(f"levels of {name}", told[0], other, expected, found)
            levels[name] = told[0].levels[name]
            continue
        every = [level for facts in told for level in facts.levels.get(name, ())]
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
                "federation begun with this site would know it: start it anew in another folder."
            )
    return torch.tensor([*(index[identity(name)] for name in names), -1])


def _columns(own: Schema, agreed: Schema, x: Tensor, where: str) -> Tensor:
    """A raw table [N, C] in the agreed order of columns and with the agreed codes."""
    parts = []
    for name in agreed.columns:
        values = x[:, own.columns.index(name)]
        if name in agreed.categories and name in own.categories:
            what = f"category of {name}"
            codes = _table(own.categories[name], agreed.categories[name], what, where)
            known = codes[values.nan_to_num(-1).long()].double()
            values = known.masked_fill(values.isnan(), math.nan)
        parts.append(values)
    return torch.stack(parts, dim=1)
