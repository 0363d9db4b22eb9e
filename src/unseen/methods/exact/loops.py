"""The three loops of boosted trees, by arrays and compiled; both give the same bits."""

import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from unseen.methods.exact.boosted_views import STEP, Array

#: Numbers to go through from which on compiled loops are worth their import, which happens once.
MANY = 2**15


class Loops(NamedTuple):
    """What is done for every row, and for every bin.

    Attributes:
        descend: Moves rows one level down: (cells [N, d], nodes [N, G], feature [G, M],
            edge [G, M]); nodes change.
        add_up: Sums (g, h, 1) of each site's rows at the nodes that are asked for, at most one of
            first and first + 1, one of the next two, ...: (cells [N, d], where each site's rows end
            [K], nodes [N, G], scores with their g and h [N, G, 3], whether a node is asked for
            [G, M], first, sums [K, G, pairs, d, B, 3]); sums are written.
        best: Finds the split of most gain: (sums [n, d, B, 3], those of the whole nodes [n, 3], λ,
            the fewest rows in a leaf) -> gain [n], place [n] = column · (B − 1) + edge, and the
            sums of the left child [n, 3].
    """

    descend: Callable[[Array, Array, Array, Array], None]
    add_up: Callable[[Array, Array, Array, Array, Array, int, Array], None]
    best: Callable[[Array, Array, float, float], tuple[Array, Array, Array]]


def loops(numbers: int) -> Loops:
    """Return the loops that suit this count of numbers: compiled ones for many."""
    return compiled() if numbers >= MANY or "numba" in sys.modules else ARRAYS


@cache
def compiled() -> Loops:
    """Return the loops compiled by numba, or by arrays where it is not installed."""
    try:
        import numba
    except ImportError:
        return ARRAYS
    compile = numba.njit(cache=True, error_model="numpy")
    return Loops(compile(_descend_loop), compile(_add_up_loop), compile(_best_loop))


def _descend_arrays(cells: Array, nodes: Array, feature: Array, edge: Array) -> None:
    every = np.arange(len(nodes))
    for k in range(nodes.shape[1]):
        at = nodes[:, k]
        column = feature[k, at]
        right = cells[every, column] > edge[k, at]
        nodes[:, k] = np.where(column >= 0, 2 * at + 1 + right, at)


def _descend_loop(cells: Array, nodes: Array, feature: Array, edge: Array) -> None:
    for k in range(nodes.shape[1]):
        for i in range(len(nodes)):
            node = nodes[i, k]
            if feature[k, node] >= 0:
                right = cells[i, feature[k, node]] > edge[k, node]
                nodes[i, k] = 2 * node + 1 + right


def _add_up_arrays(
    cells: Array, ends: Array, nodes: Array, scores: Array, asked: Array, first: int, sums: Array
) -> None:
    _, G, _, d, bins, _ = sums.shape
    for k in range(G):
        members = np.flatnonzero(asked[k, nodes[:, k]])
        for site, rows in enumerate(np.split(members, np.searchsorted(members, ends[:-1]))):
            flat = sums[site, k].reshape(-1, 3)
            at = cells[rows] + np.arange(d) * bins
            at = (at + ((nodes[rows, k] - first) // 2 * (d * bins))[:, None]).ravel()
            for c in range(2):
                flat[:, c] = np.bincount(at, np.repeat(scores[rows, k, c + 1], d), len(flat))
            flat[:, 2] = np.bincount(at, minlength=len(flat))


def _add_up_loop(
    cells: Array, ends: Array, nodes: Array, scores: Array, asked: Array, first: int, sums: Array
) -> None:
    G, d = sums.shape[1], sums.shape[3]
    members = np.empty(len(nodes), np.int64)
    begin = 0
    for site in range(len(ends)):
        for k in range(G):
            sums[site, k] = 0.0  # now, so that they are in the cache
            count = 0
            for i in range(begin, ends[site]):  # no branch, which would be a coin's toss
                members[count] = i
                count += asked[k, nodes[i, k]]
            for n in range(count):
                i = members[n]
                own = sums[site, k, (nodes[i, k] - first) // 2]
                slope, curvature = scores[i, k, 1], scores[i, k, 2]
                for j in range(d):
                    c = cells[i, j]
                    own[j, c, 0] += slope
                    own[j, c, 1] += curvature
                    own[j, c, 2] += 1.0
        begin = ends[site]


def _best_arrays(
    sums: Array, whole: Array, penalty: float, least: float
) -> tuple[Array, Array, Array]:
    def score(part: Array) -> Array:
        score: Array = part[0] ** 2 / np.maximum(part[1] + penalty, STEP)
        return score

    total = whole.T[:, :, None, None]
    left = np.moveaxis(sums, -1, 0).cumsum(-1)[..., :-1]
    right = total - left
    gain = score(left) + score(right) - score(total)
    gain = np.where(np.minimum(left[2], right[2]) >= least - 0.5, gain, 0.0)
    gain, left = gain.reshape(len(sums), -1), left.reshape(3, len(sums), -1)
    place, every = gain.argmax(1), np.arange(len(sums))
    return gain[every, place], place, left[:, every, place].T


def _best_loop(
    sums: Array, whole: Array, penalty: float, least: float
) -> tuple[Array, Array, Array]:
    n, d, bins, _ = sums.shape
    gains, places, lefts = np.full(n, -np.inf), np.zeros(n, np.int64), np.zeros((n, 3))
    for i in range(n):
        G, H, rows = whole[i]
        score = G * G / max(H + penalty, STEP)
        for j in range(d):
            g, h, count = 0.0, 0.0, 0.0
            for b in range(bins - 1):
                g, h, count = g + sums[i, j, b, 0], h + sums[i, j, b, 1], count + sums[i, j, b, 2]
                gain = 0.0
                if min(count, rows - count) >= least - 0.5:
                    gain = g * g / max(h + penalty, STEP)
                    gain += (G - g) * (G - g) / max(H - h + penalty, STEP)
                    gain -= score
                if gain > gains[i]:
                    gains[i], places[i] = gain, j * (bins - 1) + b
                    lefts[i, 0], lefts[i, 1], lefts[i, 2] = g, h, count
    return gains, places, lefts


ARRAYS = Loops(_descend_arrays, _add_up_arrays, _best_arrays)
