"""What a model takes: how image files and the rows of a csv file become its inputs."""

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.core.templates import render
from unseen.data import info
from unseen.data.dataset import DataSet
from unseen.data.heart import ZERO_IS_MISSING
from unseen.data.image_files.images import View
from unseen.data.tables.cells import Cells, blank, identity
from unseen.data.tables.column_texts import Texts
from unseen.data.tables.dialect import Dialect
from unseen.data.tables.encoding import FLAT, Schema, encode, feature_names, indicators
from unseen.data.tables.hashing import Hashed
from unseen.data.tables.sheet import MISSING, codes_of, names_of, with_usual
from unseen.data.tables.spellings import LARGEST
from unseen.errors import UnseenError
from unseen.expression import parse

#: The code behind a column's categories for one that no site knew of: it has no feature.
UNSEEN = "(unseen)"
#: Dialects that need no mention.
USUAL = (Dialect(), Dialect(",", "."), Dialect(",", ".", "utf-8"))
TRUTHS = {"false": 0.0, "true": 1.0}
FLAGS = {"0": 0.0, "no": 0.0, "1": 1.0, "yes": 1.0, **TRUTHS}


@dataclass(frozen=True)
class ImageInputs:
    """Image files: opened, resized, and read as numbers in [0, 1]."""

    view: View

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    def to_json(self) -> dict[str, Any]:
        return described("images", self, **asdict(self.view))


@dataclass(frozen=True)
class RawRows:
    """Rows as numbers.

    Attributes:
        x: Numbers, codes and the counts of words [N, C], NaN where missing.
        faults: Row -> the first of its cells that is not what its column holds.
        unseen: Row -> its cells with a category that no training site had.
    """

    x: NDArray[np.float64]
    faults: dict[int, str]
    unseen: dict[int, list[str]]


