"""Tables: raw columns, the sums that clients send about them, and features made of the sums."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unseen.data.tables.hashing import Hashed
from unseen.data.tables.spellings import LARGEST
from unseen.errors import UnseenError, nearest

#: A variance below this share of the mean square is rounding of the sums: the column is constant.
FLAT = 1e-13
#: The codes 0 and 1 of a flag.
FLAG = ("no", "yes")


@dataclass(frozen=True)
class Schema:
    """The columns of a raw table [N, C], agreed on by all sites before any data are looked at.

    Attributes:
        columns: Names, in order.
        categories: Categorical column -> names of its codes 0, 1, ...
        flags: Columns of 0 and 1 (no and yes), which become one feature instead of an indicator for
            each of the two.
        texts: Columns of text, which are not among `columns` -> how their words are hashed.

    Note:
        A raw table holds numbers and codes; NaN stands for missing. A column that is neither
        categorical nor a flag is numeric. The hashed words of all texts follow behind the columns.
    """

    columns: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    texts: Mapping[str, Hashed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, names in (("categorical column", self.categories), ("flag", self.flags)):
            for name in names:
                if name not in self.columns:
                    raise nearest(kind, name, self.columns)
        if both := [name for name in self.flags if name in self.categories]:
            raise UnseenError(f"{', '.join(both)} cannot be a flag and a categorical column.")
        if both := [name for name in self.texts if name in self.columns]:
            raise UnseenError(f"{', '.join(both)} cannot be text and another column.")

    def __repr__(self) -> str:
        # Without flags and texts as before they existed: this text distinguishes data sets.
        others = f", flags={self.flags!r}" if self.flags else ""
        others += f", texts={self.texts!r}" if self.texts else ""
        return f"Schema(columns={self.columns!r}, categories={self.categories!r}{others})"

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of a csv file that are read, those of text last."""
        return (*self.columns, *self.texts)

    @property
    def width(self) -> int:
        """The number of columns of a raw table, C."""
        return len(self.columns) + sum(hashed.features for hashed in self.texts.values())

    @property
    def numeric(self) -> list[int]:
        coded = {*self.categories, *self.flags}
        return [j for j, name in enumerate(self.columns) if name not in coded]

    @property
    def categorical(self) -> list[tuple[int, tuple[str, ...]]]:
        """Positions of the categorical columns and flags, each with the names of its codes."""
        codes = {**self.categories, **dict.fromkeys(self.flags, FLAG)}
        return [(j, codes[name]) for j, name in enumerate(self.columns) if name in codes]

    @property
    def parts(self) -> list[int]:
        """Lengths of the parts of `sums`: of the numeric columns, of each categorical one."""
        return [4 * len(self.numeric), *(len(names) + 1 for _, names in self.categorical)]

    def check(self, x: Tensor) -> None:
        """Refuse a table that has other columns, infinite numbers or codes without a name."""
        if x.ndim != 2 or x.shape[1] != self.width or not x.is_floating_point():
            raise UnseenError(
                f"a raw table is floating-point of shape [N, {self.width}]; found {x.dtype} "
                f"{list(x.shape)}."
            )
        if not bool(x[:, len(self.columns) :].isfinite().all()):
            raise UnseenError(f"hashed words of {', '.join(self.texts)} are not finite numbers.")
        wrong = self._wrong(x[:, : len(self.columns)].double())
        for j in wrong.any(0).nonzero().flatten().tolist()[:1]:
            name, value = self.columns[j], float(x[wrong[:, j], j][0])
            kind = "0 or 1" if name in self.flags else "a code with a name"
            if name not in {*self.flags, *self.categories}:
                kind = f"a finite number of at most {LARGEST:g}"
            raise UnseenError(f"column {name!r} holds {value:g}, which is not {kind}.")

    def _wrong(self, values: Tensor) -> Tensor:
        """Return which cells [N, C] are no number that fits and no code with a name."""
        wrong = values.abs() > LARGEST
        places = [j for j, _ in self.categorical]
        codes, sizes = values[:, places], [len(names) for _, names in self.categorical]
        beyond = (codes < 0) | (codes >= torch.tensor(sizes, dtype=torch.float64))
        wrong[:, places] = beyond | (codes.frac().abs() > 0)
        return wrong

    def sums(self, x: Tensor) -> Tensor:
        """Return the statistics of the rows of a raw table: all that a client says about it.

        Args:
            x: The raw table [N, C].

        Returns:
            float64: for the M numeric columns how many cells are known [M], how many are missing
            [M], Σ x [M] and Σ x² [M]; then for each categorical column and flag how often each code
            occurs and how often the cell is missing. All are sums over rows, so the sum of the
            clients' vectors is the vector of the pooled rows, and any secure sum will do. Of texts
            there is nothing.

        Note:
            The variance is later Σ x²/n − (Σ x/n)². In float64 its relative error is about
            1e-16 (mean / standard deviation)²: harmless for years (1e-10) and for seconds since
            1970 within a month (1e-10), useless where the offset is millions of times the spread;
            such a column counts as constant (`FLAT`), and `unscaled` names it. Subtract a fixed
            offset from it beforehand. For an approximate sum of relative error e, replace 1e-16 by
            e.
        """
        self.check(x)
        numbers = x[:, self.numeric].double()
        missing = numbers.isnan()
        values = numbers.masked_fill(missing, 0)
        parts = [(~missing).sum(0), missing.sum(0), values.sum(0), values.square().sum(0)]
        for j, names in self.categorical:
            codes = x[:, j].nan_to_num(len(names)).long()
            parts.append(torch.bincount(codes, minlength=len(names) + 1))
        return torch.cat([part.double() for part in parts])


