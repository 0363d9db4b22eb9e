"""Metrics with intervals: the resampled ones are the metrics themselves, by scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from unseen.core.turn import keyed
from unseen.metrics.evaluation import METRICS, OF_CLASSES
from unseen.metrics.weighted_metrics import WEIGHTED
from unseen.serving.evaluation.measures import measured
from unseen.serving.reading.new_rows import Clock

N = 60


def drawn(columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores with ties, and labels."""
    generator = keyed(f"scores/{columns}")
    outputs = (torch.randn(N, columns, generator=generator) * 4).round() / 4
    return outputs, torch.randint(max(2, columns), (N,), generator=generator)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("name", sorted(OF_CLASSES))
def test_each_example_once_gives_the_metric(name: str, columns: int) -> None:
    outputs, y = drawn(columns)
    found = WEIGHTED[name](outputs, y)(torch.ones(1, N, dtype=torch.float64))
    assert float(found[0]) == pytest.approx(METRICS[name](outputs, y), rel=1e-9)


@pytest.mark.parametrize("name", ["accuracy", "balanced-accuracy", "auroc", "auprc"])
def test_an_example_that_was_drawn_often_counts_often(name: str) -> None:
    outputs, y = drawn(2)
    counts = torch.randint(4, (3, N), generator=keyed("counts")).double()
    found = WEIGHTED[name](outputs, y)(counts)
    scores, right = (outputs[:, 1] - outputs[:, 0]).numpy(), y.numpy()
    for row, value in zip(counts.numpy(), found.tolist(), strict=True):
        labels = outputs.argmax(1).numpy()
        expected = {
            "accuracy": lambda w, g=labels: sk.accuracy_score(right, g, sample_weight=w),
            "balanced-accuracy": lambda w, g=labels: sk.balanced_accuracy_score(
                right, g, sample_weight=w
            ),
            "auroc": lambda w: sk.roc_auc_score(right, scores, sample_weight=w),
            "auprc": lambda w: sk.average_precision_score(right, scores, sample_weight=w),
        }[name](row)
        assert value == pytest.approx(expected)


def test_numbers_and_their_correlation() -> None:
    outputs, _ = drawn(1)
    y = outputs.squeeze(1) + torch.randn(N, generator=keyed("noise"))
    counts = torch.randint(3, (1, N), generator=keyed("counts"))
    often = counts[0].numpy()
    a, b = (np.repeat(v.numpy(), often) for v in (outputs.squeeze(1), y))
    found = {
        name: float(WEIGHTED[name](outputs, y)(counts.double()))
        for name in ("loss", "mae", "rmse", "r2", "pearson")
    }
    assert found["pearson"] == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert found["loss"] == pytest.approx(((a - b) ** 2).mean())
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(b, a))
    assert found["rmse"] == pytest.approx(sk.root_mean_squared_error(b, a))
    assert found["r2"] == pytest.approx(sk.r2_score(b, a))


def test_a_sample_of_equal_labels_has_no_share_explained() -> None:
    """One of three labels differs: a resample without it is left out of the interval."""
    y = torch.tensor([1e4, 1e4, 1e4 + 1])
    counts = torch.tensor([[2.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    found = WEIGHTED["r2"](torch.full((3, 1), 1e4), y)(counts)
    assert found.isnan().tolist() == [True, False]
    assert float(found[1]) == pytest.approx(1 - 1 / (2 / 3))


def test_the_interval_of_a_share_is_about_that_of_the_normal_law() -> None:
    """80 of 100 right: 0.8 ± 1.96 · 0.04."""
    y = torch.zeros(100, dtype=torch.int64)
    outputs = torch.tensor([[1.0, 0.0]] * 80 + [[0.0, 1.0]] * 20)
    found = measured(outputs, y, ["accuracy", "auroc"])
    assert found["accuracy"].value == pytest.approx(0.8)
    assert found["accuracy"].low == pytest.approx(0.8 - 0.078, abs=0.015)
    assert found["accuracy"].high == pytest.approx(0.8 + 0.078, abs=0.015)
    assert found["auroc"].text() == "undefined"
    assert measured(outputs, y, ["accuracy"]) == measured(outputs, y, ["accuracy"])


def test_one_example_has_no_interval() -> None:
    found = measured(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), ["accuracy"])
    assert found["accuracy"].text(percent=True) == "100.0"


def test_the_clock_adds_up_its_phases() -> None:
    clock = Clock()
    for _ in range(2):
        with clock.phase("decoding"):
            pass
    assert set(clock.seconds) == {"decoding"} and clock.lines()[-1].startswith("total")
