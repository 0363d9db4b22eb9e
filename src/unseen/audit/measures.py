"""What attacks are measured by: PSNR, AUC, intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: PSNR of an image that is the other to the last bit, and beyond what a figure can show.
LARGEST = 100.0
#: From here on a picture is recognised without doubt.
RECOVERED = 20.0
RESAMPLES = 1000

Floats = NDArray[np.float64]


def psnr(found: Tensor, truth: Tensor, span: float) -> Tensor:
    """10 log₁₀(span² / MSE) of images [N, ...], in decibels [N], at most 100.

    >>> psnr(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.4, 0.6]]), 1.0)
    tensor([20.0000], dtype=torch.float64)
    """
    error = (found.double() - truth.double()).square().flatten(1).mean(1)
    return (10 * torch.log10(span**2 / error)).clamp(max=LARGEST).nan_to_num(posinf=LARGEST)


def interval(values: Tensor | Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """The mean, and the middle 95 % of the means of resamples."""
    x = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    means = x[generator.integers(len(x), size=(RESAMPLES, len(x)))].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(x.mean()), float(low), float(high)


def auc(members: Floats, others: Floats) -> float:
    """The probability that a member scores above a non-member, ties counting half.

    >>> auc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    ordered = np.sort(others)
    below = np.searchsorted(ordered, members, "left") + np.searchsorted(ordered, members, "right")
    return float(below.mean() / 2 / len(others))


def auc_interval(members: Floats, others: Floats, seed: int = 0) -> tuple[float, float, float]:
    """The AUC, and the middle 95 % of those of resamples of both groups."""
    generator = np.random.default_rng(seed)

    def again(x: Floats) -> Floats:
        return x[generator.integers(len(x), size=len(x))]

    found = [auc(again(members), again(others)) for _ in range(RESAMPLES)]
    low, high = np.quantile(found, [0.025, 0.975])
    return auc(members, others), float(low), float(high)


def rate_at(members: Floats, others: Floats, false: float = 0.01) -> float:
    """The share of members found where this share of non-members is falsely accused."""
    threshold = np.quantile(others, 1 - false, method="higher")
    return float((members > threshold).mean())


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's; None where either is constant or there are fewer than three."""
    from scipy.stats import spearmanr

    if len(a) < 3 or len(set(a)) == 1 or len(set(b)) == 1:
        return None
    value = float(spearmanr(a, b).statistic)
    return value if np.isfinite(value) else None


def numbers(t: Tensor) -> Floats:
    """A tensor as an array of float64."""
    found: Floats = t.detach().cpu().double().numpy()
    return found


def keyed_choice(count: int, most: int, generator: torch.Generator) -> Tensor:
    """At most so many of `count` indices, in random order."""
    return torch.randperm(count, generator=generator)[:most]
