"""A decimal share of a count as whole numbers: 0.29 of 100 is 29, though 0.29 * 100 is below it."""

from __future__ import annotations

import math
from fractions import Fraction

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
