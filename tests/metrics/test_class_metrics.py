"""Metrics of classes against scikit-learn, SciPy and literal transcriptions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import sklearn.metrics as sk
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from unseen.core.metrics.class_metrics import (
    BINS,
    confusion,
    logistic,
)
from unseen.core.metrics.evaluation import (
    METRICS,
    OF_CLASSES,
    OF_DECISIONS,
    OF_MASKS,
    OF_NUMBERS,
    OF_TIMES,
    OF_TWO,
    fitting,
)
from unseen.core.metrics.weighted_metrics import WEIGHTED
from unseen.core.outputs import class_scores, predicted, probabilities
from unseen.core.turn import keyed

seeds = st.integers(0, 10_000)


def scored(seed: int, n: int, classes: int) -> tuple[Tensor, Tensor]:
    draw = keyed(f"class metrics/{seed}")
    outputs = torch.randn(n, classes, generator=draw)
    return outputs, torch.randint(max(classes, 2), (n,), generator=draw)


@settings(max_examples=30)
@given(seeds, st.integers(1, 60), st.sampled_from([1, 2]))
def test_the_four_rates_are_those_of_the_confusion_matrix(seed: int, n: int, columns: int) -> None:
    outputs, y = scored(seed, n, columns)
    (tn, fp), (fn, tp) = sk.confusion_matrix(y, predicted(outputs), labels=[0, 1]).tolist()
    assert confusion(outputs, y, 2).tolist() == [[tn, fp], [fn, tp]]
    expected = {
        "sensitivity": (tp, tp + fn), "specificity": (tn, tn + fp), "ppv": (tp, tp + fp),
        "npv": (tn, tn + fn),
    }  # fmt: skip
    for name, (part, whole) in expected.items():
        value = METRICS[name](outputs, y)
        assert value is None if whole == 0 else value == pytest.approx(part / whole)


@settings(max_examples=30)
@given(seeds, st.integers(2, 60), st.integers(2, 5))
def test_brier_and_macro_auroc(seed: int, n: int, classes: int) -> None:
    outputs, y = scored(seed, n, classes)
    p = probabilities(outputs.double()).numpy()
    onehot = np.eye(classes)[y.numpy()]
    expected = ((p - onehot) ** 2).sum(1).mean() / (2 if classes == 2 else 1)
    assert METRICS["brier"](outputs, y) == pytest.approx(expected)
    if classes == 2:
        assert METRICS["brier"](outputs, y) == pytest.approx(sk.brier_score_loss(y, p[:, 1]))
        area = METRICS["auroc"](outputs, y)
        assert METRICS["auroc-ovr"](outputs, y) == (area and pytest.approx(area))
    elif len(y.unique()) == classes:
        expected = sk.roc_auc_score(y, p, multi_class="ovr", average="macro")
        assert METRICS["auroc-ovr"](outputs, y) == pytest.approx(expected)


def test_ece_by_hand() -> None:
    outputs, y = scored(3, 200, 4)
    p = probabilities(outputs.double()).numpy()
    total = 0.0
    for b in range(BINS):
        rows = [i for i in range(200) if b / BINS < p[i].max() <= (b + 1) / BINS]
        if rows:
            confidence = sum(p[i].max() for i in rows) / len(rows)
            right = sum(p[i].argmax() == int(y[i]) for i in rows) / len(rows)
            total += len(rows) / 200 * abs(confidence - right)
    assert METRICS["ece"](outputs, y) == pytest.approx(total)


@settings(max_examples=30)
@given(seeds, st.floats(0.2, 3), st.floats(-2, 2))
def test_calibration_is_a_logistic_regression_on_the_logit(
    seed: int, slope: float, shift: float
) -> None:
    draw = keyed(f"calibration/{seed}")
    z = torch.randn(300, generator=draw).double() * 2
    y = (torch.rand(300, generator=draw) < torch.sigmoid(slope * z + shift)).long()
    outputs = z[:, None]
    fit = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(outputs.numpy(), y.numpy())
    assert METRICS["calibration-slope"](outputs, y) == pytest.approx(fit.coef_[0, 0], abs=1e-5)

    def rest(a: float) -> float:
        return float((torch.sigmoid(z + a) - y).sum())

    expected = scipy.optimize.brentq(rest, -20, 20, xtol=1e-12)
    assert METRICS["calibration-intercept"](outputs, y) == pytest.approx(expected, abs=1e-6)


def test_what_separates_or_does_not_vary_has_no_calibration_slope() -> None:
    y = torch.tensor([0, 0, 1, 1])
    for z in ([-2.0, -1.0, 1.0, 2.0], [0.5] * 4):
        assert METRICS["calibration-slope"](torch.tensor(z)[:, None], y) is None
    one = torch.ones(4, dtype=torch.int64)
    for name in ("calibration-slope", "calibration-intercept", "mcc", "auroc-ovr"):
        assert METRICS[name](torch.randn(4, 2, generator=keyed("one")), one) is None
    weights = torch.ones(1, 4, dtype=torch.float64)
    assert logistic(torch.tensor([-2.0, -1, 1, 2]).double(), y.double(), weights).isnan().all()


@settings(max_examples=30)
@given(seeds, st.integers(3, 20))
def test_concordance_counts_pairs(seed: int, n: int) -> None:
    draw = keyed(f"concordance/{seed}")
    f = torch.randint(6, (n, 1), generator=draw).double()
    y = torch.randint(5, (n,), generator=draw).double()
    right = pairs = 0.0
    for i in range(n):
        for j in range(n):
            if y[i] > y[j]:
                pairs += 1
                right += 1.0 if f[i, 0] > f[j, 0] else 0.5 * float(f[i, 0] == f[j, 0])
    value = METRICS["concordance"](f, y)
    assert value is None if not pairs else value == pytest.approx(right / pairs)


CASES = [
    (name, columns)
    for columns in (1, 2, 4)
    for name in sorted(WEIGHTED.keys() - (OF_TIMES - OF_NUMBERS) - (OF_MASKS - OF_CLASSES))
    if (columns == 1 or name not in OF_NUMBERS) and (columns < 4 or name not in OF_TWO)
]


@pytest.mark.parametrize(("name", "columns"), CASES)
def test_weights_count_examples_as_often(name: str, columns: int) -> None:
    """A metric under integer weights is the metric of the repeated rows."""
    numbers = name in OF_NUMBERS
    outputs, y = scored(11, 50, columns)
    y = outputs[:, 0] + torch.randn(50, generator=keyed("numbers")) if numbers else y
    counts = torch.randint(3, (4, 50), generator=keyed("weights"))
    values = WEIGHTED[name](outputs, y)(counts.double())
    for row, value in zip(counts, values.tolist(), strict=True):
        index = torch.arange(50).repeat_interleave(row)
        assert value == pytest.approx(METRICS[name](outputs[index], y[index]), abs=1e-8)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_areas_of_scores_that_round_to_certainty(columns: int) -> None:
    """p is 1 up to rounding above 37, where the scores still order the rows."""
    z, y = torch.tensor([40.0, 50.0, 45.0, 60.0]), torch.tensor([0, 1, 0, 1])
    outputs = z[:, None] if columns == 1 else F.pad(z[:, None], (1, columns - 2))
    assert METRICS["auroc-ovr"](outputs, y) == 1.0
    assert float(WEIGHTED["auroc-ovr"](outputs, y)(torch.ones(1, 4).double())) == 1.0


def test_resamples_of_one_label_have_no_correlation() -> None:
    """Nine labels are 0 and one is 3: without that one nothing varies."""
    y = torch.tensor([0.0] * 9 + [3.0])
    outputs = torch.linspace(0.1, 0.9, 10)[:, None]
    weights = torch.ones(2, 10, dtype=torch.float64)
    weights[0, 9], weights[1, :9] = 0, 0
    assert WEIGHTED["pearson"](outputs, y)(weights).isnan().all()
    whole = float(WEIGHTED["pearson"](outputs, y)(torch.ones(1, 10, dtype=torch.float64)))
    assert whole == pytest.approx(np.corrcoef(outputs[:, 0].double(), y.double())[0, 1])


def test_every_metric_has_intervals_and_a_kind() -> None:
    assert set(WEIGHTED) == set(METRICS)
    every = {*fitting(2), *fitting(None), *fitting(None, times=10), *fitting(2, masks=True)}
    assert every == set(METRICS)
    assert "auroc" not in fitting(3) and set(fitting(2)) >= OF_DECISIONS


def test_the_logit_of_two_classes_is_that_of_their_probability() -> None:
    outputs, _ = scored(5, 20, 2)
    p = probabilities(outputs.double())[:, 1]
    assert class_scores(outputs.double()).tolist() == pytest.approx(p.logit().tolist())
    assert math.isclose(float(probabilities(outputs[:, :1])[0].sum()), 1.0, rel_tol=1e-6)


def test_samples_of_one_class_have_no_precision() -> None:
    outputs, y = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 1, 1])
    weights = torch.tensor([[0.0, 1.0, 1.0], [2.0, 0.0, 0.0]], dtype=torch.float64)
    assert WEIGHTED["auprc"](outputs, y)(weights).isnan().all()


@pytest.mark.parametrize("spread", [1e-4, 1e-3, 1e-2, 1.0, 100.0])
def test_the_slope_of_a_calibration_has_no_unit(spread: float) -> None:
    """Scores times s have a slope of 1/s times as much, whatever s."""
    draws = keyed("slope")
    z = torch.randn(400, 1, generator=draws, dtype=torch.float64)
    y = (torch.rand(400, generator=draws) < torch.sigmoid(0.8 * z[:, 0] + 0.3)).long()
    plain, scaled = (METRICS["calibration-slope"](x, y) for x in (z, spread * z + 5))
    assert plain is not None and scaled is not None
    assert scaled * spread == pytest.approx(plain, rel=1e-6)


def test_an_intercept_exists_wherever_both_classes_do() -> None:
    draws = keyed("intercept")
    for scale in (1.0, 50.0, 300.0):
        for _ in range(50):
            z = scale * torch.randn(20, 1, generator=draws, dtype=torch.float64)
            y = torch.randint(2, (20,), generator=draws)
            a = METRICS["calibration-intercept"](z, y)
            assert (a is not None) == (0 < int(y.sum()) < 20)
            if a is not None:
                assert float(torch.sigmoid(a + z).sum()) == pytest.approx(float(y.sum()), abs=1e-9)
