"""What a site sends for a level of random trees: its rows left of every cut that is tried."""

from dataclasses import dataclass

import numpy as np
import torch

from unseen.core import Client, Inbox, Memory, Model, Reply, Turn
from unseen.core.parts import Part
from unseen.methods.exact.boosted_views import Array, in_steps
from unseen.methods.exact.histograms import rows
from unseen.methods.exact.node_rows import whole_sides, with_siblings
from unseen.methods.exact.random_views import Sizes, Trees, Views

#: The place of a node that is not to be split.
NOWHERE = -1
#: Rows that are counted at a time; sums over runs of them are exact, and so the same bits.
ROWS = 16384


@dataclass(frozen=True)
class LeftOfCuts(Part):
    """What a site sends for one level: sums over its rows left of every cut that is tried.

    Attributes:
        sizes: Those of the forest.
        least: Rows on each side of a cut, and at a node; fewer count on the other side.
    """

    sends_sums = True
    adds_exactly = True

    sizes: Sizes
    least: int = 1

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        sizes, views = self.sizes, Views.of(model.vector[: self.sizes.workspace], self.sizes)
        x, y = rows(client)
        level = turn.round % sizes.depth
        nodes = self._nodes(views.under_way, x, level)
        runs = [slice(begin, begin + ROWS) for begin in range(0, max(1, len(y)), ROWS)]
        width = sizes.split(level)
        sums = np.sum([self._sums(views, x[r], y[r], nodes[r], width) for r in runs], 0)
        if self.least > 1:
            sums = self._spared(sums, self._totals(views, y, nodes, width))
        loss = self._loss(views.under_way.value, nodes, y)
        scalars = {"examples": len(y), "steps": 1, "loss": loss}
        return Reply({"model": torch.from_numpy(sums)}, scalars), memory

    def _nodes(self, trees: Trees, x: Array, level: int) -> Array:
        """Return where the rows are after so many levels, in each tree under way [N, block]."""
        feature, threshold = trees.feature.astype(np.int64), trees.threshold
        child = trees.child.astype(np.int64)
        every, own = np.arange(len(x))[:, None], np.arange(len(feature))
        nodes = np.zeros((len(x), len(feature)), np.int64)
        for _ in range(level):
            column = feature[own, nodes]
            right = x[every, np.maximum(column, 0)] > threshold[own, nodes]
            nodes = np.where(column >= 0, child[own, nodes] + right, nodes)
            nodes = with_siblings(nodes, self.least)
        return nodes

    def _sums(self, views: Views, x: Array, y: Array, nodes: Array, width: int) -> Array:
        """Return the sums left of the cuts, flat [block · width · m · S]."""
        sizes = self.sizes
        row, tree, at = self._asked(views, nodes, width)
        column = views.column[tree, at].astype(np.int64)
        left = x[row[:, None], column] <= views.cut[tree, at]
        cell = ((tree * width + at) * sizes.tries)[:, None] + np.arange(sizes.tries)
        own, _ = np.nonzero(left)
        cell, cells = cell[left], sizes.block * width * sizes.tries
        if sizes.classes is not None:
            counts = np.bincount(cell * sizes.sums + y[row[own]], minlength=cells * sizes.sums)
            return counts.astype(np.float64)
        counts = np.bincount(cell, minlength=cells)
        totals = np.bincount(cell, in_steps(y)[row[own]], cells)
        return np.stack([counts, totals], 1).ravel().astype(np.float64)  # bincount of none: int64

    def _asked(self, views: Views, nodes: Array, width: int) -> tuple[Array, Array, Array]:
        """Return the rows at nodes that are to be split, with their trees and these nodes."""
        asked = np.full((self.sizes.block, self.sizes.nodes), NOWHERE)
        tree, place = np.nonzero(views.place[:, :width] >= 0)
        asked[tree, views.place[tree, place].astype(np.int64)] = place
        at = asked[np.arange(self.sizes.block), nodes]
        row, tree = np.nonzero(at >= 0)
        return row, tree, at[row, tree]

    def _totals(self, views: Views, y: Array, nodes: Array, width: int) -> Array:
        """Return the sums over the rows of each node that is to be split [block · width, S]."""
        (row, tree, at), cells = self._asked(views, nodes, width), self.sizes.block * width
        cell, S = tree * width + at, self.sizes.sums
        if self.sizes.classes is not None:
            return np.bincount(cell * S + y[row], minlength=cells * S).reshape(-1, S)
        counts = np.bincount(cell, minlength=cells)
        return np.stack([counts, np.bincount(cell, in_steps(y)[row], cells)], 1)

    def _spared(self, sums: Array, total: Array) -> Array:
        """Return the sums without those over fewer rows than the least."""
        left, total = sums.reshape(len(total), -1, self.sizes.sums), total[:, None]
        classes = self.sizes.classes is not None
        rows, all_rows = (x.sum(-1) if classes else x[..., 0] for x in (left, total))
        return whole_sides(left, total, rows, all_rows, self.least).ravel()

    def _loss(self, value: Array, nodes: Array, y: Array) -> float:
        """Return the mean loss of the trees under way, as far as they have grown."""
        if not len(y):
            return 0.0
        mean = value[np.arange(len(value)), nodes].mean(1)
        if self.sizes.classes is None:
            return float(np.square(mean[:, 0] - y).mean())
        return float(-np.log(np.maximum(mean[np.arange(len(y)), y], 1e-6)).mean())
