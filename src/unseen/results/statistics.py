"""Numbers about runs: means, their errors and intervals, ranks, and a table's cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unseen.errors import UnseenError, number

#: Bootstrap samples, each as large as what it is drawn from.
RESAMPLES = 9999


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


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the mean, from 9999 samples; None for n = 1.

    The ends are the (1 ± level) / 2 quantiles of the means of samples of n drawn with replacement.
    The draws are keyed, so the same values in any order give the same interval. Over seeds it is
    about further seeds with these targets and their examples, never about other targets. With few
    seeds it is too narrow: of 2 or 3 it is their range, which holds the mean of many (normal) seeds
    one time in two, or three in four. Percentile rather than BCa, whose two corrections would be
    estimated from those same few values. Source: Efron and Tibshirani, "An Introduction to the
    Bootstrap", 1993, section 13.3.

    >>> interval([0.80, 0.82, 0.84])
    (0.8, 0.84)
    """
    import torch

    from unseen.core.bootstrap import ends, resamples
    from unseen.core.exchange import keyed

    number("level", level, 0, 1, open_low=True)
    if len(values) < 2:
        return None
    ordered = torch.tensor(sorted(values), dtype=torch.float64)
    draws = resamples(len(values), RESAMPLES, keyed("bootstrap"))
    samples = torch.cat([ordered[index] for index in draws])
    order = samples.mean(1).argsort(stable=True)
    # The means of the two samples again, exactly: equal values give that value.
    low, high = sorted(mean(samples[order[at]].tolist()) for at in ends(RESAMPLES, level))
    return low, high


def quantile(values: Sequence[float], share: float) -> float:
    """The quantile at a share, linear between the two nearest order statistics.

    With x_(0) ≤ … ≤ x_(n − 1) it stands at share · (n − 1): numpy's default, type 7 of Hyndman and
    Fan, "Sample quantiles in statistical packages", The American Statistician 1996.

    >>> quantile([5.0, 1.0, 2.0, 3.0, 4.0], 0.1)
    1.4
    """
    if not values:
        raise UnseenError("a quantile of no values is not defined; give at least one.")
    number("share", share, 0, 1)
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def ranks(values: Sequence[float], lower: bool = False) -> list[float]:
    """Return ranks from 1 for the best; equal values share the mean of their ranks.

    >>> ranks([0.9, 0.7, 0.9, 0.8])
    [1.5, 4.0, 1.5, 3.0]
    """
    ordered = sorted(values, reverse=not lower)
    return [ordered.index(x) + (ordered.count(x) + 1) / 2 for x in values]


def mean_ranks(rows: Sequence[Sequence[float | None]], lower: bool = False) -> list[float] | None:
    """Return the mean rank of each method over tasks.

    A task counts where every method has a value, since ranks among few and among many do not
    compare. None where no task does.

    Args:
        rows: One per method, with one value per task, None for undefined.
        lower: Whether less is better.

    >>> mean_ranks([[0.9, 0.5], [0.8, 0.7], [0.7, 0.6]])
    [2.0, 1.5, 2.5]
    """
    tasks = [ranks(column, lower) for column in map(_defined, zip(*rows, strict=True)) if column]
    return [mean(per_method) for per_method in zip(*tasks, strict=True)] if tasks else None


@dataclass(frozen=True)
class Cell:
    """One number per seed for which it is defined.

    Attributes:
        values: The numbers.
        undefined: How many finished seeds have none.
        seeds: How many there should be.
        applies: Whether the method can run there at all.

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

    def interval(self) -> tuple[float | None, float | None]:
        """The ends of the bootstrap interval of the mean; None where there are no two seeds."""
        return (interval(self.values) if self.applies else None) or (None, None)

    def raw_fields(self) -> list[float | str | None]:
        """Mean, standard error, the interval's ends, number of seeds; an undefined mean is empty,
        so that a column of them is one of numbers."""
        value, error, n = self.fields()
        return [None if value == "undefined" else value, error, *self.interval(), n]

    def text(self, shown: Callable[[float], str], spread: str = "error") -> str:
        """Return mean ± standard error, and what keeps the cell from being complete.

        Args:
            shown: Writes one number.
            spread: `interval` for the bootstrap interval in place of the standard error.
        """
        value, error, n = self.fields()
        finished = n + self.undefined
        remarks = [f"{finished}/{self.seeds} seeds"] if finished < self.seeds else []
        if not self.applies or not (n or self.undefined):
            return str(value) or remarks[0]
        if n and self.undefined:
            remarks.append(f"{self.undefined} undefined")
        text = value if isinstance(value, str) else shown(value)
        low, high = self.interval() if spread == "interval" else (None, None)
        if low is not None and high is not None:
            text += f" [{shown(low)}, {shown(high)}]"
        elif error is not None:
            text += f" ± {shown(error)}"
        return f"{text} ({', '.join(remarks)})" if remarks else text


def _defined(values: Sequence[float | None]) -> list[float]:
    """The values if all are defined, else none of them."""
    defined = [x for x in values if x is not None]
    return defined if len(defined) == len(values) else []
