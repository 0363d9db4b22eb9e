"""Metrics of one site with bootstrap intervals over its examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.core.exchange import keyed
from unseen.core.metrics import METRICS, predicted
from unseen.results.formats import decimals

#: Bootstrap samples, each as large as the site; how many numbers of them are in memory at once.
RESAMPLES, HELD = 1000, 4_000_000
LEVEL = 0.95


@dataclass(frozen=True)
class Measured:
    """A metric of one site: its value and the ends of its interval, None where undefined."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def text(self, percent: bool = False) -> str:
        """
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
    """Each metric with its 95% percentile interval over 1000 resamples of the examples.

    outputs: [N, C]; y: [N]. The draws are keyed, so the same outputs give the same interval. It is
    about further examples of the same site, and tells nothing of another one. Samples in which a
    metric is undefined are left out; with less than two examples there is no interval. Source:
    Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, section 13.3.
    """
    values = {name: METRICS[name](outputs, y) for name in metrics}
    n, weighted = len(y), {m: WEIGHTED[m](outputs, y) for m in metrics if m in WEIGHTED}
    found: dict[str, list[Tensor]] = {name: [] for name in weighted}
    generator = keyed("bootstrap/examples")
    at_once = max(1, HELD // max(1, n))
    for first in range(0, RESAMPLES if n > 1 else 0, at_once):
        rows = min(at_once, RESAMPLES - first)
        drawn = torch.randint(n, (rows, n), generator=generator)
        ones = torch.ones(rows, n, dtype=torch.float64)
        counts = torch.zeros(rows, n, dtype=torch.float64).scatter_add_(1, drawn, ones)
        for name, metric in weighted.items():
            found[name].append(metric(counts))
    return {name: _with_ends(value, found.get(name, [])) for name, value in values.items()}


def _with_ends(value: float | None, parts: Sequence[Tensor]) -> Measured:
    samples = torch.cat(list(parts)) if parts else torch.zeros(0)
    samples = samples[samples.isfinite()].sort().values
    if value is None or len(samples) < RESAMPLES / 2:
        return Measured(value)
    low, high = (
        float(samples[round((1 + side * LEVEL) / 2 * (len(samples) - 1))]) for side in (-1, 1)
    )
    return Measured(value, low, high)


#: counts [R, N] of how often each example is in each sample -> the metric [R], NaN: undefined.
Weighted = Callable[[Tensor], Tensor]


def _mean_of(values: Tensor) -> Weighted:
    return lambda counts: counts @ values / counts.sum(1)


def _loss(outputs: Tensor, y: Tensor) -> Weighted:
    from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

    z = outputs.double()
    if y.is_floating_point():
        return _mean_of((z.squeeze(-1) - y.double()).square())
    if z.shape[-1] == 1:
        losses = binary_cross_entropy_with_logits(z.squeeze(-1), y.double(), reduction="none")
        return _mean_of(losses)
    return _mean_of(cross_entropy(z, y, reduction="none"))


def _accuracy(outputs: Tensor, y: Tensor) -> Weighted:
    return _mean_of((predicted(outputs) == y).double())


def _balanced(outputs: Tensor, y: Tensor) -> Weighted:
    right = (predicted(outputs) == y).double()
    members = torch.nn.functional.one_hot(y).double()

    def metric(counts: Tensor) -> Tensor:
        share = (counts @ (members * right[:, None])) / (counts @ members)
        return share.nanmean(1)

    return metric


def _ranked(outputs: Tensor, y: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """counts [R, N] -> those of class 1 and of class 0 by score, ascending, ties together."""
    z = outputs.double()
    scores = z.squeeze(-1) if z.shape[-1] == 1 else z[:, 1] - z[:, 0]
    levels, place = scores.unique(return_inverse=True)  # type: ignore[no-untyped-call]

    def split(counts: Tensor) -> tuple[Tensor, Tensor]:
        zeros = counts.new_zeros(len(counts), len(levels))
        return tuple(  # type: ignore[return-value]
            zeros.index_add(1, place[y == c], counts[:, y == c]) for c in (1, 0)
        )

    return split


def _auroc(outputs: Tensor, y: Tensor) -> Weighted:
    split = _ranked(outputs, y)

    def metric(counts: Tensor) -> Tensor:
        ones, zeros = split(counts)
        below = zeros.cumsum(1) - zeros / 2
        return (ones * below).sum(1) / (ones.sum(1) * zeros.sum(1))

    return metric


def _auprc(outputs: Tensor, y: Tensor) -> Weighted:
    split = _ranked(outputs, y)

    def metric(counts: Tensor) -> Tensor:
        ones, zeros = (part.flip(1) for part in split(counts))
        hits = ones.cumsum(1)
        precision = hits / (hits + zeros.cumsum(1)).clamp(min=1)
        found: Tensor = (ones * precision).sum(1) / ones.sum(1)
        return found.where(zeros.sum(1) > 0, math.nan)

    return metric


def _mae(outputs: Tensor, y: Tensor) -> Weighted:
    return _mean_of((outputs.squeeze(-1).double() - y.double()).abs())


def _rmse(outputs: Tensor, y: Tensor) -> Weighted:
    squared = _mean_of((outputs.squeeze(-1).double() - y.double()).square())
    return lambda counts: squared(counts).sqrt()


def _r2(outputs: Tensor, y: Tensor) -> Weighted:
    squared = _mean_of((outputs.squeeze(-1).double() - y.double()).square())
    centred = y.double() - y.double().mean()
    first, second = _mean_of(centred), _mean_of(centred.square())

    def metric(counts: Tensor) -> Tensor:
        spread = second(counts) - first(counts).square()
        # Below this share a variance is rounding: the sample has one label.
        constant = spread <= 1e-12 * second(counts)
        found: Tensor = (1 - squared(counts) / spread).masked_fill(constant, math.nan)
        return found

    return metric


def _pearson(outputs: Tensor, y: Tensor) -> Weighted:
    a, b = outputs.squeeze(-1).double(), y.double()
    a, b = a - a.mean(), b - b.mean()

    def metric(counts: Tensor) -> Tensor:
        n = counts.sum(1)
        mean_a, mean_b = counts @ a / n, counts @ b / n
        covariance = counts @ (a * b) / n - mean_a * mean_b
        spread = (counts @ a.square() / n - mean_a**2) * (counts @ b.square() / n - mean_b**2)
        found: Tensor = covariance / spread.clamp(min=0).sqrt()
        return found

    return metric


#: Metrics whose value for a sample follows from how often it holds each example.
WEIGHTED: dict[str, Callable[[Tensor, Tensor], Weighted]] = {
    "loss": _loss,
    "accuracy": _accuracy,
    "balanced-accuracy": _balanced,
    "auroc": _auroc,
    "auprc": _auprc,
    "mae": _mae,
    "rmse": _rmse,
    "r2": _r2,
    "pearson": _pearson,
}
