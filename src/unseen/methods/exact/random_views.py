"""The numbers of a forest of extremely randomised trees: its sizes, and views of its vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unseen.methods.exact.boosted_views import GRID

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Sizes:
    """The sizes of the trees, and how they grow.

    Attributes:
        trees: T.
        block: How many trees grow at a time.
        depth: Levels of splits.
        width: The most nodes of a tree that are split on one level.
        tries: m, the random splits that are tried at a node.
        least: The fewest rows in a leaf.
        bins: B, the bins of a column, between which splits lie.
        inputs: d, the columns.
        classes: C, or None for a number.
        draw: Which of many forests this is.
    """

    trees: int
    block: int
    depth: int
    width: int
    tries: int
    least: int
    bins: int
    inputs: int
    classes: int | None
    draw: int

    @property
    def rounds(self) -> int:
        """Return how many levels all blocks have."""
        return -(-self.trees // self.block) * self.depth

    def split(self, level: int) -> int:
        """Return the most nodes of a tree that are split on a level."""
        return int(min(2**level, self.width))

    @property
    def nodes(self) -> int:
        """Return M, the places for nodes of a tree."""
        return 1 + 2 * sum(map(self.split, range(self.depth)))

    @property
    def sums(self) -> int:
        """Return S: of classes the rows of each; of a number the rows and Σ y."""
        return self.classes or 2

    def shapes(self, trees: int) -> list[tuple[int, ...]]:
        """Return the shapes of what so many trees are made of: f, θ, c and v."""
        return [(trees, self.nodes)] * 3 + [(trees, self.nodes, self.classes or 1)]

    def row(self, level: int) -> int:
        """Return the numbers that a site sends for a level."""
        return self.block * self.split(level) * self.tries * self.sums

    @property
    def counts(self) -> int:
        """Return the numbers of the counts that bins and roots are made of."""
        return self.inputs * (GRID + 1) + 1 + (self.classes or 1)

    @property
    def workspace(self) -> int:
        """Return how many numbers training keeps beside the trees, all that sites read."""
        asked = self.width * (1 + 2 * self.tries)
        tree = self.nodes * (3 + (self.classes or 1))
        return self.inputs * (self.bins - 1) + self.block * (asked + tree)


@dataclass(frozen=True)
class Trees:
    """The nodes of some trees, as views.

    Attributes:
        feature, threshold, child: [T, M].
        value: [T, M, C].
    """

    feature: Array
    threshold: Array
    child: Array
    value: Array


@dataclass(frozen=True)
class Views:
    """The numbers of `unseen.data.networks.random_trees.RandomTrees` as views of its vector.

    Attributes:
        edges: [d, B − 1].
        place: Nodes of the trees under way that are to be split [block, W], −1 for none.
        column, cut: The splits to try at them [block, W, m].
        under_way: The trees that grow.
        whole: All trees; None where they are not at hand.
    """

    edges: Array
    place: Array
    column: Array
    cut: Array
    under_way: Trees
    whole: Trees | None

    @classmethod
    def of(cls, vector: Tensor, sizes: Sizes) -> Views:
        """Return the views; what is written into them is written into the vector.

        Args:
            vector: All numbers [P], or those that training keeps.
            sizes: Those of the forest.
        """
        s, asked = sizes, (sizes.block, sizes.width)
        whole = s.shapes(s.trees) if len(vector) > s.workspace else []
        shapes = [
            (s.inputs, s.bins - 1), asked, (*asked, s.tries), (*asked, s.tries),
            *s.shapes(s.block), *whole,
        ]  # fmt: skip
        ends = np.cumsum([np.prod(shape, dtype=np.int64) for shape in shapes])
        parts = np.split(vector.detach().cpu().numpy(), ends[:-1])
        edges, place, column, cut, *nodes = (
            part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)
        )
        every = Trees(*nodes[4:]) if whole else None
        return cls(edges, place, column, cut, Trees(*nodes[:4]), every)

    def finish(self, block: int) -> None:
        """Put the trees under way where the block's are; the last one may be smaller."""
        assert self.whole is not None  # the slot of the last level reads all
        for name in ("feature", "threshold", "child", "value"):
            own = getattr(self.whole, name)[block * len(self.place) :][: len(self.place)]
            own[:] = getattr(self.under_way, name)[: len(own)]
