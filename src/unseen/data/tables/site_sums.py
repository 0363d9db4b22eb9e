"""Sums over the columns of a table in which no single site decides what columns are scaled by."""

import torch
from torch import Tensor

from unseen.data.tables.encoding import FLAT, Schema


def typical(schema: Schema, sums: Tensor) -> Tensor:
    """Return sums whose means and deviations are the medians of the sites' own.

    Counts are added up. A site without values in a column says nothing of its mean, and one whose
    values are all the same says nothing of its deviation.

    Args:
        schema: The columns.
        sums: Of each site [K, S], see `Schema.sums`.

    Example:
        >>> ages = [torch.tensor([[40.0], [50.0], [60.0]]) + shift for shift in (0, 1, 1000)]
        >>> schema = Schema(("age",))
        >>> total = typical(schema, torch.stack([schema.sums(age) for age in ages]))
        >>> float(total[2] / total[0])
        51.0
    """
    sums = sums.double()
    pooled, M = sums.sum(0), len(schema.numeric)
    count, _, total, squares = sums[:, : 4 * M].view(len(sums), 4, M).unbind(1)
    mean, square = total / count, squares / count
    variance = square - mean.square()
    variance = variance.where(variance > FLAT * square, torch.nan)
    middle, spread = _median(mean), _median(variance.sqrt()).nan_to_num()
    rows = pooled[:M]
    moments = torch.stack([rows * middle, rows * (middle.square() + spread.square())])
    pooled[2 * M : 4 * M] = moments.nan_to_num().flatten()
    return pooled


def _median(values: Tensor) -> Tensor:
    """Return the median over sites [M], between the middle two of an even number."""
    return values.nanquantile(0.5, dim=0)
