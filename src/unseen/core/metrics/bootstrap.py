"""Bootstrap samples as weights, of which any statistic takes many at a time."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Generator, Tensor

#: Weights [R, n] of samples -> values [R], NaN where undefined.
Statistic = Callable[[Tensor], Tensor]
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

    Example:
        >>> weights(torch.tensor([[2, 0, 2]]))
        tensor([[1., 0., 2.]], dtype=torch.float64)
    """
    ones = torch.ones(index.shape, dtype=torch.float64)
    return torch.zeros_like(ones).scatter_add_(1, index, ones)


def bootstrap(
    statistics: Mapping[str, Statistic], n: int, count: int, generator: Generator
) -> dict[str, Tensor]:
    """Return the values of statistics over bootstrap samples [count], by name.

    Args:
        statistics: By name.
        n: What there is to draw from, and the size of a sample.
        count: Samples.
        generator: Where the draws come from.
    """
    values: dict[str, list[Tensor]] = {name: [torch.zeros(0).double()] for name in statistics}
    for index in resamples(n, count, generator):
        sample = weights(index)
        for name, statistic in statistics.items():
            values[name].append(statistic(sample))
    return {name: torch.cat(parts) for name, parts in values.items()}


def ends(count: int, level: float = 0.95) -> tuple[int, int]:
    """Return the places of a percentile interval's ends among `count` sorted samples.

    Args:
        count: Samples.
        level: The share of samples inside.

    Example:
        >>> ends(1000)
        (25, 974)
    """
    low, high = (round((1 + side * level) / 2 * (count - 1)) for side in (-1, 1))
    return low, high


def interval(values: Tensor, level: float = 0.95) -> tuple[float, float] | None:
    """Return the percentile interval of a statistic; None where half the samples have none.

    Args:
        values: What `bootstrap` made of it [count].
        level: The share of samples inside.
    """
    defined = values[values.isfinite()].sort().values
    if not len(defined) or len(defined) < len(values) / 2:
        return None
    low, high = ends(len(defined), level)
    return float(defined[low]), float(defined[high])
