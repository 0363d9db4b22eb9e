"""Metrics of one site with bootstrap intervals over its examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from unseen.core.bootstrap import bootstrap
from unseen.core.exchange import keyed
from unseen.core.metrics import METRICS
from unseen.core.weighted_metrics import WEIGHTED
from unseen.results.formats import decimals

#: Bootstrap samples, and the share of them inside the interval.
RESAMPLES, LEVEL = 1000, 0.95


@dataclass(frozen=True)
class Measured:
    """A metric of one site: its value and the ends of its interval, None where undefined."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def text(self, percent: bool = False) -> str:
        """Return the value with its interval, as tables print them.

        >>> Measured(0.8125, 0.75, 0.875).text(percent=True)
        '81.2 [75.0, 87.5]'
        """
        if self.value is None:
            return "undefined"
        scale, digits = (100, 1) if percent else (1, decimals("loss", abs(self.value)))
        shown = f"{self.value * scale:.{digits}f}"
        if self.low is None or self.high is None:
            return shown
        return f"{shown} [{self.low * scale:.{digits}f}, {self.high * scale:.{digits}f}]"


def measured(outputs: Tensor, y: Tensor, metrics: Sequence[str]) -> dict[str, Measured]:
    """Return each metric with its 95% percentile interval over 1000 resamples of the examples.

    The draws are keyed, so the same outputs give the same interval. It is about further examples
    of the same site, and says nothing about another one. Samples in which a metric is undefined
    are left out; with fewer than two examples there is no interval.

    Args:
        outputs: The model's outputs [N, C].
        y: The labels [N].
        metrics: Names in `METRICS`.
    """
    weighted = {name: WEIGHTED[name](outputs, y) for name in metrics if name in WEIGHTED}
    draws = RESAMPLES if len(y) > 1 else 0
    samples = bootstrap(weighted, len(y), draws, keyed("bootstrap/examples"))
    return {
        name: _with_ends(METRICS[name](outputs, y), samples.get(name, outputs[:0]))
        for name in metrics
    }


def _with_ends(value: float | None, samples: Tensor) -> Measured:
    samples = samples[samples.isfinite()].sort().values
    if value is None or len(samples) < RESAMPLES / 2:
        return Measured(value)
    low, high = (
        float(samples[round((1 + side * LEVEL) / 2 * (len(samples) - 1))]) for side in (-1, 1)
    )
    return Measured(value, low, high)
