"""Distances between rows from inner products, and where those are too coarse for them."""

from __future__ import annotations

import torch
from torch import Tensor

#: Squared distances below this share of the rows' squared lengths are taken again between rows that
#: are moved to one of them: what is left of a float32 product is then a hundred times its rounding.
CLOSE = 0.01


def squared_distances(gram: Tensor) -> Tensor:
    """Return ‖u_i − u_j‖² [..., K, K] for i ≠ j, from inner products; infinity for i = j.

    Huge rows overflow to inf and to inf − inf: both are far away. Rounding below 0 counts as 0.
    """
    norms = gram.diagonal(dim1=-2, dim2=-1)
    squared = norms[..., :, None] + norms[..., None, :] - 2 * gram
    squared = squared.nan_to_num(torch.inf, torch.inf, torch.inf).clamp(min=0)
    squared.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    return squared


def coarse(gram: Tensor) -> bool:
    """Return whether two rows are so close, for their length, that rounding shows."""
    norms = gram.diagonal(dim1=-2, dim2=-1)
    lengths = (norms[..., :, None] + norms[..., None, :]) / 2
    return bool((squared_distances(gram) < CLOSE * lengths).any())


def centre(gram: Tensor) -> int:
    """Return the row whose K // 2 nearest neighbours are nearest.

    A wrong client can neither be it, unless it is near the right ones, nor move it far. A mean
    would follow the largest row, and rows less that mean would be worse to tell apart than ever.
    """
    K = len(gram)
    return int(squared_distances(gram).sort(1).values[:, K // 2 - 1].argmin())
