"""Metrics of one site with intervals over its examples, where these are enough for one."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unseen.core.metrics.bootstrap import IN_MEMORY, Statistic, bootstrap, interval
from unseen.core.metrics.evaluation import METRICS
from unseen.core.metrics.row_shares import SHARES
from unseen.core.metrics.weighted_metrics import WEIGHTED
from unseen.core.outputs import predicted
from unseen.core.turn import keyed
from unseen.serving.policy import Policy
from unseen.studies.results.formats import decimals

#: Bootstrap samples.
RESAMPLES = 1000
#: The fewest examples of the rarer kind from which they are drawn: of a normal score with an area
#: under the curve of 0.76, intervals of 95 % then hold the truth in 94 %; with five in 86 %, with
#: two in 55 %.
FEWEST_OF_A_KIND = 10
#: Metrics that are means over the classes that occur: a draw without a rare one is another mean.
OVER_CLASSES = ("balanced-accuracy", "f1-macro", "auroc-ovr")
#: Metrics whose resamples lie above the figure, as that lies above the truth: an interval of theirs
#: would leave the truth out far more often than it says.
BIASED = ("ece",)


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
    outputs: Tensor,
    y: Tensor,
    metrics: Sequence[str],
    policy: Policy | None = None,
    units: Tensor | None = None,
) -> dict[str, Measured]:
    """Return each metric with its 95 % interval over the examples.

    Of a share of rows (accuracy, sensitivity, specificity, PPV, NPV) it is Wilson's, which holds
    for few rows and near 0 and 1; of any other metric that of percentiles over 1000 resamples.

    Args:
        outputs: The model's outputs [N, C].
        y: The labels [N].
        metrics: Names in `METRICS`.
        policy: Where the threshold of decisions lies, if it is not the largest probability.
        units: Codes [N] of patients, or of whatever has several rows: they are drawn as a whole,
            and a share is as certain as if each were one row.

    Note:
        The draws are keyed, so the same outputs give the same interval. It is about further
        examples of the same site, and says nothing about another one. Samples in which a metric is
        undefined are left out. There is none from fewer than ten examples (units) of the rarer
        kind: those outside the most frequent class, events, or all where labels are numbers; of a
        mean over classes, those of the rarest class that occurs. There is none either where all
        samples give one figure, as of a perfect order: they cannot say how certain it is; nor of
        the calibration error, which is above 0 for a perfect model, and more so in a resample.

    Source:
        Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
    """
    z = {n: policy.for_metric(n, outputs) if policy is not None else outputs for n in metrics}
    values = {name: METRICS[name](z[name], y) for name in metrics}
    shares = SHARES if y.dim() == 1 and not y.is_floating_point() else {}
    ends = {}
    for name, value in values.items():
        if name in shares and (n := _count(units, shares[name](predicted(z[name]), y))):
            ends[name] = wilson(float(value or 0), n)
    others = [n for n in metrics if n not in (*shares, *BIASED) and values[n] is not None]
    if fewest(y, units) < FEWEST_OF_A_KIND:
        others = [name for name in others if name not in OVER_CLASSES]
    if others and _count(units, rarer(y)) >= FEWEST_OF_A_KIND:
        place = torch.arange(len(y)) if units is None else units.unique(return_inverse=True)[1]
        weighted = {name: _by_unit(WEIGHTED[name](z[name], y), place) for name in others}
        samples = bootstrap(weighted, int(place.max()) + 1, RESAMPLES, keyed("bootstrap/examples"))
        intervals = {name: both for name, x in samples.items() if (both := interval(x))}
        ends |= {name: (low, high) for name, (low, high) in intervals.items() if low < high}
    return {name: Measured(value, *ends.get(name, ())) for name, value in values.items()}


def wilson(share: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share of n examples.

        (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n)

    Example:
        >>> [round(end, 3) for end in wilson(1.0, 10)]
        [0.722, 1.0]
    """
    middle = share + z * z / (2 * n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    whole = 1 + z * z / n
    return max(0.0, (middle - reach) / whole), min(1.0, (middle + reach) / whole)


def rarer(y: Tensor) -> Tensor:
    """Return which examples [N] are of the rarer kind, on which an interval depends most."""
    if y.dim() == 2:
        return y[:, 1] > 0  # times: events
    if y.dim() != 1 or y.is_floating_point() or not len(y):
        return torch.ones(len(y), dtype=torch.bool)
    return y != y.mode().values


def fewest(y: Tensor, units: Tensor | None) -> int:
    """Return how many examples (units) the rarest class that occurs has; of numbers, all."""
    if y.dim() != 1 or y.is_floating_point():
        return _count(units, rarer(y))
    return min((_count(units, y == label) for label in y.unique()), default=0)


def codes(units: Sequence[Hashable]) -> Tensor | None:
    """Return a code [N] for each row's unit, in order of appearance; None for none.

    Example:
        >>> codes(["anna", "bert", "anna"])
        tensor([0, 1, 0])
    """
    places: dict[Hashable, int] = {}
    return torch.tensor([places.setdefault(u, len(places)) for u in units]) if units else None


def _count(units: Tensor | None, mask: Tensor) -> int:
    """Return how many examples are in the mask, or how many units have one there."""
    return int(mask.sum()) if units is None else len(units[mask].unique())


def _by_unit(statistic: Statistic, place: Tensor) -> Statistic:
    """Return the statistic of weights of units [R, U], each of which all its rows have."""
    rows = max(1, IN_MEMORY // len(place))
    return lambda weights: torch.cat([statistic(w[:, place]) for w in weights.split(rows)])