@dataclass(frozen=True)
class TableInputs:
    """Rows of a csv file, encoded with the training sites' statistics; see `datasets.encoding`.

    Attributes:
        schema: The columns.
        statistics: Sums over the training sites' rows.
        missing: Cells that hold no value.
        blank: Columns in which 0 means that there is no value.
        label: The column of the label in training, if the data set was a csv file.
        domain: The column of the domain in training.
        dialect: How the training file was written, as files of new rows may be.
    """

    schema: Schema
    statistics: Tensor
    missing: tuple[str, ...] = MISSING
    blank: tuple[str, ...] = ()
    label: str | None = None
    domain: str | None = None
    dialect: Dialect = field(default_factory=Dialect)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return (len(self.features),)

    @cached_property
    def features(self) -> tuple[str, ...]:
        return feature_names(self.schema, self.statistics)

    @cached_property
    def wide(self) -> tuple[Schema, Tensor]:
        """The schema with one more category per column, which occurs nowhere."""
        categories = {c: (*names, UNSEEN) for c, names in self.schema.categories.items()}
        numeric = 4 * len(self.schema.numeric)
        lengths = [len(names) + 1 for _, names in self.schema.categorical]
        first, *counts = self.statistics.split([numeric, *lengths])
        parts = [first]
        for (j, _), count in zip(self.schema.categorical, counts, strict=True):
            zero = count.new_zeros(int(self.schema.columns[j] in categories))
            parts += [count[:-1], zero, count[-1:]]
        schema = replace(self.schema, categories=categories)
        return schema, torch.cat(parts)

    @cached_property
    def codes(self) -> dict[str, dict[Any, int]]:
        """Categorical column -> what a cell of each category is equal to -> its code."""
        levels = self.schema.categories.items()
        return {column: codes_of(names) for column, names in levels}

    @cached_property
    def is_missing(self) -> Callable[[str], bool]:
        """Whether a cell, without the blanks around it, holds no value."""
        return blank(self.missing)

    @cached_property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """Categorical column -> the categories that occurred at a training site."""
        _, codes = indicators(self.schema, self.statistics)
        columns = [self.schema.columns[j] for j, _ in self.schema.categorical]
        by_column = dict(zip(columns, codes, strict=True))
        levels = self.schema.categories.items()
        return {
            c: tuple(n for i, n in enumerate(names) if i in by_column[c]) for c, names in levels
        }

    def values(self, columns: Mapping[str, Texts]) -> RawRows:
        """Return rows as numbers and codes, what is wrong with them, and what is unseen.

        Args:
            columns: Of each column its cells.
        """
        rows = len(next(iter(columns.values())))
        x = np.full((self.schema.width, rows), math.nan).T  # a column's values side by side
        raw = RawRows(x, {}, defaultdict(list))
        for j, column in enumerate(self.schema.columns):
            if column in self.codes:
                values = self._codes(column, columns[column], raw.unseen)
            else:
                values = self._numbers(column, columns[column], raw.faults)
            x[:, j] = np.where(values == 0, math.nan, values) if column in self.blank else values
        end = len(self.schema.columns)
        for column, hashed in self.schema.texts.items():
            x[:, end : end + hashed.features] = hashed([*self._cells(columns[column])])
            end += hashed.features
        return raw

    def _cells(self, texts: Texts) -> Cells:
        return replace(texts.cells, decimal=self.dialect.decimal).without(self.missing)

    def _codes(
        self, column: str, texts: Texts, unseen: dict[int, list[str]]
    ) -> NDArray[np.float64]:
        """Return the code of each row; notes the rows with what no training site had."""
        names, own, levels = self.schema.categories[column], self.codes[column], self.levels[column]
        cells = self._cells(texts)
        codes = [own.get(identity(text), len(names)) for text in cells.plain]
        usual = [code < len(names) and names[code] in levels for code in codes]
        for row in np.flatnonzero(cells.rows_of(~np.array(usual, dtype=bool))).tolist():
            unseen[row].append(f"{column} = {cells[row]!r}")
        return np.array([*codes, math.nan], dtype=np.float64)[cells.codes]

    def _numbers(self, column: str, texts: Texts, faults: dict[int, str]) -> NDArray[np.float64]:
        """Return the number of each row; notes the rows with something else."""
        flag = column in self.schema.flags
        floats = None if flag else texts.floats(self.missing, self.dialect.decimal)
        if floats is not None and not (np.abs(floats) > LARGEST).any():
            return floats
        cells, words = self._cells(texts), FLAGS if flag else TRUTHS
        fit = np.abs(cells.values) <= LARGEST
        values = np.where(fit & (not flag), cells.values, math.nan)
        for i in np.flatnonzero(np.isnan(values)).tolist():
            values[i] = words.get(cells.texts[i].lower(), math.nan)
        comma = " with a decimal comma" if self.dialect.decimal == "," else ""
        kind = "neither 0, 1, yes nor no" if flag else f"not a number{comma}"
        for row in np.flatnonzero(cells.rows_of(np.isnan(values))).tolist():
            large = not flag and np.isfinite(cells.values[cells.codes[row]])
            why = f"beyond {LARGEST:g}, whose squares overflow" if large else kind
            faults.setdefault(row, f"{column} = {cells[row]!r} is {why}")
        return np.append(values, math.nan)[cells.codes]

    def identity(self, cell: str) -> tuple[bool, Decimal, str]:
        """Return what cells of one value have in common."""
        return identity(self.dialect.plain(cell))

    def encode(self, rows: NDArray[np.float64] | Sequence[Sequence[float]]) -> Tensor:
        return encode(*self.wide, torch.as_tensor(rows, dtype=torch.float64))

    def recode(self, schema: Schema, x: Tensor) -> Tensor:
        """Return the inputs for a raw table that was read again, whose codes may differ.

        Args:
            schema: The table's columns.
            x: The table [N, C].
        """
        if lacking := [c for c in self.schema.names if c not in schema.names]:
            raise UnseenError(f"the data lack the columns {', '.join(lacking)}.")
        if schema.texts != self.schema.texts:
            raise UnseenError(
                f"the data's texts are {schema.texts}; the model's are {self.schema.texts}."
            )
        columns = []
        for column in self.schema.columns:
            values = x[:, schema.columns.index(column)].clone()
            if column in self.codes:
                own, names = self.codes[column], schema.categories.get(column, ())
                codes = torch.tensor([float(own.get(identity(n), len(own))) for n in names])
                present = ~values.isnan()
                values[present] = codes.double()[values[present].long()]
            columns.append(values[:, None])
        return encode(*self.wide, torch.cat([*columns, x[:, len(schema.columns) :]], 1))

    def to_json(self) -> dict[str, Any]:
        content = {
            "columns": [self._column(c) for c in self.schema.names],
            "missing": list(self.missing), "zero is missing in": list(self.blank),
            "label": self.label, "domain": self.domain,
            "statistics": self.statistics.tolist(), "features": list(self.features),
        }  # fmt: skip
        dialect = {} if self.dialect in USUAL else {"dialect": asdict(self.dialect)}
        return described("table", self, **content) | dialect

    def _column(self, column: str) -> dict[str, Any]:
        if column in self.schema.categories:
            names = list(self.schema.categories[column])
            present = list(self.levels[column])
            return {"name": column, "kind": "category", "categories": names, "known": present}
        if column in self.schema.flags:
            return {"name": column, "kind": "flag"}
        if column in self.schema.texts:
            return {"name": column, "kind": "text", **asdict(self.schema.texts[column])}
        mean, deviation = self.scaling[column]
        return {"name": column, "kind": "number", "mean": mean, "deviation": deviation}

    @cached_property
    def numeric(self) -> list[str]:
        return [self.schema.columns[j] for j in self.schema.numeric]

    @cached_property
    def moments(self) -> dict[str, tuple[float, float]]:
        """Mean and deviation of each numeric column known in training; 0 where it is constant."""
        count = len(self.numeric)
        sums = self.statistics[: 4 * count].view(4, count).T.tolist()
        moments = {}
        for name, (n, _, s, q) in zip(self.numeric, sums, strict=True):
            if n > 0.5:
                mean, variance = s / n, q / n - (s / n) * (s / n)
                moments[name] = mean, 0.0 if variance <= FLAT * q / n else variance**0.5
        return moments

    @cached_property
    def scaling(self) -> dict[str, tuple[float | None, float]]:
        """Numeric column -> the mean and the deviation that it is standardised by."""
        pairs = ((name, self.moments.get(name, (None, 0.0))) for name in self.numeric)
        return {name: (mean, deviation or 1.0) for name, (mean, deviation) in pairs}


