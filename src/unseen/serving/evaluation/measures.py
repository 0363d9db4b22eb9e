"""Metrics of one site with intervals over its examples."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from unseen.core.turn import keyed
from unseen.metrics.bootstrap import bootstrap, interval
from unseen.metrics.evaluation import METRICS
from unseen.metrics.weighted_metrics import WEIGHTED
from unseen.results.formats import decimals
from unseen.serving.policy import Policy

#: Bootstrap samples.
RESAMPLES = 1000


class Measured(NamedTuple):
    """A metric of one site.

    Attributes:
        value: The value; None where it is undefined.
        low: The lower end of its interval; None where there is none.
        high: The upper end.
    """

    value: float | None
    low: float | None = None
    high: float | None = None

    def text(self, percent: bool = False) -> str:
        """Return the value with its interval, as tables print them.

        Example:
            >>> Measured(0.8125, 0.75, 0.875).text(percent=True)
            '81.2 [75.0, 87.5]'
        """
        if self.value is None:
            return "undefined"
        scale, digits = (100, 1) if percent else (1, decimals("loss", abs(self.value)))
        text = f"{self.value * scale:.{digits}f}"
        if self.low is None or self.high is None:
            return text
        return f"{text} [{self.low * scale:.{digits}f}, {self.high * scale:.{digits}f}]"


def cells(metrics: Mapping[str, Sequence[float | None]]) -> list[str]:
    """Return each metric of a site as text, from its value and the ends of its interval."""
    return [Measured(*parts).text("accuracy" in name) for name, parts in metrics.items()]


def measured(
    outputs: Tensor, y: Tensor, metrics: Sequence[str], policy: Policy | None = None
) -> dict[str, Measured]:
    """Return each metric with its 95% percentile interval over 1000 resamples of the examples.

    Args:
        outputs: The model's outputs [N, C].
        y: The labels [N].
        metrics: Names in `METRICS`.
        policy: Where the threshold of decisions lies, if it is not the largest probability.

    Note:
        The draws are keyed, so the same outputs give the same interval. It is about further
        examples of the same site, and says nothing about another one. Samples in which a metric is
        undefined are left out; with fewer than two examples there is no interval.
    """
    z = {n: policy.for_metric(n, outputs) if policy is not None else outputs for n in metrics}
    weighted = {name: WEIGHTED[name](z[name], y) for name in metrics}
    draws = RESAMPLES if len(y) > 1 else 0
    samples = bootstrap(weighted, len(y), draws, keyed("bootstrap/examples"))
    values = {name: METRICS[name](z[name], y) for name in metrics}
    ends = {name: interval(x) for name, x in samples.items() if values[name] is not None}
    return {name: Measured(value, *(ends.get(name) or ())) for name, value in values.items()}
