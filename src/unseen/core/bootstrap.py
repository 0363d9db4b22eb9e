"""Bootstrap samples as weights: how often each example is in each sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

#: How many numbers of the samples are in memory together.
IN_MEMORY = 4_000_000


def bootstrap(
    statistics: Mapping[str, Callable[[Tensor], Tensor]],
    n: int,
    draws: int,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Return the values of statistics over bootstrap samples, each as large as the data.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, section 13.3.

    Args:
        statistics: Name -> function of weights [R, n], how often each example is in each of R
            samples, that returns its values [R], NaN where it is undefined.
        n: Number of examples.
        draws: Number of samples.
        generator: Draws the samples.

    Returns:
        Name -> the values of all samples [draws].
    """
    values: dict[str, list[Tensor]] = {name: [torch.zeros(0).double()] for name in statistics}
    for weights in _weights(n, draws, generator):
        for name, statistic in statistics.items():
            values[name].append(statistic(weights))
    return {name: torch.cat(parts) for name, parts in values.items()}


def _weights(n: int, draws: int, generator: torch.Generator) -> Iterator[Tensor]:
    """The weights [R, n] of the samples, in batches that fit into memory."""
    batch = max(1, IN_MEMORY // max(1, n))
    for first in range(0, draws, batch):
        rows = min(batch, draws - first)
        examples = torch.randint(n, (rows, n), generator=generator)
        ones = torch.ones(rows, n, dtype=torch.float64)
        yield torch.zeros(rows, n, dtype=torch.float64).scatter_add_(1, examples, ones)
