"""Rows of a site that are too few for a sum of their own: they count with their neighbours."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unseen.errors import TooFewRows
from unseen.methods.exact.boosted_views import Array


def merged(counts: Tensor, least: int) -> Tensor:
    """Return counts along ordered bins [C, B] in which none but 0 is below the least.

    Neighbouring bins of a class join until they hold enough rows, which then count where the middle
    one of them lies. Rows left over join the last such group, and a class of too few is empty.

    Args:
        counts: Rows by class and bin.
        least: Rows of a count that leaves.

    Example:
        >>> merged(torch.tensor([[2, 0, 1, 3, 0, 4, 1], [0, 2, 0, 0, 0, 0, 0]]), 3).tolist()
        [[3, 0, 0, 3, 0, 5, 0], [0, 0, 0, 0, 0, 0, 0]]
    """
    result = torch.zeros_like(counts)
    if least <= 1:
        return result + counts
    for own, row in zip(result, counts.long(), strict=True):
        places = torch.arange(len(row)).repeat_interleave(row)
        rows, groups = len(places), len(places) // least
        if not groups:
            continue
        ends = [least * (group + 1) for group in range(groups - 1)]
        for first, last in zip([0, *ends], [*ends, rows], strict=True):
            own[places[(first + last - 1) // 2]] += last - first
    return result


def with_siblings(nodes: Array, least: int) -> Array:
    """Return the nodes [N, trees] of a site's rows, in which no node has fewer rows than the least.

    Too few rows at one child of a node count at the other child. If both have too few, all of them
    count at the left one. Children are at places 2i + 1 and 2i + 2.

    Args:
        nodes: The nodes that the rows are at, none of whose parents has too few rows.
        least: Rows of a node of which sums leave.

    Raises:
        TooFewRows: A node has too few rows all the same: the trees are none that this site helped
            to grow.

    Example:
        >>> with_siblings(np.array([[1], [1], [2], [1]]), 2).ravel().tolist()
        [1, 1, 1, 1]
    """
    if least <= 1:
        return nodes
    width = int(nodes.max(initial=0)) + 3
    own = nodes + width * np.arange(nodes.shape[1])

    def few(own: Array) -> Array:
        rows: Array = np.bincount(own.ravel(), minlength=width * nodes.shape[1])[own] < least
        return rows

    place = own % width
    own = np.where(few(own) & (place > 0) & (place % 2 == 0), own - 1, own)
    own = np.where(few(own) & (own % width % 2 == 1), own + 1, own)
    if bool(few(own).any()):
        raise TooFewRows(
            f"a node of the received trees has fewer than {least} rows here.",
            remedy="Take shallower trees, or lower least.examples in site.toml.",
        )
    return (own % width).astype(nodes.dtype)


def whole_sides(left: Array, total: Array, rows: Array, all_rows: Array, least: int) -> Array:
    """Return the sums left of cuts, of which no side has few rows: these count on the other side.

    Args:
        left: Sums over the rows left of each cut [..., S].
        total: Sums over the rows of the cut's node [..., S].
        rows: How many rows are left of each cut [...].
        all_rows: How many rows the node has [...].
        least: Rows of a side whose sums leave.

    Example:
        >>> left, total = np.array([[3.0, 1.0], [2.0, 0.0]]), np.array([3.0, 3.0])
        >>> whole_sides(left, total, left.sum(-1), total.sum(), 3).tolist()
        [[3.0, 3.0], [0.0, 0.0]]
    """
    result = np.where((rows < least)[..., None], 0.0, left)
    sides: Array = np.where((all_rows - rows < least)[..., None], total, result)
    return sides
