"""The numbers of a boosted forest: its sizes, and views of a model's vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array = npt.NDArray[Any]
#: Columns are standardised; the grid is even in asinh(z), fine in the middle and wide outside.
#: Hashed words are not: they lie in [−1, 1], where it has 118 borders.
GRID, WIDEST = 1024, 1000.0
#: Derivatives and labels are rounded to multiples of this. Their sums are exact below 2^23, and so
#: the same bits for any order of rows and sites, and for any child that is not sent.
STEP = 2.0**-30
#: What the feature of a leaf is: of one that stays, and of one whose histogram is sent next.
LEAF, ASKED = -1, -2


@dataclass(frozen=True)
class BoostedForest:
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

    def pairs(self, level: int) -> int:
        """Return how many nodes of a level are sent: the root, or one child of each pair."""
        return int(2 ** max(0, level - 1))

    def row(self, level: int) -> int:
        """Return the numbers of a level's histograms."""
        return self.scores * self.pairs(level) * self.inputs * self.bins * 3

    def leaf(self, G: Array, H: Array) -> Array:
        """Return the values of leaves, 0 where there are no rows."""
        values: Array = -self.rate * G / np.maximum(H + self.penalty, STEP)
        return values

    @property
    def nodes(self) -> int:
        """Return M: children of node i are 2i + 1 and 2i + 2."""
        return int(2 ** (self.depth + 1) - 1)

    @property
    def counts(self) -> int:
        """Return the numbers of the counts that bins and the baseline are made of."""
        return self.inputs * (GRID + 1) + 1 + (self.classes or 1)


def in_steps(values: Array) -> Array:
    """Return values [...] in float64, rounded to multiples of `STEP`."""
    steps: Array = np.multiply(values, 1 / STEP, dtype=np.float64)
    return np.multiply(np.rint(steps, out=steps), STEP, out=steps)


def grid() -> Array:
    """Return the borders of the fine grid, in standard deviations."""
    borders: Array = np.sinh(np.linspace(-1, 1, GRID) * np.arcsinh(WIDEST)).astype(np.float32)
    return borders


@dataclass(frozen=True)
class Grown:
    """The numbers of `unseen.data.networks.trees.Trees` as views of its vector.

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
    def of(cls, vector: Tensor, forest: BoostedForest) -> Grown:
        """Return the views; what is written into them is written into the vector."""
        G, cut = forest.scores, forest.inputs * (forest.bins - 1)
        numbers = vector.detach().cpu().numpy()
        edges = numbers[G : G + cut].reshape(forest.inputs, -1)
        return cls(numbers[:G], edges, *numbers[G + cut :].reshape(4, -1, forest.nodes))

    def splits(self, iteration: int) -> tuple[Array, Array]:
        """Return the column of each node's split [G, M], < 0 at leaves, and the bin it ends at."""
        trees = self.under_way(iteration)
        feature = self.feature[trees].astype(np.int64)
        there = np.maximum(feature, -len(self.edges))  # a leaf's edges are not read
        edge = (self.edges[there] < self.threshold[trees, :, None]).sum(-1)
        return feature, edge

    def under_way(self, iteration: int) -> slice:
        """Return which trees an iteration grows, one for each score."""
        G = len(self.baseline)
        return slice(iteration * G, (iteration + 1) * G)

    def values(self, iteration: int, nodes: Array) -> Array:
        """Return what an iteration's trees add to the scores [N, G] of rows at these nodes."""
        value = self.value[self.under_way(iteration)].astype(np.float64)
        values: Array = value[np.arange(len(value)), nodes]
        return values
