"""Gradient-boosted trees from histograms: sites send sums over bins, the server grows the trees.

A tree grows by one level an exchange. With g and h the first and second derivatives of the loss in
the score, every site adds up (g, h, 1) over its rows in each bin of each column, for each node of
the level; of two children the left one, since the right one is what the parent has more. A node is
split where

    G_L² / (H_L + λ) + G_R² / (H_R + λ) − G² / (H + λ)

is largest, and a leaf has the value −η G / (H + λ). Bins are common to all sites, so that the trees
are those of the pooled rows.

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
from unseen.exact.forest import GRID, Array, Forest, Grown, grid
from unseen.exact.histograms import rows


@dataclass(frozen=True)
class Counts(Part):
    """What a site sends first: rows in each cell of the fine grid, and sums of its labels."""

    forest: Forest

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        x, y = rows(client)
        borders, d = grid(), self.forest.inputs
        cells = np.searchsorted(borders, x) + np.arange(d) * (GRID + 1)
        counts = np.bincount(cells.ravel(), minlength=d * (GRID + 1)).astype(np.float64)
        classes = self.forest.classes
        sums = [y.sum()] if classes is None else np.bincount(y, minlength=classes)
        row = torch.from_numpy(np.concatenate([counts, [len(y)], sums]))
        return Reply({"model": row}, {"examples": len(y)}), memory


@dataclass(frozen=True)
class Begin:
    """The server's step that sets the edges of the bins and the baseline b.

    A column's B − 1 edges lie at equal shares of the rows, on borders of the grid. Where fewer
    cells than bins have rows, edges repeat and the bins between them stay empty. b: the log odds,
    the log shares of the classes, or the mean.
    """

    at_sites = True

    forest: Forest

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        forest, vector = self.forest, old.detach().cpu().clone()
        trees = Grown.of(vector, forest)
        counts, (total, *sums) = np.split(new.double().cpu().numpy(), [forest.inputs * (GRID + 1)])
        shares, borders = np.arange(1, forest.bins) / forest.bins, grid()
        below = counts.round().reshape(forest.inputs, -1).cumsum(1)
        for edges, cumulated in zip(trees.edges, below, strict=True):
            cell = np.searchsorted(cumulated, shares * cumulated[-1])
            edges[:] = borders[np.minimum(cell, GRID - 1)]
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

    forest: Forest

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        forest, vector = self.forest, old.detach().cpu().clone()
        trees = Grown.of(vector, forest)
        round = int(state["grown"]) if "grown" in state else 0
        level, first = forest.level(round), round // forest.depth * forest.scores
        sums = new.double().cpu().numpy()
        sums = sums.reshape(forest.scores, -1, forest.inputs, forest.bins, 3)
        sums = np.ascontiguousarray(np.moveaxis(sums, -1, 0))
        if level:
            sums = self._with_right(sums, state["histograms"].numpy(), trees, level, first)
        for k in range(forest.scores):
            self._split(trees, first + k, 2**level - 1, sums[:, k])
        after = {"grown": torch.tensor(round + 1), "histograms": torch.from_numpy(sums)}
        return vector.to(old), after

    def _with_right(
        self, left: Array, parents: Array, trees: Grown, level: int, first: int
    ) -> Array:
        """Return the histograms of both children: what the parent has more, if it was split."""
        G = self.forest.scores
        split = trees.feature[first : first + G, 2 ** (level - 1) - 1 : 2**level - 1] >= 0
        right = (parents - left) * split[:, :, None, None]
        both = np.stack([left, right], 3)
        return both.reshape(3, G, -1, *left.shape[3:])

    def _split(self, trees: Grown, tree: int, first: int, sums: Array) -> None:
        """Split nodes first, first + 1, ... of one tree by their histograms [3, nodes, d, B]."""
        forest = self.forest
        total = sums[:, :, 0].sum(-1)  # [3, nodes], from any column
        if first == 0:
            trees.value[tree, 0] = forest.leaf(total[0, 0], total[1, 0])
        left = sums.cumsum(-1)[..., :-1]
        right = total[..., None, None] - left
        gain = _score(left, forest.penalty) + _score(right, forest.penalty)
        gain -= _score(total, forest.penalty)[:, None, None]
        enough = np.minimum(left[2], right[2]) >= forest.least - 0.5
        gain = np.where(enough, gain, 0.0).reshape(sums.shape[1], -1)
        best = gain.argmax(1)
        for i in np.flatnonzero(gain.max(1) > 1e-9 * np.maximum(1.0, total[1])):
            node, child = first + i, 2 * (first + i) + 1
            column, edge = divmod(int(best[i]), forest.bins - 1)
            trees.feature[tree, node], trees.child[tree, node] = column, child
            trees.threshold[tree, node] = trees.edges[column, edge]
            for side, part in enumerate((left, right)):
                G, H, _ = part[:, i, column, edge]
                trees.value[tree, child + side] = forest.leaf(G, H)


def _score(sums: Array, penalty: float) -> Array:
    """Return G² / (H + λ) for sums [3, ...]; empty parts count 0."""
    score: Array = sums[0] ** 2 / np.maximum(sums[1] + penalty, 1e-12)
    return score
