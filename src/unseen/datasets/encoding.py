"""Tables: raw columns, the sums that clients send about them, and features made of the sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unseen.core.client import Client
from unseen.core.exchange import Reply, Turn
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model
from unseen.errors import UnseenError, nearest

#: A variance below this share of the mean square is rounding of the sums: the column is constant.
FLAT = 1e-13
#: The codes 0 and 1 of a flag.
FLAG = ("no", "yes")


@dataclass(frozen=True)
class Schema:
    """The columns of a raw table [N, C], agreed on by all sites before any data are looked at.

    A raw table holds numbers and codes; NaN stands for missing. A column that is neither
    categorical nor a flag is numeric.

    Attributes:
        columns: Names, in order.
        categories: Categorical column -> names of its codes 0, 1, ...
        flags: Columns of 0 and 1 (no and yes), which become one feature instead of an indicator for
            each of the two.
    """

    columns: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind, names in (("categorical column", self.categories), ("flag", self.flags)):
            for name in names:
                if name not in self.columns:
                    raise nearest(kind, name, self.columns)
        if both := [name for name in self.flags if name in self.categories]:
            raise UnseenError(f"{', '.join(both)} cannot be a flag and a categorical column.")

    def __repr__(self) -> str:
        # Without flags as before there were any: data sets are told apart by this text.
        flags = f", flags={self.flags!r}" if self.flags else ""
        return f"Schema(columns={self.columns!r}, categories={self.categories!r}{flags})"

    @property
    def numeric(self) -> list[int]:
        """Positions of the numeric columns."""
        coded = {*self.categories, *self.flags}
        return [j for j, name in enumerate(self.columns) if name not in coded]

    @property
    def categorical(self) -> list[tuple[int, tuple[str, ...]]]:
        """Positions of the categorical columns and flags, each with the names of its codes."""
        codes = {**self.categories, **dict.fromkeys(self.flags, FLAG)}
        return [(j, codes[name]) for j, name in enumerate(self.columns) if name in codes]

    def check(self, x: Tensor) -> None:
        """Refuse a table that has other columns, infinite numbers or codes without a name."""
        if x.ndim != 2 or x.shape[1] != len(self.columns) or not x.is_floating_point():
            raise UnseenError(
                f"a raw table has the shape [N, {len(self.columns)}] and holds floating-point "
                f"numbers; found {list(x.shape)} of type {x.dtype}."
            )
        flags = set(self.flags)
        for j, name in enumerate(self.columns):
            present = x[:, j][~x[:, j].isnan()]
            if name in flags:
                sound, kind = (present == 0) | (present == 1), "0 or 1"
            elif name in self.categories:
                size = len(self.categories[name])
                sound, kind = (
                    (present >= 0) & (present < size) & (present % 1 == 0),
                    "a code with a name",
                )
            else:
                sound, kind = present.isfinite(), "a finite number"
            if not bool(sound.all()):
                value = float(present[~sound][0])
                raise UnseenError(f"column {name!r} holds {value:g}, which is not {kind}.")


@dataclass(frozen=True)
class Sums:
    """What a client says about its table: one vector of sums over its training rows.

    statistics [size], float64: for the M numeric columns how many cells are known [M], how many are
    missing [M], Σ x [M] and Σ x² [M]; then for each categorical column and flag how often each code
    occurs and how often the cell is missing. All are sums over rows, so the sum of the clients'
    vectors is the vector of the pooled training rows, and any secure sum will do.

    The variance is later Σ x²/n − (Σ x/n)². In float64 its relative error is about 1e-16 (mean /
    standard deviation)²: harmless for years (1e-10) and for seconds since 1970 within a month
    (1e-10), useless where the offset is millions of times the spread; such a column counts as
    constant (`FLAT`). Subtract a fixed offset from it beforehand. For an approximate sum of
    relative error e, replace 1e-16 by e.
    """

    schema: Schema

    @property
    def size(self) -> int:
        """Length of the statistics."""
        counts = [len(names) + 1 for _, names in self.schema.categorical]
        return 4 * len(self.schema.numeric) + sum(counts)

    def of(self, x: Tensor) -> Tensor:
        """Return the statistics [size] of the rows of a raw table [N, C]."""
        self.schema.check(x)
        numbers = x[:, self.schema.numeric].double()
        missing = numbers.isnan()
        known = numbers.masked_fill(missing, 0)
        parts = [(~missing).sum(0), missing.sum(0), known.sum(0), known.square().sum(0)]
        for j, names in self.schema.categorical:
            codes = x[:, j].nan_to_num(len(names)).long()
            parts.append(torch.bincount(codes, minlength=len(names) + 1))
        return torch.cat([part.double() for part in parts])

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """Reply with the statistics of the client's training rows; nothing else is touched."""
        return Reply(rows={"statistics": self.of(client.split("train").x[:])}), memory