@dataclass(frozen=True)
class Arrays:
    """Inputs that no file of images or rows holds; `why` says what they are."""

    shape: tuple[int, ...]
    why: str

    def to_json(self) -> dict[str, Any]:
        return described("arrays", self, why=self.why)


Inputs = ImageInputs | TableInputs | Arrays


def described(kind: str, inputs: Inputs, **content: Any) -> dict[str, Any]:
    """Return a description with what all kinds have: the shape, and in words how one is made."""
    steps = render("unseen.serving", "steps.jinja", kind=kind, inputs=inputs)
    return {"kind": kind, **content, "shape": list(inputs.shape), "steps": steps.splitlines()}


def inputs_of(
    expression: str, data: DataSet, shape: tuple[int, ...], statistics: Tensor | None
) -> Inputs:
    """Return what a model takes.

    Args:
        expression: The data set, as the study names it.
        data: The data set.
        shape: The shape of one input.
        statistics: Sums over the training sites' rows, for a table.
    """
    (call,) = parse(expression)
    entry = info(call.name)
    options = {n: p.default for n, p in inspect.signature(entry.loader).parameters.items()}
    options |= call.arguments
    if data.schema is not None and statistics is not None:
        missing = with_usual(options.get("missing", ()))
        blank = ZERO_IS_MISSING if call.name == "heart-disease" else ()
        dialect = Dialect(*(options.get(n) for n in ("separator", "decimal", "encoding")))
        label, domain = options.get("label"), options.get("domain")
        return TableInputs(
            data.schema, statistics, missing, blank, label, domain, data.dialect or dialect
        )
    if (entry.layout is not None or call.name in ("folder", "masks")) and len(shape) == 3:
        return ImageInputs(View(shape[1], shape[0] == 1, options.get("crop", "none")))
    return Arrays(shape, f"the arrays of {call.name}, which no single file of yours holds")


def from_json(spec: Mapping[str, Any]) -> Inputs:
    """Return the inputs that `to_json` describes."""
    if spec["kind"] == "images":
        return ImageInputs(View(spec["size"], spec["grey"], spec["crop"]))
    if spec["kind"] == "arrays":
        return Arrays(tuple(spec["shape"]), spec["why"])
    columns = spec["columns"]
    schema = Schema(
        tuple(c["name"] for c in columns if c["kind"] != "text"),
        {c["name"]: tuple(c["categories"]) for c in columns if c["kind"] == "category"},
        tuple(c["name"] for c in columns if c["kind"] == "flag"),
        {c["name"]: Hashed(c["features"], c["pairs"]) for c in columns if c["kind"] == "text"},
    )
    statistics = torch.tensor(spec["statistics"], dtype=torch.float64)
    return TableInputs(
        schema, statistics, names_of(spec["missing"]), tuple(spec["zero is missing in"]),
        spec["label"], spec["domain"], Dialect(**spec.get("dialect", {})),
    )  # fmt: skip
