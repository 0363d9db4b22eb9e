"""Metrics with fractional weights against scikit-learn's `sample_weight`."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from unseen.core.metrics.evaluation import METRICS
from unseen.core.metrics.weighted_metrics import WEIGHTED

OF_SCORES = {
    "auroc": sk.roc_auc_score,
    "auprc": sk.average_precision_score,
}
OF_CLASSES = {
    "accuracy": sk.accuracy_score,
    "f1-micro": sk.accuracy_score,
    "balanced-accuracy": sk.balanced_accuracy_score,
    "mcc": sk.matthews_corrcoef,
    "f1-macro": lambda y, p, sample_weight: sk.f1_score(
        y, p, average="macro", sample_weight=sample_weight
    ),
    "auprc-of-decisions": lambda y, p, sample_weight: sk.auc(
        *sk.precision_recall_curve(y, p, sample_weight=sample_weight)[1::-1]
    ),
    "sensitivity": sk.recall_score,
    "specificity": lambda y, p, sample_weight: sk.recall_score(
        y, p, pos_label=0, sample_weight=sample_weight
    ),
    "ppv": sk.precision_score,
    "npv": lambda y, p, sample_weight: sk.precision_score(
        y, p, pos_label=0, sample_weight=sample_weight
    ),
}
OF_NUMBERS = {
    "mae": sk.mean_absolute_error,
    "rmse": sk.root_mean_squared_error,
    "r2": sk.r2_score,
    "loss": sk.mean_squared_error,
}
#: Weights below one, above it, and nearly nothing.
SCALES = (1e-9, 0.3, 1.0, 40.0)


def rows(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores with ties, classes, and weights of which one in five is 0."""
    rng = np.random.default_rng(seed)
    scores, y = rng.normal(size=60).round(1), rng.integers(0, 2, 60)
    return scores, y, rng.exponential(size=60) * (rng.random(60) > 0.2)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [*OF_SCORES, *OF_CLASSES, *OF_NUMBERS, "log-loss", "brier"])
def test_fractional_weights_are_scikit_learns(name: str, scale: float) -> None:
    for seed in range(5):
        scores, y, weights = rows(seed)
        weights = weights * scale
        target = torch.tensor(y)
        if name in OF_SCORES:
            expected = OF_SCORES[name](y, scores, sample_weight=weights)
        elif name in OF_CLASSES:
            expected = OF_CLASSES[name](y, (scores > 0).astype(int), sample_weight=weights)
        elif name in OF_NUMBERS:
            numbers = y + np.random.default_rng(seed).normal(size=len(y))
            target = torch.tensor(numbers)
            expected = OF_NUMBERS[name](numbers, scores, sample_weight=weights)
        else:
            p = 1 / (1 + np.exp(-scores))
            of = {"log-loss": sk.log_loss, "brier": sk.brier_score_loss}[name]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = of(y, p, sample_weight=weights)
            if name == "brier":  # over both classes here
                expected *= METRICS[name](torch.tensor([[0.0]]), torch.tensor([1])) / 0.25
        metric = WEIGHTED[name](torch.tensor(scores)[:, None], target)
        found = float(metric(torch.tensor(weights)[None])[0])
        assert found == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("scale", SCALES)
def test_one_against_the_rest_is_the_mean_of_weighted_areas(scale: float) -> None:
    rng = np.random.default_rng(0)
    outputs, y = torch.tensor(rng.normal(size=(80, 3))), rng.integers(0, 3, 80)
    weights = rng.exponential(size=80) * scale
    p = outputs.softmax(1).numpy()
    areas = [sk.roc_auc_score(y == c, p[:, c], sample_weight=weights) for c in range(3)]
    found = WEIGHTED["auroc-ovr"](outputs, torch.tensor(y))(torch.tensor(weights)[None])
    assert float(found[0]) == pytest.approx(np.mean(areas), rel=1e-12)


@pytest.mark.parametrize("scale", SCALES)
def test_the_correlation_is_numpys(scale: float) -> None:
    scores, _, weights = rows(3)
    numbers = scores + np.random.default_rng(3).normal(size=len(scores))
    covariance = np.cov(scores, numbers, aweights=weights * scale)
    expected = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    metric = WEIGHTED["pearson"](torch.tensor(scores)[:, None], torch.tensor(numbers))
    found = float(metric(torch.tensor(weights * scale)[None])[0])
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["calibration-slope", "calibration-intercept", "dice", "ece"])
def test_the_scale_of_all_weights_does_not_count(name: str) -> None:
    scores, y, weights = rows(1)
    outputs, target = torch.tensor(scores)[:, None], torch.tensor(y)
    if name == "dice":
        generator = torch.Generator().manual_seed(0)
        outputs = torch.randn(60, 2, 4, 4, generator=generator)
        target = torch.randint(0, 2, (60, 4, 4), generator=generator)
    metric = WEIGHTED[name](outputs, target)
    one = float(metric(torch.tensor(weights)[None])[0])
    for scale in SCALES:
        found = float(metric(torch.tensor(weights * scale)[None])[0])
        assert found == pytest.approx(one, rel=1e-6)