def of_ranges(schema: Schema, ranges: Mapping[str, tuple[float, float]]) -> Tensor:
    """Return statistics that follow from public ranges alone, in place of the clients' sums.

    `encode` then takes x to (x − (low + high) / 2) / ((high − low) / 2).

    Args:
        schema: The columns.
        ranges: Numeric column -> (low, high).

    Returns:
        The sums of an invented table: a row at each end of every range, a row of missing cells, and
        every code once. So features are −1 at the low end and 1 at the high one, and every
        indicator exists whether its code occurs or not. Values beyond a range are not cut.

    Example:
        >>> schema = Schema(("age", "sex"), {"sex": ("f", "m")})
        >>> x = torch.tensor([[30.0, 0.0], [120.0, 1.0], [float("nan"), 1.0]])
        >>> encode(schema, of_ranges(schema, {"age": (0, 120)}), x).tolist()[:2]
        [[-0.5, 0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0, 0.0]]
    """
    numeric = [schema.columns[j] for j in schema.numeric]
    for name, (low, high) in ranges.items():
        if name not in numeric:
            raise nearest("numeric column with a range", name, numeric)
        # Narrower ones, far from 0, would drown in the rounding of squares.
        wide = high - low > 1e-6 * max(abs(low), abs(high))
        if not (wide and math.isfinite(low) and math.isfinite(high)):
            raise UnseenError(
                f"the range of {name!r} needs low below high, both finite and not almost equal; "
                f"found [{low:g}, {high:g}]."
            )
    if lacking := [name for name in numeric if name not in ranges]:
        raise UnseenError(
            f"public ranges are needed for every numeric column; missing: {', '.join(lacking)}."
        )
    ends = torch.tensor([ranges[name] for name in numeric], dtype=torch.float64).view(-1, 2)
    one = torch.ones(len(ends))
    codes = torch.ones(sum(schema.parts[1:]))
    return torch.cat([2 * one, one, ends.sum(1), ends.square().sum(1), codes])


def encode(schema: Schema, statistics: Tensor, x: Tensor) -> Tensor:
    """Return the features of a raw table, by the summed statistics alone: (x − μ)/σ and indicators.

    Args:
        schema: The columns.
        statistics: The sum of the training clients' statistics, see `Schema.sums`.
        x: The raw table [N, C].

    Returns:
        [N, F], float32. A numeric column becomes (x − μ)/σ with the mean and the population
        variance of the known training cells (σ = 1 where that variance is 0), a missing cell the
        mean, that is 0; then follows, for each numeric column with missing cells at a training
        client, 1 where the cell is missing. A categorical column becomes one indicator per category
        that occurs at a training client and one for a missing cell, if any is missing there; a
        category unseen in training is all zeros. A flag becomes one indicator of yes, and one for a
        missing cell, under the same rules: what a categorical column of two would give, without the
        indicator of no. A numeric column unknown to every training client is 0 everywhere, whatever
        the target knows of it: nothing was learnt about it. The hashed words of texts stay as they
        are: a row of them has length 1 already, sites would have to send a mean and a deviation for
        each of a thousand columns, and by the small deviation of a rare word the few rows with it
        would be tens of deviations away from all others.

    Example:
        >>> schema = Schema(("age", "sex"), {"sex": ("f", "m")})
        >>> x = torch.tensor([[30.0, 0.0], [50.0, 1.0], [float("nan"), 1.0]])
        >>> statistics = schema.sums(x)
        >>> feature_names(schema, statistics)
        ('age', 'age missing', 'sex=f', 'sex=m')
        >>> encode(schema, statistics, x).tolist()
        [[-1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]]
    """
    schema.check(x)
    numeric, indicators = _split(schema, statistics)
    counts, gaps = numeric[:2]
    mean, variance, flat = _moments(numeric)
    scale = torch.where(flat, 1, variance.clamp(min=0).sqrt())
    numbers = x[:, schema.numeric].double()
    missing = numbers.isnan()
    parts = [((numbers - mean) / scale).masked_fill(missing | ~_occurs(counts), 0)]
    parts.append(missing[:, _occurs(gaps)])
    for (j, names), codes in zip(schema.categorical, indicators, strict=True):
        parts.append(x[:, j, None].nan_to_num(len(names)) == codes)
    parts.append(x[:, len(schema.columns) :])
    return torch.cat([part.float() for part in parts], dim=1)


