"""Metrics of numbers: how near they are, and how many pairs are ordered as they should be."""

import math

import torch
from torch import Tensor


def pearson(outputs: Tensor, y: Tensor) -> float | None:
    """Return the correlation of predictions and targets; None where either is constant."""
    if len(y) < 2 or any(bool((each == each[0]).all()) for each in (outputs.squeeze(-1), y)):
        return None
    pair = torch.stack([outputs.squeeze(-1).double(), y.double()])
    value = float(torch.corrcoef(pair)[0, 1])
    return value if math.isfinite(value) else None


def r2(outputs: Tensor, y: Tensor) -> float | None:
    """Return 1 − Σ (f − y)² / Σ (y − ȳ)², ȳ the mean of this set; None where all y are equal.

    0 is what ȳ itself would get, which nobody knows before the labels; below 0 is worse than that.
    """
    numbers = y.double()
    spread = float((numbers - numbers.mean()).square().sum())
    if bool((y == y[0]).all()) or not spread:
        return None
    return 1 - float((outputs.squeeze(-1).double() - numbers).square().sum()) / spread


def concordance(outputs: Tensor, y: Tensor) -> float | None:
    """Return the share of pairs with different numbers that the predictions order alike.

    A pair of equal predictions counts half. It is 1/2 + τ/2 √((n − n_f) / (n − n_y)), with
    Kendall's τ_b, n pairs, n_f of them tied in the prediction and n_y in the number; None without
    a pair.
    """
    from scipy.stats import kendalltau

    f, numbers = outputs.squeeze(-1).double().cpu(), y.double().cpu()
    pairs = len(y) * (len(y) - 1) // 2
    ties = [_tied_pairs(values) for values in (f, numbers)]
    if pairs == ties[1]:
        return None
    if pairs == ties[0]:
        return 0.5
    tau = float(kendalltau(f.numpy(), numbers.numpy()).statistic)
    return 0.5 + 0.5 * tau * math.sqrt((pairs - ties[0]) / (pairs - ties[1]))


def _tied_pairs(values: Tensor) -> int:
    sizes = values.unique(return_counts=True)[1]  # type: ignore[no-untyped-call]
    return int((sizes * (sizes - 1) // 2).sum())
