"""Metrics with intervals: the resampled ones are the metrics themselves, by scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from unseen.core.metrics.evaluation import METRICS, OF_CLASSES
from unseen.core.metrics.weighted_metrics import WEIGHTED
from unseen.core.turn import keyed
from unseen.serving.evaluation.measures import measured

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


def test_a_share_has_wilsons_interval() -> None:
    """Agresti and Coull 1998: n = 10 and no success has [0, 0.278]; statsmodels the others."""
    y = torch.zeros(10, dtype=torch.int64)
    wrong, right = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    none = measured(wrong.repeat(10, 1), y, ["accuracy"])["accuracy"]
    assert (none.value, none.low, none.high) == pytest.approx((0.0, 0.0, 0.2775), abs=5e-4)
    some = measured(torch.cat([right.repeat(7, 1), wrong.repeat(3, 1)]), y, ["accuracy"])
    assert some["accuracy"][1:] == pytest.approx((0.3968, 0.8922), abs=5e-4)
    one = measured(right, y[:1], ["accuracy", "specificity", "sensitivity"])
    assert one["accuracy"].text(percent=True) == "100.0 [20.7, 100.0]"
    assert one["specificity"][1:] == one["accuracy"][1:] and one["sensitivity"].value is None


def test_one_output_decides_as_two_do() -> None:
    one, y = drawn(1)
    names = ["accuracy", "sensitivity", "specificity", "ppv", "npv"]
    two = torch.cat([torch.zeros_like(one), one], 1)
    found = measured(one, y, names)
    assert found == measured(two, y, names)
    assert all(part.low is not None for part in found.values())


def test_no_examples_have_no_interval() -> None:
    found = measured(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), ["accuracy", "auroc"])
    assert {part.low for part in found.values()} == {None}


def normal_scores(n: int, events: int, key: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of two normal laws one apart, whose area under the curve is Φ(1/√2) = 0.760."""
    y = (torch.arange(n) < events).long()
    score = torch.randn(n, generator=keyed(key)) + y
    return torch.stack([torch.zeros(n), score], 1), y


def test_intervals_that_are_drawn_hold_the_truth_and_others_are_not_drawn() -> None:
    """Of one event the interval of an area would hold the truth once in six times."""
    few = measured(*normal_scores(100, 9, "few"), ["auroc", "loss", "accuracy"])
    assert few["auroc"].low is None and few["loss"].low is None
    assert few["accuracy"].low is not None
    inside = 0
    for i in range(100):
        area = measured(*normal_scores(100, 10, f"area/{i}"), ["auroc"])["auroc"]
        assert area.low is not None and area.high is not None
        inside += area.low <= 0.7602 <= area.high
    assert inside >= 88  # fewer with a probability of 0.3 % where 95 % hold the truth


def test_rows_of_one_unit_count_once() -> None:
    """Each row five times, as rows of one patient, is as sure as each row once."""
    outputs, y = normal_scores(60, 25, "units")
    once = measured(outputs, y, ["auroc", "accuracy", "sensitivity"])
    units = torch.arange(60).repeat(5)
    many = measured(outputs.repeat(5, 1), y.repeat(5), list(once), units=units)
    for name, found in many.items():
        assert found == pytest.approx(once[name]), name
    alone = measured(outputs.repeat(5, 1), y.repeat(5), ["auroc"])["auroc"]
    assert alone.high is not None and once["auroc"].high is not None
    assert alone.high < once["auroc"].high


@pytest.mark.parametrize("name", ["balanced-accuracy", "f1-macro", "auroc-ovr"])
@pytest.mark.parametrize(("rare", "drawn"), [(1, False), (9, False), (10, True)])
def test_a_mean_over_classes_needs_ten_of_each(name: str, rare: int, drawn: bool) -> None:
    """A draw without the rare class averages over two classes: with one, in 37 draws of 100."""
    y = torch.tensor([0] * 20 + [1] * 19 + [2] * rare)
    outputs = torch.randn(len(y), 3, generator=keyed("classes"))
    found = measured(outputs, y, [name, "loss"])
    assert (found[name].low is not None) == drawn
    assert found["loss"].low is not None


def test_the_calibration_error_has_no_interval() -> None:
    """Labels drawn by the model's own probabilities: its true error, 0, is below every resample."""
    draws = keyed("calibrated")
    logits = torch.randn(400, 1, generator=draws)
    y = torch.bernoulli(logits[:, 0].sigmoid(), generator=draws).long()
    found = measured(logits, y, ["ece", "brier", "calibration-slope"])
    assert (found["ece"].value or 0) > 0 and found["ece"].low is None
    slope = found["calibration-slope"]
    assert slope.low is not None and slope.high is not None and slope.low < 1 < slope.high
    assert found["brier"].low is not None


def test_a_perfect_order_has_no_interval_of_draws() -> None:
    """Every draw is in order, too, whatever the truth; Wilson's of the accuracy has a width."""
    y = torch.tensor([0] * 20 + [1] * 20)
    found = measured(torch.stack([-y.float(), y.float()], 1), y, ["auroc", "accuracy"])
    assert found["auroc"].value == 1 and found["auroc"].low is None
    assert found["accuracy"].low == pytest.approx(0.912, abs=5e-4)  # 40 / (40 + 1.96²)