def of_ranges(schema: Schema, ranges: Mapping[str, tuple[float, float]]) -> Tensor:
    """Return statistics [size] that follow from public ranges alone, in place of the clients' sums.

    They are those of an invented table: a row at each end of every range, a row of missing cells,
    and every code once. So `encode` takes x to (x − (low + high) / 2) / ((high − low) / 2), which
    is −1 at the low end and 1 at the high one, and every indicator exists whether its code occurs
    or not. Values beyond a range are not cut.

    >>> schema = Schema(("age", "sex"), {"sex": ("f", "m")})
    >>> x = torch.tensor([[30.0, 0.0], [120.0, 1.0], [float("nan"), 1.0]])
    >>> encode(schema, of_ranges(schema, {"age": (0, 120)}), x).tolist()[:2]
    [[-0.5, 0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0, 0.0]]

    Args:
        schema: The columns.
        ranges: Numeric column -> (low, high).
    """
    wanted = [schema.columns[j] for j in schema.numeric]
    for name, (low, high) in ranges.items():
        if name not in wanted:
            raise nearest("numeric column with a range", name, wanted)
        # Narrower ones, far from 0, would drown in the rounding of squares.
        wide = high - low > 1e-6 * max(abs(low), abs(high))
        if not (wide and math.isfinite(low) and math.isfinite(high)):
            raise UnseenError(
                f"the range of the column {name!r} must be [low, high] with low below high, both "
                f"finite and not almost equal; found [{low:g}, {high:g}]."
            )
    if lacking := [name for name in wanted if name not in ranges]:
        raise UnseenError(
            f"public ranges are needed for every numeric column; missing: {', '.join(lacking)}."
        )
    ends = torch.tensor([ranges[name] for name in wanted], dtype=torch.float64).view(-1, 2)
    one, codes = torch.ones(len(ends)), sum(len(names) + 1 for _, names in schema.categorical)
    numeric = [2 * one, one, ends.sum(1), ends.square().sum(1)]
    return torch.cat([*numeric, torch.ones(codes)])


def encode(schema: Schema, statistics: Tensor, x: Tensor) -> Tensor:
    """Return features [N, F], float32, of a raw table [N, C], by the summed statistics alone.

    A numeric column becomes (x − μ)/σ with the mean and the population variance of the known
    training cells (σ = 1 where that variance is 0), a missing cell the mean, that is 0; then
    follows, for each numeric column with missing cells at a training client, 1 where the cell is
    missing. A categorical column becomes one indicator per category that occurs at a training
    client and one for a missing cell, if any is missing there; a category unseen in training is all
    zeros. A flag becomes one indicator of yes, and one for a missing cell, under the same rules:
    what a categorical column of two would give, without the indicator of no. A numeric column
    unknown to every training client is 0 everywhere, whatever the target knows of it: nothing was
    learnt about it.

    >>> schema = Schema(("age", "sex"), {"sex": ("f", "m")})
    >>> x = torch.tensor([[30.0, 0.0], [50.0, 1.0], [float("nan"), 1.0]])
    >>> statistics = Sums(schema).of(x)
    >>> feature_names(schema, statistics)
    ('age', 'age missing', 'sex=f', 'sex=m')
    >>> encode(schema, statistics, x).tolist()
    [[-1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]]

    Args:
        schema: The columns.
        statistics: The sum of the training clients' statistics [size].
        x: The raw table [N, C].
    """
    schema.check(x)
    numeric, counts = _split(schema, statistics)
    flags = set(schema.flags)
    known, lost, total, squares = numeric
    mean, mean_square = total / known, squares / known  # NaN where nothing is known
    variance = mean_square - mean.square()
    scale = torch.where(variance <= FLAT * mean_square, 1, variance.clamp(min=0).sqrt())
    numbers = x[:, schema.numeric].double()
    missing = numbers.isnan()
    parts = [((numbers - mean) / scale).masked_fill(missing | ~_occurs(known), 0)]
    parts.append(missing[:, _occurs(lost)])
    for (j, names), count in zip(schema.categorical, counts, strict=True):
        codes = x[:, j].nan_to_num(len(names))
        shown = _shown(count, schema.columns[j] in flags)
        parts.append(codes[:, None] == shown.nonzero().flatten())
    return torch.cat([part.float() for part in parts], dim=1)


def feature_names(schema: Schema, statistics: Tensor) -> tuple[str, ...]:
    """Return the names of the features [F] of `encode`.

    "age", "age missing" (a number), "thal=3", "thal missing" (categories), "aspirin=yes" (a flag).
    """
    numeric, counts = _split(schema, statistics)
    flags = set(schema.flags)
    columns = [schema.columns[j] for j in schema.numeric]
    lost = _occurs(numeric[1]).tolist()
    names = [*columns, *(f"{c} missing" for c, lost in zip(columns, lost, strict=True) if lost)]
    for (j, categories), count in zip(schema.categorical, counts, strict=True):
        column = schema.columns[j]
        labels = [*(f"{column}={category}" for category in categories), f"{column} missing"]
        shown = _shown(count, column in flags).tolist()
        names += [label for label, on in zip(labels, shown, strict=True) if on]
    return tuple(names)


def _split(schema: Schema, statistics: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The numeric part [4, M], and for each categorical column its counts, missing last."""
    size, M = Sums(schema).size, len(schema.numeric)
    if statistics.shape != (size,):
        raise UnseenError(
            f"the schema's statistics have the shape [{size}]; found {list(statistics.shape)}. "
            "Were they summed for another table?"
        )
    lengths = [len(names) + 1 for _, names in schema.categorical]
    numeric, *counts = statistics.double().split([4 * M, *lengths])
    return numeric.view(4, M), counts


def _shown(count: Tensor, flag: bool) -> Tensor:
    """Which codes of a column have an indicator; the last is that of a missing cell."""
    shown = _occurs(count)
    if flag:
        shown[0] = False
    return shown


def _occurs(count: Tensor) -> Tensor:
    """Where a count is positive; half, so that the error of an encrypted sum decides nothing."""
    return count > 0.5
