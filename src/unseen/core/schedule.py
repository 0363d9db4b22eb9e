"""Learning rates over rounds: each schedule maps (round, rounds) to a factor on the rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from unseen.core.share import floor_share
from unseen.errors import number


class Schedule(Protocol):
    """(round, counted from 0, and the number of rounds) -> a factor on the learning rate."""

    def __call__(self, round: int, rounds: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """1 throughout."""

    def __call__(self, round: int, rounds: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Step:
    """`factor` from round floor(at · rounds) on, 1 before.

    Attributes:
        at: The share of the rounds after which the rate falls.
        factor: The factor from then on.

    Example:
        >>> [Step(at=0.8, factor=0.1)(r, 10) for r in (7, 8)]
        [1.0, 0.1]
    """

    at: float = 0.8
    factor: float = 0.1

    def __post_init__(self) -> None:
        number("step(at)", self.at, 0, 1)
        number("step(factor)", self.factor, 0, open_low=True)

    def __call__(self, round: int, rounds: int) -> float:
        return self.factor if round >= floor_share(self.at, rounds) else 1.0


@dataclass(frozen=True)
class Exponential:
    """factor ** round, as the WILDS recipes' 0.96 per epoch."""

    factor: float = 0.96

    def __post_init__(self) -> None:
        number("exponential(factor)", self.factor, 0, 1, open_low=True)

    def __call__(self, round: int, rounds: int) -> float:
        return self.factor**round


@dataclass(frozen=True)
class Cosine:
    """(1 + cos(π r/R)) / 2."""

    def __call__(self, round: int, rounds: int) -> float:
        return (1 + math.cos(math.pi * round / rounds)) / 2


SCHEDULES = {"constant": Constant, "step": Step, "exponential": Exponential, "cosine": Cosine}
