"""The numbers of a boosted forest: its sizes, and views of a model's vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array = npt.NDArray[Any]
#: Columns are standardised; the grid is even in asinh(z), fine in the middle and wide outside.
GRID, WIDEST = 1024, 1000.0


@dataclass(frozen=True)
class Forest:
    """The sizes of the trees, and how they are fitted.

    Attributes:
        trees: Iterations, each of one tree per score.
        depth: Levels of splits.
        rate: η, what each tree's values are multiplied by.
        penalty: λ.
        least: The fewest rows in a leaf.
        bins: B, the bins of a column.
        scores: G.
        inputs: d, the columns.
        classes: C, or None for a number.
    """

    trees: int
    depth: int
    rate: float
    penalty: float
    least: int
    bins: int
    scores: int
    inputs: int
    classes: int | None

    def level(self, round: int) -> int:
        """Return the level that a round grows."""
        return round % self.depth

    def sent(self, level: int) -> int:
        """Return how many nodes of a level are sent: the root, or the left child of each pair."""
        return int(2 ** max(0, level - 1))

    def row(self, level: int) -> int:
        """Return the numbers of a level's histograms."""
        return self.scores * self.sent(level) * self.inputs * self.bins * 3

    def leaf(self, G: float, H: float) -> float:
        """Return a leaf's value, 0 where there are no rows."""
        return -self.rate * G / max(H + self.penalty, 1e-12)

    @property
    def nodes(self) -> int:
        """Return M: children of node i are 2i + 1 and 2i + 2."""
        return int(2 ** (self.depth + 1) - 1)

    @property
    def counts(self) -> int:
        """Return the numbers of the counts that bins and the baseline are made of."""
        return self.inputs * (GRID + 1) + 1 + (self.classes or 1)


def grid() -> Array:
    """Return the borders of the fine grid, in standard deviations."""
    borders: Array = np.sinh(np.linspace(-1, 1, GRID) * np.arcsinh(WIDEST)).astype(np.float32)
    return borders


@dataclass(frozen=True)
class Grown:
    """The numbers of `unseen.models.trees.Trees` as views of its vector.

    Attributes:
        baseline: [G].
        edges: [d, B − 1].
        feature, threshold, child, value: [T G, M].
    """

    baseline: Array
    edges: Array
    feature: Array
    threshold: Array
    child: Array
    value: Array

    @classmethod
    def of(cls, vector: Tensor, forest: Forest) -> Grown:
        """Return the views; what is written into them is written into the vector."""
        G, cut = forest.scores, forest.inputs * (forest.bins - 1)
        baseline, edges, rest = np.split(vector.detach().cpu().numpy(), [G, G + cut])
        trees = rest.reshape(4, forest.trees * G, forest.nodes)
        return cls(baseline, edges.reshape(forest.inputs, -1), *trees)

    def splits(self, tree: int) -> tuple[Array, Array]:
        """Return the column of each node's split [M], −1 at leaves, and the bin where it ends."""
        feature = self.feature[tree].astype(np.int64)
        edge = (self.edges[feature] < self.threshold[tree][:, None]).sum(1)
        return feature, edge

    def values(self, iteration: int, nodes: Array) -> Array:
        """Return what an iteration's trees add to the scores [N, G] of rows at these nodes."""
        G = nodes.shape[1]
        trees = np.arange(iteration * G, (iteration + 1) * G)
        return self.value[trees, nodes].astype(np.float64)
