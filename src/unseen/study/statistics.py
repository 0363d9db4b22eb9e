"""Numbers about runs: means, standard errors, ranks, and what one cell of a table holds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unseen.errors import UnseenError


def mean(values: Sequence[float]) -> float:
    """Σ x_i / n, exact before it is rounded: equal values give that value, in any order.

    >>> mean([0.8, 0.8, 0.8])
    0.8
    """
    if not values:
        raise UnseenError("the mean of no values is not defined; give at least one.")
    return float(statistics.mean(values))


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean, s / √n with s² = Σ (x_i - x̄)² / (n - 1); None for n = 1.

    >>> standard_error([1.0, 2.0, 3.0, 4.0, 5.0]) == math.sqrt(0.5)
    True
    """
    if not values:
        raise UnseenError("the standard error of no values is not defined; give at least two.")
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def ranks(values: Sequence[float], lower: bool = False) -> list[float]:
    """Ranks from 1 for the best; equal values share the mean of their ranks.

    lower: less is better.

    >>> ranks([0.9, 0.7, 0.9, 0.8])
    [1.5, 4.0, 1.5, 3.0]
    """
    ordered = sorted(values, reverse=not lower)
    return [ordered.index(x) + (ordered.count(x) + 1) / 2 for x in values]


def mean_ranks(rows: Sequence[Sequence[float | None]], lower: bool = False) -> list[float] | None:
    """Mean rank of each method over tasks.

    rows: one per method, one value per task, None for undefined. A task counts where every method
    has a value, since ranks among few and among many do not compare. None where no task does.

    >>> mean_ranks([[0.9, 0.5], [0.8, 0.7], [0.7, 0.6]])
    [2.0, 1.5, 2.5]
    """
    tasks = [ranks(column, lower) for column in map(_defined, zip(*rows, strict=True)) if column]
    return [mean(per_method) for per_method in zip(*tasks, strict=True)] if tasks else None


@dataclass(frozen=True)
class Cell:
    """One number per seed for which it is defined.

    undefined: how many finished seeds have none. seeds: how many there should be. applies:
    whether the method can run there at all.

    >>> Cell((0.5, 0.75), undefined=0, seeds=3).text("{:.2f}".format)
    '0.62 ± 0.12 (2/3 seeds)'
    """

    values: tuple[float, ...]
    undefined: int
    seeds: int
    applies: bool = True

    @property
    def complete(self) -> bool:
        """Whether every seed has a number. Only such cells are compared."""
        return self.applies and len(self.values) == self.seeds > 0

    def fields(self) -> tuple[float | str, float | None, int]:
        """Mean, standard error, number of seeds; the mean may be `n/a`, `undefined` or empty."""
        if self.applies and self.values:
            return mean(self.values), standard_error(self.values), len(self.values)
        return ("" if not self.undefined else "undefined") if self.applies else "n/a", None, 0

    def text(self, shown: Callable[[float], str]) -> str:
        """Mean ± standard error, and what keeps the cell from being complete."""
        value, error, n = self.fields()
        finished = n + self.undefined
        remarks = [f"{finished}/{self.seeds} seeds"] if finished < self.seeds else []
        if not self.applies or not (n or self.undefined):
            return str(value) or remarks[0]
        if n and self.undefined:
            remarks.append(f"{self.undefined} undefined")
        number = value if isinstance(value, str) else shown(value)
        number += "" if error is None else f" ± {shown(error)}"
        return f"{number} ({', '.join(remarks)})" if remarks else number


def _defined(values: Sequence[float | None]) -> list[float]:
    """The values if all are defined, else none of them."""
    found = [x for x in values if x is not None]
    return found if len(found) == len(values) else []
