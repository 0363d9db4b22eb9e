"""Learning rates over rounds, factors by (round, rounds); decimal shares of counts, exactly."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Protocol

from unseen.ranges import Checked, Positive, Range, Share


class Schedule(Protocol):
    """(round, counted from 0, and the number of rounds) -> a factor on the learning rate."""

    def __call__(self, round: int, rounds: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """1 throughout."""

    def __call__(self, round: int, rounds: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Step(Checked, named="step"):
    """`factor` from round floor(at · rounds) on, 1 before.

    Attributes:
        at: The share of the rounds after which the rate falls.
        factor: The factor from then on.

    Example:
        >>> [Step(at=0.8, factor=0.1)(r, 10) for r in (7, 8)]
        [1.0, 0.1]
    """

    at: Share = 0.8
    factor: Positive = 0.1

    def __call__(self, round: int, rounds: int) -> float:
        return self.factor if round >= floor_share(self.at, rounds) else 1.0


@dataclass(frozen=True)
class Exponential(Checked, named="exponential"):
    """factor ** round, as the WILDS recipes' 0.96 per epoch."""

    factor: Annotated[float, Range(0, 1, open_low=True)] = 0.96

    def __call__(self, round: int, rounds: int) -> float:
        return self.factor**round


@dataclass(frozen=True)
class Cosine:
    """(1 + cos(π r/R)) / 2."""

    def __call__(self, round: int, rounds: int) -> float:
        return (1 + math.cos(math.pi * round / rounds)) / 2


SCHEDULES = {"constant": Constant, "step": Step, "exponential": Exponential, "cosine": Cosine}


#: What is nearer to a whole number than this is that number: 1/3 of 3 is 1. Decimals of up to nine
#: places are never this near to one that they are not.
NEAR = Fraction(1, 10**9)


def exact(share: float, n: int) -> Fraction:
    """Return share · n for the decimal that `share` is written as, whole within rounding.

    Example:
        >>> exact(0.29, 100), exact(1 / 3, 3), exact(0.35, 90)
        (Fraction(29, 1), Fraction(1, 1), Fraction(63, 2))
    """
    product = Fraction(str(share)) * n
    whole = round(product)
    return Fraction(whole) if abs(product - whole) < NEAR else product


def floor_share(share: float, n: int) -> int:
    """Return ⌊share · n⌋.

    Example:
        >>> floor_share(0.29, 100), int(0.29 * 100)
        (29, 28)
    """
    return math.floor(exact(share, n))


def ceil_share(share: float, n: int) -> int:
    """Return ⌈share · n⌉.

    Example:
        >>> ceil_share(0.07, 100), math.ceil(0.07 * 100)
        (7, 8)
    """
    return math.ceil(exact(share, n))


def round_share(share: float, n: int) -> int:
    """Return the whole number nearest to share · n, the even one of two.

    Example:
        >>> round_share(0.35, 90), round(0.35 * 90)
        (32, 31)
    """
    return round(exact(share, n))
