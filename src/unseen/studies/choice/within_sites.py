"""How far a figure of few rows may be from the site's own, and the scale that it varies on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from unseen.studies.results.metric_name import MetricName

#: Metrics that are shares of rows.
SHARES = ("accuracy", "f1-micro")


class Scale(Protocol):
    """Where figures are about normal: a function and its inverse."""

    def to(self, figures: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]: ...

    def back(self, value: float) -> float: ...


@dataclass(frozen=True)
class Identity:
    """The figures themselves."""

    def to(self, figures: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the figures [K] and the derivative of the scale there [K]."""
        return figures, torch.ones_like(figures)

    def back(self, value: float) -> float:
        """Return the figure at a value of the scale."""
        return value


@dataclass(frozen=True)
class Logarithm:
    r"""$\log x$ for figures above 0, such as RMSE."""

    def to(self, figures: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return log figures [K] and the derivative 1 / x there [K]; a 0 counts as tiny."""
        above = figures.clamp(min=1e-12)
        return above.log(), 1 / above

    def back(self, value: float) -> float:
        """Return the figure at a value of the scale."""
        return math.exp(value)


@dataclass(frozen=True)
class Logit:
    r"""$\log\frac{p}{1 - p}$ with $p = \frac{x - a}{b - a}$ for figures from a to b.

    A figure of n rows is drawn by half a row towards the middle first, $(n p + 1/2) / (n + 1)$, so
    that the ends of the range have a value.

    Attributes:
        low, high: a and b.
    """

    low: float
    high: float

    def to(self, figures: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits [K] and the derivative of the scale there [K]."""
        share = (figures - self.low) / (self.high - self.low)
        share = (rows * share + 0.5) / (rows + 1)
        return share.logit(), 1 / (share * (1 - share) * (self.high - self.low))

    def back(self, value: float) -> float:
        """Return the figure at a value of the scale."""
        return self.low + (self.high - self.low) * float(torch.tensor(value).double().sigmoid())


def scale_for(bounds: tuple[float, float] | None) -> Scale:
    """Return the scale for a metric with these bounds: logit, logarithm or the figures."""
    low, high = bounds or (-math.inf, math.inf)
    if math.isfinite(low) and math.isfinite(high):
        return Logit(low, high)
    return Logarithm() if low == 0 else Identity()


@dataclass(frozen=True)
class Sites:
    """What is known of the rows that figures are of.

    Attributes:
        rows: Site -> its rows.
        positives: Site -> the share of the second of two classes, where that is known.
    """

    rows: Mapping[str, int]
    positives: Mapping[str, float] = field(default_factory=dict)

    def at(self, sites: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the rows and the positives' shares of some sites [K]; 1/2 where not known."""
        rows = [float(self.rows.get(site, 0)) for site in sites]
        shares = [self.positives.get(site, 0.5) for site in sites]
        return torch.tensor(rows).double(), torch.tensor(shares).double()


def variances(metric: str, figures: Tensor, rows: Tensor, positives: Tensor) -> Tensor | None:
    r"""Return the variance that figures have by their rows alone [K]; None where it is not known.

    For a share of n rows $p (1 - p) / n$, with p drawn by two rows towards the mean of all rows.
    For the area under the ROC curve Hanley and McNeil's. For RMSE that of normal errors,
    $x^2 / 2n$.

    Args:
        metric: The metric's name.
        figures: One for each site [K].
        rows: Their rows [K].
        positives: The share of the positive class [K].

    Source:
        Hanley and McNeil 1982, "The meaning and use of the area under a receiver operating
        characteristic (ROC) curve".
    """
    name = MetricName.parse(metric).metric
    if not bool((rows > 0).all()):
        return None
    if name in SHARES:
        pooled = ((rows * figures).sum() + 0.5) / (rows.sum() + 1)
        share = (rows * figures + 2 * pooled) / (rows + 2)
        return share * (1 - share) / (rows + 1)
    if name == "auroc":
        return area_variance(figures, rows, positives)
    return figures.square() / (2 * rows) if name == "rmse" else None


def area_variance(areas: Tensor, rows: Tensor, positives: Tensor) -> Tensor:
    r"""Return the variance of areas A under ROC curves [K].

    $$\frac{A (1 - A) + (m - 1) (\frac{A}{2 - A} - A^2)
    + (n - 1) (\frac{2 A^2}{1 + A} - A^2)}{m n}$$

    with m positive and n negative rows, at least one of each.
    """
    m = (rows * positives).clamp(min=1)
    n = (rows - m).clamp(min=1)
    A = (rows * areas + 0.5) / (rows + 1)
    by_positive, by_negative = A / (2 - A) - A**2, 2 * A**2 / (1 + A) - A**2
    return (A * (1 - A) + (m - 1) * by_positive + (n - 1) * by_negative) / (m * n)
