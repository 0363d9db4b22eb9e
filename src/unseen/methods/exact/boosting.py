"""Gradient-boosted trees from histograms: sites send sums over bins, the server grows the trees.

A tree grows by one level an exchange. With g and h the first and second derivatives of the loss in
the score, every site adds up (g, h, 1) over its rows in each bin of each column, for each node of
the level; of two children the one with fewer rows over all sites, which the server marks in the
model, since the other one is what the parent has more. A node is split where

    G_L² / (H_L + λ) + G_R² / (H_R + λ) − G² / (H + λ)

is largest, and a leaf has the value −η G / (H + λ). Bins are common to all sites, and derivatives
are rounded to multiples of 2⁻³⁰, so that sums are exact: however the rows are dealt to sites, the
trees are those of the pooled rows, bit for bit.

Source:
    Chen and Guestrin 2016, "XGBoost", Eq. 5 to 7 and Algorithm 1; Ke et al. 2017, "LightGBM", §2.1
    (histograms, subtraction).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Reply, RuleState, Turn, WithState
from unseen.core.parts import Part
from unseen.core.types import Table
from unseen.methods.exact.boosted_views import (
    ASKED,
    GRID,
    LEAF,
    Array,
    BoostedForest,
    Grown,
    grid,
    in_steps,
)
from unseen.methods.exact.histograms import rows
from unseen.methods.exact.loops import loops
from unseen.methods.exact.node_rows import merged


@dataclass(frozen=True)
class Counts(Part):
    """What a site sends first: rows in each cell of the fine grid, and sums of its labels.

    Attributes:
        classes: C, or None for a number.
        least: Rows of a count that leaves; fewer count with neighbouring cells.
    """

    sends_sums = True
    adds_exactly = True

    classes: int | None
    least: int = 1

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        x, y = rows(client)
        borders, classes = grid(), self.classes
        below = [np.searchsorted(column, borders, "right") for column in np.sort(x.T)]
        counts = np.diff(below, prepend=0, append=len(x))
        counts = merged(torch.from_numpy(counts), self.least).numpy().ravel()
        sums = [in_steps(y).sum()] if classes is None else np.bincount(y, minlength=classes)
        row = torch.from_numpy(np.concatenate([counts, [len(y)], sums]).astype(np.float64))
        return Reply({"model": row}, {"examples": len(y)}), memory


def edges_at(below: Array, bins: int) -> Array:
    """Return each column's B − 1 edges at equal shares of the rows, on borders of the grid.

    Where fewer cells than bins have rows, edges repeat and the bins between them stay empty.

    Args:
        below: Rows in each cell and those before it [d, cells].
        bins: B.
    """
    shares, borders = np.arange(1, bins) / bins, grid()
    cells = [np.searchsorted(cumulated, shares * cumulated[-1]) for cumulated in below]
    edges: Array = borders[np.minimum(cells, GRID - 1)]
    return edges


@dataclass(frozen=True)
class Begin:
    """The server's step that sets the edges of the bins and the baseline b.

    b: the log odds, the log shares of the classes, or the mean.
    """

    at_sites = True

    forest: BoostedForest

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        forest, vector = self.forest, old.detach().cpu().clone()
        trees = Grown.of(vector, forest)
        counts, (total, *sums) = np.split(new.double().cpu().numpy(), [forest.inputs * (GRID + 1)])
        trees.edges[:] = edges_at(counts.round().reshape(forest.inputs, -1).cumsum(1), forest.bins)
        if forest.classes is None:
            trees.baseline[:] = sums[0] / max(total, 1.0)
        else:
            logs = np.log(np.maximum(sums, 0.5) / max(total, 1.0))
            trees.baseline[:] = logs if forest.scores > 1 else logs[1] - logs[0]
        return vector.to(old), state


@dataclass(frozen=True)
class Grow:
    """The server's step that splits the nodes of one level."""

    at_sites = True

    forest: BoostedForest

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        forest, vector = self.forest, old.detach().cpu().clone()
        trees = Grown.of(vector, forest)
        round = int(state["grown"]) if "grown" in state else 0
        level, iteration = forest.level(round), round // forest.depth
        under_way = trees.under_way(iteration)
        shape = (forest.scores, -1, forest.inputs, forest.bins, 3)
        sums = new.double().cpu().numpy().reshape(shape)
        if level:
            sums = _of_both(sums, state["histograms"].numpy(), trees.feature[under_way], level)
        for k in range(forest.scores):
            self._split(trees, under_way.start + k, level, sums[k])
        after = {"grown": torch.tensor(round + 1), "histograms": torch.from_numpy(sums)}
        return vector.to(old), after

    def _split(self, trees: Grown, tree: int, level: int, sums: Array) -> None:
        """Split the nodes of a level of one tree by their histograms [nodes, d, B, 3]."""
        forest, first = self.forest, 2**level - 1
        whole = sums[:, 0].sum(1)  # as of any column
        if level == 0:
            trees.value[tree, 0] = forest.leaf(*whole[0, :2])
        best = loops(forest.row(forest.depth - 1)).best
        gain, place, left = best(sums, whole, float(forest.penalty), float(forest.least))
        splits = np.flatnonzero(gain > 1e-9 * np.maximum(1.0, whole[:, 1]))
        left, right = left[splits], whole[splits] - left[splits]
        node, (column, edge) = first + splits, np.divmod(place[splits], forest.bins - 1)
        child = 2 * node + 1
        trees.feature[tree, first : first + len(sums)] = LEAF
        trees.feature[tree, node], trees.child[tree, node] = column, child
        trees.threshold[tree, node] = trees.edges[column, edge]
        for side, (G, H, _) in enumerate((left.T, right.T)):
            trees.value[tree, child + side] = forest.leaf(G, H)
        if level + 1 < forest.depth:
            trees.feature[tree, child + (right[:, 2] < left[:, 2])] = ASKED


def _of_both(child: Array, parents: Array, feature: Array, level: int) -> Array:
    """Return the histograms of both children; one was sent, the other is what the parent has more.

    Args:
        child: Of one child of each pair [G, pairs, d, B, 3]; 0 where the parent was not split.
        parents: [G, pairs, d, B, 3].
        feature: Of every node [G, M].
        level: The children's.
    """
    G, pairs, *bins = child.shape
    first, before = 2**level - 1, 2 ** (level - 1) - 1
    side = (feature[:, first + 1 : first + 2 * pairs : 2] == ASKED).astype(np.int64)
    rest = parents - child
    rest[feature[:, before:first] < 0] = 0.0
    both, (k, pair) = np.empty((G, pairs, 2, *bins)), np.indices((G, pairs))
    both[k, pair, side], both[k, pair, 1 - side] = child, rest
    return both.reshape(G, 2 * pairs, *bins)
