"""Weighted counts of pairs in two orders, without going through the pairs."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def ordered_pairs(
    place: Tensor, score: Tensor, own: Tensor, other: Tensor
) -> tuple[Tensor, Tensor]:
    """Return Σ v_i w_j over pairs with place_i < place_j, of all and of those score_i > score_j.

    Pairs of equal scores count half. Two places differ first in one bit, which is 0 in the lower:
    for each bit, those places that agree in all bits above it are sorted by score, and cumulated
    sums over the 1s say what every 0 has below it. N rows cost about N log² N operations, and sums
    of integers are exact.

    Args:
        place: An integer of each row, not negative [N].
        score: Of each row [N].
        own: v, weights [R, N], float64.
        other: w, weights [R, N], float64.

    Returns:
        The two sums [R]: of all pairs, and of the pairs that the scores order the other way.

    Example:
        >>> ones = torch.ones(1, 3, dtype=torch.float64)
        >>> ordered_pairs(torch.tensor([0, 1, 2]), torch.tensor([3.0, 1.0, 1.0]), ones, ones)
        (tensor([3.], dtype=torch.float64), tensor([2.5000], dtype=torch.float64))
    """
    ranks = score.unique(return_inverse=True)[1]  # type: ignore[no-untyped-call]
    every, inverted = own.new_zeros(len(own)), own.new_zeros(len(own))
    for bit in range(int(place.max()).bit_length() if len(place) else 0):
        group, later = place >> (bit + 1), (place >> bit) % 2 == 1
        alike = group * len(ranks) + ranks
        order = alike.argsort()
        cumulated = pad((other * later)[:, order].cumsum(1), (1, 0))
        below, upto = (cumulated[:, ends] for ends in _ends(alike[order]))
        first, last = (cumulated[:, ends] for ends in _ends(group[order]))
        v = (own * ~later)[:, order]
        every += (v * (last - first)).sum(1)
        inverted += (v * ((below + upto) / 2 - first)).sum(1)
    return every, inverted


def _ends(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the run of equal values that each is in begins and ends [N]."""
    _, run, sizes = torch.unique_consecutive(values, return_inverse=True, return_counts=True)
    ends = sizes.cumsum(0)
    return (ends - sizes)[run], ends[run]
