"""The bootstrap: samples drawn with replacement, and percentile intervals from them.

Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, section 13.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Generator, Tensor

#: How many indices are in memory at a time.
IN_MEMORY = 4_000_000


def resamples(n: int, count: int, generator: Generator) -> Iterator[Tensor]:
    """Yield the samples in parts: indices [R, n] of what each sample holds.

    Args:
        n: What there is to draw from, and the size of a sample.
        count: Samples.
        generator: Where the draws come from.
    """
    rows = max(1, IN_MEMORY // max(1, n))
    for first in range(0, count, rows):
        yield torch.randint(n, (min(rows, count - first), n), generator=generator)


def weights(index: Tensor) -> Tensor:
    """Return how often each sample holds each value, [R, n], from indices [R, n].

    >>> weights(torch.tensor([[2, 0, 2]]))
    tensor([[1., 0., 2.]], dtype=torch.float64)
    """
    ones = torch.ones(index.shape, dtype=torch.float64)
    return torch.zeros_like(ones).scatter_add_(1, index, ones)


def bootstrap(
    statistics: Mapping[str, Callable[[Tensor], Tensor]], n: int, count: int, generator: Generator
) -> dict[str, Tensor]:
    """Return the values of statistics over bootstrap samples [count], by name.

    Args:
        statistics: Name -> function of weights [R, n] that returns values [R], NaN where undefined.
        n: What there is to draw from, and the size of a sample.
        count: Samples.
        generator: Where the draws come from.
    """
    values: dict[str, list[Tensor]] = {name: [torch.zeros(0).double()] for name in statistics}
    for index in resamples(n, count, generator):
        drawn = weights(index)
        for name, statistic in statistics.items():
            values[name].append(statistic(drawn))
    return {name: torch.cat(parts) for name, parts in values.items()}


def ends(count: int, level: float = 0.95) -> tuple[int, int]:
    """Return the places of a percentile interval's ends among `count` sorted samples.

    >>> ends(1000)
    (25, 974)
    """
    low, high = (round((1 + side * level) / 2 * (count - 1)) for side in (-1, 1))
    return low, high


def interval(
    statistic: Callable[[Tensor], Tensor],
    n: int,
    count: int,
    generator: Generator,
    level: float = 0.95,
) -> tuple[float, float] | None:
    """Return a statistic's percentile interval; None where n < 2, or half the samples have none.

    Args:
        statistic: weights [R, n] -> values [R], NaN where undefined; such samples are left out.
        n: Values that samples are drawn from.
        count: Samples.
        generator: Where the draws come from.
        level: The share of samples inside.
    """
    if n < 2:
        return None
    values = bootstrap({"": statistic}, n, count, generator)[""]
    values = values[values.isfinite()].sort().values
    if len(values) < count / 2:
        return None
    low, high = (float(values[place]) for place in ends(len(values), level))
    return low, high
