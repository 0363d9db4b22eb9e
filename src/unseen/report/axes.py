"""Scales: numbers to pixels, and the places of ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """From numbers in [low, high] to pixels in [start, stop]; what lies outside is put at the
    edge."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a number."""
        low, high, value = (self._own(v) for v in (self.low, self.high, value))
        share = (value - low) / ((high - low) or 1.0)
        return self.start + min(max(share, 0.0), 1.0) * (self.stop - self.start)

    def _own(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self, about: int = 4) -> list[float]:
        """Round numbers within the scale."""
        if self.log:
            powers = range(math.floor(self._own(self.low)), math.ceil(self._own(self.high)) + 1)
            found = [m * 10.0**p for p in powers for m in (1, 2, 5)]
            inside = [v for v in found if self.low * 0.999 <= v <= self.high * 1.001]
            return inside if len(inside) <= about + 2 else [v for v in inside if _power(v)]
        return nice(self.low, self.high, about)


def nice(low: float, high: float, about: int = 4) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten in [low, high], about so many.

    >>> nice(0.0, 1.0), nice(3, 41)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [10.0, 20.0, 30.0, 40.0])
    """
    if high <= low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.8)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def spread(
    values: Iterable[float], zero: bool = False, margin: float = 0.06
) -> tuple[float, float]:
    """Limits that hold the values with a margin; a few far outliers are left beyond the edge."""
    found = sorted(v for v in values if math.isfinite(v))
    if not found:
        return 0.0, 1.0
    low, high = found[0], found[-1]
    # Where the upper hundredth is ten times as far out as all the rest, the rest is the picture.
    bulk = found[max(0, math.ceil(len(found) * 0.99) - 1)]
    if len(found) > 20 and high - low > 10 * (bulk - low) > 0:
        high = bulk
    low = min(low, 0.0) if zero else low
    room = (high - low) * margin or abs(high) * margin or 0.5
    return (low if zero and low == 0 else low - room), high + room


def number(value: float, percent: bool = False) -> str:
    """A tick's text.

    >>> number(0.5), number(0.5, percent=True), number(12000.0), number(0.00001)
    ('0.5', '50', '12k', '1e-5')
    """
    value = value * 100 if percent else value
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    if 0 < size < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:.4g}"


def shortened(text: str, length: int) -> str:
    """A text that is not longer than so many letters.

    >>> shortened("fedprox(mu=0.1)", 10)
    'fedprox(m…'
    """
    return text if len(text) <= length else text[: length - 1] + "…"


def mean(values: Sequence[float]) -> float:
    """The mean, for places of marks."""
    return math.fsum(values) / len(values)


def _power(value: float) -> bool:
    return abs(math.log10(value) - round(math.log10(value))) < 1e-9
