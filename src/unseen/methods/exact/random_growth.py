"""Extremely randomised trees: the server draws cuts, sites count the rows left of them.

At every node m columns are drawn and one cut of each, before anything is known of the rows there.
Sites send what lies left of each cut: the rows of each class, or their number and Σ y. Of the cuts
the server takes the one with the largest

    Σ_c L_c² / n_L + Σ_c R_c² / n_R,

which has the least Gini impurity; of numbers, Σ_c is one sum, that of y, and it has the least
squared error. Cuts are drawn evenly among the borders of bins that earlier cuts leave to a node.
Sums are exact, so that the trees are those of the pooled rows, bit for bit.

Source:
    Geurts, Ernst and Wehenkel 2006, "Extremely randomized trees", Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unseen.core import RuleState, WithState
from unseen.core.turn import keyed
from unseen.core.types import Table
from unseen.methods.exact.boosted_views import GRID, Array, grid
from unseen.methods.exact.boosting import edges_at
from unseen.methods.exact.random_views import Sizes, Views

#: What the server remembers from level to level.
PARTS = ("low", "high", "total", "used", "top", "root")


@dataclass(frozen=True)
class Plant:
    """The server's step that sets the borders of bins, and the first cuts to try."""

    at_sites = True

    sizes: Sizes

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        sizes, vector = self.sizes, old.detach().cpu().clone()
        views = Views.of(vector, sizes)
        counts, (total, *sums) = np.split(new.double().cpu().numpy(), [sizes.inputs * (GRID + 1)])
        below = counts.round().reshape(sizes.inputs, -1).cumsum(1)
        views.edges[:] = edges_at(below, sizes.bins)
        growth = Growth.blank(sizes)
        growth.root[:] = np.rint(sums) if sizes.classes is not None else (round(total), sums[0])
        assert views.whole is not None
        views.whole.value[:, 0] = growth.value_of(growth.root)  # until they grow
        growth.top[:] = [
            np.searchsorted(edges, grid()[np.searchsorted(own, own[-1]) - 1], "right")
            for edges, own in zip(views.edges, below, strict=True)
        ]
        growth.plant(views, 0)
        return vector.to(old), growth.state(0)


@dataclass(frozen=True)
class Branch:
    """The server's step that splits the nodes of one level of the trees under way."""

    at_sites = True

    sizes: Sizes

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        sizes, vector = self.sizes, old.detach().cpu().clone()
        views, growth = Views.of(vector, sizes), Growth.of(sizes, state)
        now = int(state["grown"])
        block, level = divmod(now, sizes.depth)
        shape = (sizes.block, sizes.split(level), sizes.tries, sizes.sums)
        sums = new.double().cpu().numpy().reshape(shape)
        for t in range(sizes.block):
            growth.branch(views, t, block, level, sums[t])
        if level + 1 == sizes.depth:
            views.finish(block)
            growth.plant(views, block + 1)
        return vector.to(old), growth.state(now + 1)