def feature_names(schema: Schema, statistics: Tensor) -> tuple[str, ...]:
    """Return the names of the features [F] of `encode`.

    Returns:
        "age", "age missing" (a number), "thal=3", "thal missing" (categories), "aspirin=yes" (a
        flag), "note#17" (column 17 of a text's words).
    """
    numeric, indicators = _split(schema, statistics)
    columns = [schema.columns[j] for j in schema.numeric]
    gaps = zip(columns, _occurs(numeric[1]).tolist(), strict=True)
    names = [*columns, *(f"{column} missing" for column, occurs in gaps if occurs)]
    for (j, categories), codes in zip(schema.categorical, indicators, strict=True):
        column = schema.columns[j]
        labels = [*(f"{column}={category}" for category in categories), f"{column} missing"]
        names += [labels[code] for code in codes.tolist()]
    for text, hashed in schema.texts.items():
        names += [f"{text}#{feature}" for feature in range(hashed.features)]
    return tuple(names)


def indicators(schema: Schema, statistics: Tensor) -> tuple[list[int], list[list[int]]]:
    """Return for what `encode` has an indicator, by place and not by a name that two may share.

    Returns:
        The places, among numeric columns, of those with missing cells; and for each categorical
        column the codes, of which the last is of a missing cell.
    """
    numeric, codes = _split(schema, statistics)
    return _occurs(numeric[1]).nonzero().flatten().tolist(), [code.tolist() for code in codes]


def unknown(schema: Schema, statistics: Tensor) -> tuple[str, ...]:
    """Return the columns of which no training client has a value.

    Example:
        >>> schema = Schema(("age", "sex"), {"sex": ("f", "m")})
        >>> unknown(schema, schema.sums(torch.tensor([[math.nan, 0.0], [math.nan, 1.0]])))
        ('age',)
    """
    numeric, *counts = statistics.double().split(schema.parts)
    cells = _occurs(numeric.view(4, -1)[0]).tolist() if schema.numeric else []
    empty = [j for j, occurs in zip(schema.numeric, cells, strict=True) if not occurs]
    names = zip(schema.categorical, counts, strict=True)
    empty += [j for (j, _), count in names if not bool(_occurs(count[:-1]).any())]
    return tuple(schema.columns[j] for j in sorted(empty))


def unscaled(schema: Schema, statistics: Tensor) -> tuple[str, ...]:
    """Return the numeric columns that count as constant: their sums cannot show what they spread.

    Not among them is what sums do show: a column of zeros, or of one known value.

    Example:
        >>> schema = Schema(("opened", "age"))
        >>> x = torch.tensor([[1.7e9, 40], [1.7e9 + 200, 50]], dtype=torch.float64)
        >>> unscaled(schema, schema.sums(x))
        ('opened',)
    """
    numeric, _ = _split(schema, statistics)
    counts, _, total, squares = numeric
    # Squares of very small numbers are 0, and their sum is not.
    flat = _moments(numeric)[2] & (counts > 1.5) & ((squares > 0) | (total != 0))
    pairs = zip(schema.numeric, flat.tolist(), strict=True)
    return tuple(schema.columns[j] for j, counts_as_constant in pairs if counts_as_constant)


def _moments(numeric: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance [M], NaN where nothing is known, and which columns are constant."""
    counts, _, total, squares = numeric
    mean, mean_square = total / counts, squares / counts
    variance = mean_square - mean.square()
    return mean, variance, variance <= FLAT * mean_square


def _split(schema: Schema, statistics: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The numeric part [4, M], and for each categorical column the codes that have an indicator.

    Returns:
        Those codes are the ones that occur, without the no of a flag; the last is of a missing
        cell.
    """
    size = sum(schema.parts)
    if statistics.shape != (size,):
        raise UnseenError(
            f"the schema's statistics have the shape [{size}]; found {list(statistics.shape)}.",
            remedy="Use the sums of this table.",
        )
    numeric, *counts = statistics.double().split(schema.parts)
    indicators = [_occurs(count) for count in counts]
    for (j, _), indicator in zip(schema.categorical, indicators, strict=True):
        indicator[0] &= schema.columns[j] not in schema.flags
    codes = [indicator.nonzero().flatten() for indicator in indicators]
    return numeric.view(4, len(schema.numeric)), codes


def _occurs(count: Tensor) -> Tensor:
    """Where a count is positive; half, so that the error of an encrypted sum decides nothing."""
    return count > 0.5
