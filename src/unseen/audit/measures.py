"""Measures of attacks: PSNR, AUC, intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: PSNR of images that are equal to the last bit: beyond what a figure can show.
LARGEST = 100.0
#: From here on a picture is recognised without doubt.
RECOVERED = 20.0
RESAMPLES = 1000

Floats = NDArray[np.float64]


def psnr(images: Tensor, truth: Tensor, span: float) -> Tensor:
    """Return 10 log₁₀(span² / MSE) of images [N, ...], in decibels [N], at most 100.

    Example:
        >>> psnr(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.4, 0.6]]), 1.0)
        tensor([20.0000], dtype=torch.float64)
    """
    error = (images.double() - truth.double()).square().flatten(1).mean(1)
    return (10 * torch.log10(span**2 / error)).clamp(max=LARGEST).nan_to_num(posinf=LARGEST)


def interval(values: Tensor | Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of values, and the middle 95 % of the means of resamples."""
    return _bootstrap(lambda x: float(x.mean()), np.asarray(values, dtype=np.float64))


def auc_interval(members: Floats, others: Floats) -> tuple[float, float, float]:
    """Return the AUC, and the middle 95 % of those of resamples of both groups."""
    return _bootstrap(auc, members, others)


def _bootstrap(statistic: Callable[..., float], *groups: Floats) -> tuple[float, float, float]:
    generator = np.random.default_rng(0)
    samples = [
        statistic(*(x[generator.integers(len(x), size=len(x))] for x in groups))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(samples, [0.025, 0.975])
    return statistic(*groups), float(low), float(high)


def auc(members: Floats, others: Floats) -> float:
    """Return the probability that a member scores above a non-member, ties counting half.

    Example:
        >>> auc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
        0.875
    """
    ordered = np.sort(others)
    below = np.searchsorted(ordered, members, "left") + np.searchsorted(ordered, members, "right")
    return float(below.mean() / 2 / len(others))


def rate_at(members: Floats, others: Floats, false: float = 0.01) -> float:
    """Return the share of members caught where a share `false` of non-members is accused."""
    threshold = np.quantile(others, 1 - false, method="higher")
    return float((members > threshold).mean())


def estimate(name: str, values: tuple[float, float, float], digits: int) -> dict[str, Any]:
    """Return a value and its interval as findings have them, rounded."""
    value, *ends = (round(number, digits) for number in values)
    return {name: value, "interval": ends}


def rank_correlation(a: Floats, b: Floats) -> float | None:
    """Return Spearman's; None where either is constant or there are fewer than three."""
    from scipy.stats import spearmanr

    if len(a) < 3 or min(np.ptp(a), np.ptp(b)) == 0:
        return None
    value = float(spearmanr(a, b).statistic)
    return value if np.isfinite(value) else None


def mean_correlation(rows: Sequence[Floats], others: Sequence[Floats]) -> float | None:
    """Return the mean of the rank correlations of rows, pair by pair, where there are any."""
    each = [rank_correlation(a, b) for a, b in zip(rows, others, strict=True)]
    correlations = [value for value in each if value is not None]
    return round(float(np.mean(correlations)), 3) if correlations else None


def numbers(t: Tensor) -> Floats:
    """Return a tensor as an array of float64."""
    array: Floats = t.detach().cpu().double().numpy()
    return array
