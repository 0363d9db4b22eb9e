"""From what was measured of an exchange to the seconds of a round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unseen.recipe import Training


@dataclass(frozen=True)
class Work:
    """What a measurement has: clients that train, their batches, examples in each."""

    clients: int
    steps: int
    examples: int

    @property
    def rows(self) -> int:
        """Examples of a client's training split."""
        return self.steps * self.examples


@dataclass(frozen=True)
class Point:
    """What a measurement found. step: seconds of one step of training; client: of the rest of what
    a client does; server: of what the server does."""

    work: Work
    step: float
    client: float
    server: float

    def least(self, other: Point | None) -> Point:
        """The least of two measurements of the same work: what disturbs only adds."""
        if other is None:
            return self
        pairs = zip(self._seconds, other._seconds, strict=True)
        return Point(self.work, *(min(pair) for pair in pairs))

    @property
    def _seconds(self) -> tuple[float, float, float]:
        return self.step, self.client, self.server


@dataclass(frozen=True)
class Cost:
    """Seconds of an exchange, from a measurement and one of smaller batches, if there is one.

    share: of the first one's step, what does not depend on the examples; none where the two tell.
    It stands for the rest as well where there is no second.
    """

    large: Point
    small: Point | None = None
    share: float | None = None

    def step(self) -> tuple[float, float]:
        """Seconds of a step, and more for each of its examples."""
        a, b = self.large, self.small
        if self.share is not None:
            return a.step * self.share, a.step * (1 - self.share) / a.work.examples
        return line(a.work.examples, a.step, *((b.work.examples, b.step) if b else (0, 0.0)))

    def rest(self) -> tuple[float, float]:
        """Seconds of the rest of what a client does, and more for each example of its split."""
        a, b = self.large, self.small
        if b is None and self.share is not None:
            return a.client * self.share, a.client * (1 - self.share) / a.work.rows
        return line(a.work.rows, a.client, *((b.work.rows, b.client) if b else (0, 0.0)))

    def round(self, sizes: Sequence[int], recipe: Training | None, clients: int) -> float:
        """One round's, for clients of which so many of the roster take part.

        sizes: examples of the roster's training splits; recipe: how the exchange trains, if it
        does.
        """
        (fixed, each), (apart, row) = self.step(), self.rest()
        total = sum(apart + row * size for size in sizes)
        if recipe is not None:
            for steps, examples in (drawn(size, recipe) for size in sizes):
                total += fixed * steps + each * examples
        return total / len(sizes) * clients + self.large.server


def line(x: float, y: float, x0: float, y0: float) -> tuple[float, float]:
    """The constant and the slope, neither negative, of a line through (x, y), and near (x0, y0).

    >>> line(4, 9.0, 2, 5.0), line(4, 8.0, 2, 9.0), line(4, 8.0, 2, 1.0)
    ((1.0, 2.0), (8.0, 0.0), (0.0, 2.0))
    """
    slope = min(max(0.0, (y - y0) / (x - x0)), y / x)
    return y - slope * x, slope


def drawn(size: int, recipe: Training) -> tuple[int, int]:
    """Steps and examples of one round of a client with so many examples."""
    batch = recipe.batch_size
    steps = size // batch if recipe.drop_last else math.ceil(size / batch)
    examples = min(size, steps * batch)
    if recipe.epochs is not None:
        return recipe.epochs * steps, recipe.epochs * examples
    assert recipe.steps is not None  # one of the two is set
    return recipe.steps, round(recipe.steps * examples / max(1, steps))
