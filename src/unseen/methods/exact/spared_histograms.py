"""Histograms of trees in which no sum is of few of a site's rows.

Bins of a column join until each has enough rows of the site. At a node, both children's rows are
looked at: bins join further until each child has none or enough rows in them. What a child has in
joined bins is spread over them as the parent's sums are. So the server, which has the sums of a
parent and of one child, has those of the other one by subtraction, and all that it has follows from
sums of enough rows.
"""

from __future__ import annotations

import numpy as np

from unseen.methods.exact.boosted_views import Array, in_steps

#: Rounding of sums that were spread, and less than any sum.
NEAR, TINY = 1e-6, 1e-300


def joined_cells(cells: Array, bins: int, least: int) -> Array:
    """Return the bins of rows [N, d], of which each has none or enough rows in each column.

    Joined bins are the one in their middle, by rows.

    Args:
        cells: The bins that the rows lie in.
        bins: B.
        least: Rows of a bin.

    Example:
        >>> joined_cells(np.array([[0], [1], [2], [2], [5]]), 6, 2).ravel().tolist()
        [0, 0, 3, 3, 3]
    """
    result = np.empty_like(cells)
    for j in range(cells.shape[1]):
        counts = np.bincount(cells[:, j], minlength=bins)
        group = unions(counts[None], least)[0]
        rows = np.bincount(group, counts, bins)
        middle = np.bincount(group, counts * np.arange(bins), bins) // np.maximum(rows, 1)
        result[:, j] = middle[group][cells[:, j]]
    return result


def unions(counts: Array, least: int, ends: Array | None = None) -> Array:
    """Return which union each bin belongs to [..., B], counted from 0.

    Args:
        counts: Rows by bin [..., B], or [several, ..., B], each of which has none or enough rows in
            a union.
        least: Rows that are enough.
        ends: Where a union may end [..., B]; None for everywhere.

    Example:
        >>> unions(np.array([[1, 0, 2, 1, 3, 1]]), 3).tolist()
        [[0, 0, 0, 1, 1, 1]]
    """
    counts = counts if ends is not None else counts[None]
    group, count = np.zeros(counts.shape[1:], np.int64), np.zeros(counts.shape[:-1])
    now, B = count[0].astype(np.int64), counts.shape[-1]
    for b in range(B):
        group[..., b] = now
        count += counts[..., b]
        full = ((count == 0) | (count >= least)).all(0) & (count > 0).any(0)
        if ends is not None:
            full &= ends[..., b]
        now += full
        count[:, full] = 0
    last: Array = np.maximum(now - 1, 0)[..., None]
    while True:  # the rest joins the last one, and this one those before it
        rows = np.where(group >= last, counts, 0).sum(-1)
        few = ((rows > 0) & (rows < least)).any(0)[..., None] & (last > 0)
        if not few.any():
            own: Array = np.minimum(group, last)
            return own
        last = last - few


def spread(children: Array, parents: Array, least: int) -> Array:
    """Spread the parents' sums over joined bins, and return the two children's sums to send.

    Args:
        children: Their sums [G, 2 pairs, d, B, 3].
        parents: What was sent of their parents [G, pairs, d, B, 3].
        least: Rows of a sum that leaves.
    """
    G, pairs, *shape = parents.shape
    both = children.reshape(G, pairs, 2, *shape)
    counts = np.moveaxis(both[..., 2], 2, 0)
    split = counts.sum((0, 3, 4)) > 0
    # Up to an end, both children together have what was sent of the parent.
    gap = np.cumsum(both.sum(2) - parents, -2)
    group = unions(counts, least, (np.abs(gap) < NEAR).all(-1))
    one = _as_parents(_in_groups(both[:, :, 0], group), parents, _in_groups(parents, group))
    first = np.where(split[..., None, None, None], in_steps(one), 0.0)
    second = np.where(split[..., None, None, None], parents - first, 0.0)
    return np.stack([first, second], 2).reshape(children.shape)


def _in_groups(sums: Array, group: Array) -> Array:
    """Return for each bin the sums of its union [..., B, 3]."""
    B = group.shape[-1]
    key = (np.arange(group.size // B)[:, None] * B + group.reshape(-1, B)).ravel()
    flat = sums.reshape(-1, 3)
    totals = np.stack([np.bincount(key, flat[:, c], group.size)[key] for c in range(3)], 1)
    own: Array = totals.reshape(sums.shape)
    return own


def _as_parents(own: Array, parents: Array, whole: Array) -> Array:
    """Return a child's sums over unions, spread over their bins as the parent's are [..., B, 3].

    Rows and curvatures are in proportion. Of slopes, both children get a part of how the parent's
    differ from even ones, by their rows.

    Args:
        own: The child's sums over each bin's union.
        parents: The parent's sums over bins.
        whole: The parent's over each bin's union.
    """
    share = np.clip(parents / np.maximum(whole, TINY), 0.0, 1.0)
    result: Array = own * share
    part = np.clip(own[..., 2] / np.maximum(whole[..., 2], TINY), 0.0, 1.0)
    uneven = parents[..., 0] - share[..., 2] * whole[..., 0]
    result[..., 0] = share[..., 2] * own[..., 0] + part * uneven
    return result