@dataclass(frozen=True)
class Growth:
    """What the server remembers of the trees under way; arrays are changed in place.

    Attributes:
        sizes: Those of the forest.
        low, high: Between which borders the cuts of a node may lie [block, W, d].
        total: The sums over the rows of a node [block, W, S].
        used: How many places for nodes each tree has used [block].
        top: How many borders of a column have rows above them [d].
        root: The sums over all rows [S].
    """

    sizes: Sizes
    low: Array
    high: Array
    total: Array
    used: Array
    top: Array
    root: Array

    @classmethod
    def blank(cls, sizes: Sizes) -> Growth:
        """Return it for trees that are not planted."""
        nodes = (sizes.block, sizes.width)
        low, high = np.zeros((2, *nodes, sizes.inputs), np.int16)
        total, used = np.zeros((*nodes, sizes.sums)), np.zeros(nodes[0], np.int64)
        top, root = np.zeros(sizes.inputs, np.int64), np.zeros(sizes.sums)
        return cls(sizes, low, high, total, used, top, root)

    @classmethod
    def of(cls, sizes: Sizes, state: RuleState) -> Growth:
        """Return it from the state of the step before, which stays as it is."""
        return cls(sizes, *(state[name].numpy().copy() for name in PARTS))

    def state(self, grown: int) -> RuleState:
        """Return what the next step reads."""
        parts = {name: torch.from_numpy(getattr(self, name)) for name in PARTS}
        return {"grown": torch.tensor(grown), **parts}

    def plant(self, views: Views, block: int) -> None:
        """Make the roots of a block's trees the nodes to split."""
        trees = views.under_way
        views.place[:], self.used[:] = -1, 1
        for part in (trees.threshold, trees.child, trees.value):
            part[:] = 0.0
        trees.feature[:], views.place[:, 0] = -1, 0
        self.total[:, 0] = self.root
        trees.value[:, 0] = self.value_of(self.total[0, 0])
        self.low[:, 0], self.high[:, 0] = -1, self.top
        for t in range(self.sizes.block):
            self._draw(views, t, block, 0, 1)

    def branch(self, views: Views, t: int, block: int, level: int, left: Array) -> None:
        """Split the nodes of a level of a tree by the sums left of their cuts [n, m, S]."""
        count = int((views.place[t] >= 0).sum())
        if self.sizes.classes is not None:
            left = np.rint(left)  # what encryption adds to whole numbers is far below a half
        total = self.total[t, :count].copy()
        gain = self._gain(left[:count], total[:, None])
        best = gain.argmax(1)
        splits = np.flatnonzero(gain[np.arange(count), best] > 1e-9 * np.maximum(1, self._n(total)))
        best = best[splits]
        node = views.place[t, splits].astype(np.int64)
        column = views.column[t, splits, best].astype(np.int64)
        cut = views.cut[t, splits, best].copy()
        child = self.used[t] + 2 * np.arange(len(splits))
        self.used[t] += 2 * len(splits)
        trees = views.under_way
        trees.feature[t, node], trees.threshold[t, node] = column, cut
        trees.child[t, node] = child
        parts = left[splits, best]
        both = np.stack([parts, total[splits] - parts], 1)  # [splits, 2, S]
        trees.value[t, child] = self.value_of(both[:, 0])
        trees.value[t, child + 1] = self.value_of(both[:, 1])
        low, high = (np.repeat(box[t, splits, None], 2, 1) for box in (self.low, self.high))
        every, edges = np.arange(len(splits)), views.edges[column]
        high[every, 0, column] = (edges < cut[:, None]).sum(1)
        low[every, 1, column] = (edges <= cut[:, None]).sum(1) - 1
        nodes = np.stack([child, child + 1], 1).ravel()
        self._go_on(views, t, block, level + 1, nodes, both, low, high)

    def _go_on(
        self, views: Views, t: int, block: int, level: int, nodes: Array, total: Array,
        low: Array, high: Array,
    ) -> None:  # fmt: skip
        """Make of new nodes those with most rows the ones to split next, as many as may be."""
        sizes, d = self.sizes, self.sizes.inputs
        total, low, high = total.reshape(-1, sizes.sums), low.reshape(-1, d), high.reshape(-1, d)
        views.place[t] = -1
        if level == sizes.depth:
            return
        n = self._n(total)
        mixed = n >= 2 * sizes.least
        if sizes.classes is not None:
            mixed &= total.max(1, initial=0.0) < n
        large = np.argsort(-n, kind="stable")
        parents = np.sort(large[mixed[large]][: sizes.split(level)])
        count = len(parents)
        views.place[t, :count] = nodes[parents]
        self.low[t, :count], self.high[t, :count] = low[parents], high[parents]
        self.total[t, :count] = total[parents]
        self._draw(views, t, block, level, count)

    def _draw(self, views: Views, t: int, block: int, level: int, count: int) -> None:
        """Draw the cuts of nodes: m columns that have one left, and one border of each."""
        sizes = self.sizes
        tree = block * sizes.block + t
        generator = keyed(f"forest/{sizes.draw}/{tree}/{level}")
        order = torch.rand(count, sizes.inputs, generator=generator).numpy()
        where = torch.rand(count, sizes.tries, generator=generator).numpy()
        low, high = self.low[t, :count].astype(np.int64), self.high[t, :count].astype(np.int64)
        order[high - low < 2] = np.inf
        column = np.argsort(order, 1, kind="stable")[:, : sizes.tries]
        every = np.arange(count)[:, None]
        free = np.maximum(high - low - 1, 0)[every, column]
        edge = low[every, column] + 1 + np.minimum(np.floor(where * free), free - 1).astype(int)
        cut = views.edges[column, np.clip(edge, 0, sizes.bins - 2)]
        views.column[t, :count] = column
        views.cut[t, :count] = np.where(free > 0, cut, -np.inf)  # which nothing is left of

    def _gain(self, left: Array, total: Array) -> Array:
        """Return by how much cuts [n, m] better the score, −∞ where a side has too few rows."""

        def score(sums: Array) -> Array:
            squares = sums**2 if self.sizes.classes is not None else sums[..., 1:] ** 2
            score: Array = squares.sum(-1) / np.maximum(self._n(sums), 1.0)
            return score

        right = total - left
        few = np.minimum(self._n(left), self._n(right)) < self.sizes.least - 0.5
        gain: Array = np.where(few, -np.inf, score(left) + score(right) - score(total))
        return gain

    def _n(self, sums: Array) -> Array:
        """Return the rows of sums [..., S]."""
        rows: Array = sums.sum(-1) if self.sizes.classes is not None else np.rint(sums[..., 0])
        return rows

    def value_of(self, sums: Array) -> Array:
        """Return the value [..., C] of nodes: shares of classes, or the mean."""
        n = np.maximum(self._n(sums), 1.0)[..., None]
        value: Array = (sums if self.sizes.classes is not None else sums[..., 1:]) / n
        return value
