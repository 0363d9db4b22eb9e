"""Metrics of scores that are no numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from unseen import UnseenError
from unseen.core.metrics.evaluation import BY_KIND, METRICS, OF_TWO
from unseen.core.metrics.weighted_metrics import WEIGHTED


def right(name: str) -> tuple[Tensor, Tensor]:
    """Return outputs and labels that the metric takes."""
    generator = torch.Generator().manual_seed(0)
    if name in {"dice", "iou", "hd95"}:
        outputs = torch.randn(6, 2, 4, 4, generator=generator)
        return outputs, outputs.argmax(1)
    if name in BY_KIND["times"] - {"loss", "concordance"}:
        outputs = torch.randn(6, 3, generator=generator)
        return outputs, torch.tensor([[float(t + 1), 1.0] for t in range(6)])
    if name in BY_KIND["numbers"] - {"loss"}:
        return torch.randn(6, 1, generator=generator), torch.arange(6.0)
    outputs = torch.randn(6, 1 if name in OF_TWO else 2, generator=generator)
    return outputs, torch.tensor([0, 1, 0, 1, 0, 1])


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", METRICS)
def test_no_metric_of_outputs_that_are_not_finite(name: str, wrong: float) -> None:
    outputs, y = right(name)
    METRICS[name](outputs, y)
    for rows in (slice(0, 1), slice(None)):
        bad = outputs.clone()
        bad[rows] = wrong
        found = f"finite outputs; found NaN or infinite values in {1 if rows.stop else 6} of 6 rows"
        for metric in (METRICS[name], WEIGHTED[name]):
            with pytest.raises(UnseenError, match=found):
                metric(bad, y)


@pytest.mark.parametrize("name", ["mae", "rmse", "r2", "pearson", "concordance", "loss"])
def test_no_metric_of_labels_that_are_not_finite(name: str) -> None:
    y = torch.tensor([1.0, math.nan, 3.0])
    for metric in (METRICS[name], WEIGHTED[name]):
        with pytest.raises(UnseenError, match="finite labels; found NaN .* in 1 of 3 rows"):
            metric(torch.zeros(3, 1), y)
