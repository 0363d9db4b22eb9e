"""Metrics against scikit-learn and SciPy, and where they are not defined."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.sites import federation, images
from torch import Tensor, nn

from unseen.core.client import Client, Split
from unseen.core.metrics.evaluation import (
    EVALUATION_BATCH,
    LOWER,
    METRICS,
    UNORDERED,
    Evaluate,
    accuracy,
    auprc,
    auroc,
    forward,
    loss,
    pearson,
    r2,
    rmse,
)
from unseen.core.metrics.weighted_metrics import WEIGHTED
from unseen.core.outputs import predicted
from unseen.core.turn import Turn, keyed
from unseen.core.vector import Model
from unseen.errors import UnseenError

seeds = st.integers(0, 10_000)
TURN = Turn(0, 3, 5, "validate")


def scored(seed: int, n: int, classes: int, ties: bool = False) -> tuple[Tensor, Tensor]:
    draw = keyed(f"metrics/{seed}")
    outputs = torch.randn(n, classes, generator=draw)
    y = torch.randint(max(classes, 2), (n,), generator=draw)
    return (outputs.round() if ties else outputs), y


# --- against other libraries -----------------------------------------------------------------


@given(seeds, st.integers(1, 60), st.integers(2, 5))
def test_accuracies(seed: int, n: int, classes: int) -> None:
    outputs, y = scored(seed, n, classes)
    guess = outputs.numpy().argmax(1)
    assert accuracy(outputs, y) == pytest.approx(sklearn.metrics.accuracy_score(y.numpy(), guess))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes that are predicted and absent
        expected = sklearn.metrics.balanced_accuracy_score(y.numpy(), guess)
    assert METRICS["balanced-accuracy"](outputs, y) == pytest.approx(expected)


@given(seeds, st.integers(1, 60), st.booleans())
def test_accuracies_of_one_logit(seed: int, n: int, ties: bool) -> None:
    outputs, y = scored(seed, n, 1, ties)
    guess = (torch.sigmoid(outputs.double()).numpy() > 0.5).astype(int).ravel()
    assert predicted(outputs).tolist() == guess.tolist()
    assert accuracy(outputs, y) == pytest.approx(sklearn.metrics.accuracy_score(y.numpy(), guess))


@given(seeds, st.integers(2, 80), st.sampled_from([1, 2]), st.booleans())
def test_areas_under_curves(seed: int, n: int, columns: int, ties: bool) -> None:
    outputs, y = scored(seed, n, columns, ties)
    if len(y.unique()) < 2:
        assert auroc(outputs, y) is None
        assert auprc(outputs, y) is None
        return
    logits = outputs.double()
    score = (torch.sigmoid(logits) if columns == 1 else logits.softmax(1))[:, -1].numpy().round(12)
    expected = sklearn.metrics.roc_auc_score(y.numpy(), score)
    assert auroc(outputs, y) == pytest.approx(expected, abs=1e-12)
    expected = sklearn.metrics.average_precision_score(y.numpy(), score)
    assert auprc(outputs, y) == pytest.approx(expected, abs=1e-12)


@given(seeds, st.integers(1, 60), st.integers(2, 5))
def test_loss_is_the_log_loss(seed: int, n: int, classes: int) -> None:
    outputs, y = scored(seed, n, classes)
    probabilities = outputs.double().softmax(1).numpy()
    expected = sklearn.metrics.log_loss(y, probabilities, labels=range(classes))
    assert loss(outputs, y) == pytest.approx(expected, rel=1e-9)


def test_loss_of_one_logit_and_of_numbers() -> None:
    outputs, y = scored(1, 40, 1)
    expected = sklearn.metrics.log_loss(y, torch.sigmoid(outputs.double()).numpy().ravel())
    assert loss(outputs, y) == pytest.approx(expected, rel=1e-9)
    targets = torch.linspace(-1, 2, 40)
    expected = sklearn.metrics.mean_squared_error(targets, outputs.ravel())
    assert loss(outputs, targets) == pytest.approx(expected, rel=1e-6)


@given(seeds, st.integers(3, 60), st.floats(-1, 1))
def test_pearson(seed: int, n: int, slope: float) -> None:
    draw = keyed(f"pearson/{seed}")
    y = torch.randn(n, generator=draw)
    outputs = (slope * y + torch.randn(n, generator=draw)).unsqueeze(1)
    expected = scipy.stats.pearsonr(outputs.double().numpy().ravel(), y.double().numpy())
    assert pearson(outputs, y) == pytest.approx(expected.statistic, abs=1e-9)


@given(seeds, st.integers(2, 60), st.floats(-1e4, 1e4))
def test_errors_of_numbers(seed: int, n: int, offset: float) -> None:
    draw = keyed(f"numbers/{seed}")
    y = torch.randn(n, generator=draw) + offset
    outputs = (y + torch.randn(n, generator=draw)).unsqueeze(1)
    a, b = y.double().numpy(), outputs.double().numpy().ravel()
    assert METRICS["mae"](outputs, y) == pytest.approx(sklearn.metrics.mean_absolute_error(a, b))
    assert rmse(outputs, y) == pytest.approx(sklearn.metrics.root_mean_squared_error(a, b))
    assert r2(outputs, y) == pytest.approx(sklearn.metrics.r2_score(a, b), rel=1e-6)


# --- where they are not defined --------------------------------------------------------------


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("columns", [1, 2])
def test_one_class_has_no_curve(label: int, columns: int) -> None:
    outputs = torch.randn(9, columns, generator=keyed("one class"))
    y = torch.full((9,), label)
    assert auroc(outputs, y) is None
    assert auprc(outputs, y) is None


@pytest.mark.parametrize("metric", [auroc, auprc])
def test_curves_are_for_two_classes(metric: object) -> None:
    outputs, y = scored(0, 12, 3)
    with pytest.raises(UnseenError, match="two classes; the model has 3 outputs"):
        METRICS["auroc" if metric is auroc else "auprc"](outputs, y)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 49])
@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, -1e6])
def test_a_constant_correlates_with_nothing(n: int, value: float) -> None:
    varied = torch.randn(n, generator=keyed("varied"))
    constant = torch.full((n,), value)
    assert pearson(constant.unsqueeze(1), varied) is None
    assert pearson(varied.unsqueeze(1), constant) is None


@pytest.mark.parametrize("decisions", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0]])
def test_decisions_have_a_precision_recall_curve_of_three_points(decisions: list[int]) -> None:
    y = torch.tensor([0, 1, 0, 1])
    scores = 2.0 * torch.tensor(decisions)[:, None] - 1
    precision, recall, _ = sklearn.metrics.precision_recall_curve(y, decisions)
    expected = sum(
        (recall[i] - recall[i + 1]) * (precision[i] + precision[i + 1]) / 2
        for i in range(len(recall) - 1)
    )
    assert METRICS["auprc-of-decisions"](scores, y) == pytest.approx(expected)
    weighted = WEIGHTED["auprc-of-decisions"](scores, y)(torch.ones(1, 4).double())
    assert float(weighted) == pytest.approx(expected)
    assert METRICS["auprc-of-decisions"](scores, torch.ones(4, dtype=torch.int64)) is None


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6])
def test_equal_labels_leave_nothing_to_explain(value: float) -> None:
    outputs = torch.randn(7, 1, generator=keyed("r2"))
    assert r2(outputs, torch.full((7,), value)) is None
    assert r2(outputs[:1], torch.tensor([value])) is None


def test_less_of_a_loss_is_better_and_more_of_the_rest() -> None:
    more = {
        "accuracy", "balanced-accuracy", "auroc", "auprc", "auprc-of-decisions", "sensitivity",
        "specificity", "ppv", "npv", "f1-macro", "f1-micro", "mcc", "auroc-ovr", "r2", "pearson",
        "concordance", "dice", "iou", "concordance-ipcw",
    }  # fmt: skip
    assert set(METRICS) - LOWER - UNORDERED == more
    assert {
        "loss", "log-loss", "brier", "ece", "mae", "rmse", "hd95", "integrated-brier"
    } == LOWER  # fmt: skip


# --- evaluation ------------------------------------------------------------------------------


def test_outputs_do_not_depend_on_how_the_set_is_cut() -> None:
    n = 2 * EVALUATION_BATCH + 3
    split = Split(torch.randn(n, 3, generator=keyed("cut")), torch.zeros(n, dtype=torch.int64))
    model = Model(nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.9)))
    outputs = forward(model, split)
    assert outputs.shape == (n, 2)
    weight, bias = (p.detach().double().numpy() for p in model.module.parameters())
    expected = split.x.double().numpy() @ weight.T + bias
    np.testing.assert_allclose(outputs.numpy(), expected, atol=1e-5)
    assert not outputs.requires_grad


def test_images_are_read_as_shares_of_255() -> None:
    split = Split(torch.tensor([[0], [51], [255]], dtype=torch.uint8), torch.zeros(3).long())
    model = Model(nn.Linear(1, 1))
    model.vector.copy_(torch.tensor([1.0, 0.0]))
    assert forward(model, split).flatten().tolist() == pytest.approx([0, 0.2, 1])


def evaluated(client: Client, module: nn.Module, evaluate: Evaluate) -> dict[str, Tensor]:
    model = Model(module)
    before = model.vector.clone(), model.buffers.clone()
    reply, memory = evaluate(model, {}, client, {"kept": torch.ones(1)}, TURN)
    assert not reply.rows
    assert list(memory) == ["kept"]
    assert model.vector.equal(before[0])
    assert model.buffers.equal(before[1])
    return {name: torch.as_tensor(value) for name, value in reply.scalars.items()}


def test_evaluation_changes_nothing_and_tells_the_metrics() -> None:
    client = next(iter(federation(classes=2).values()))
    module = nn.Linear(6, 2)
    names = ("loss", "accuracy", "auroc")
    found = evaluated(client, module, Evaluate("train", names))
    split = client.split("train")
    outputs = module(split.x).detach()
    assert int(found["examples"]) == len(split)
    for name in names:
        assert float(found[name]) == pytest.approx(METRICS[name](outputs, split.y))
        assert float(found[f"{name}.undefined"]) == 0


def test_evaluation_leaves_batchnorm_statistics() -> None:
    client = next(iter(images().values()))
    module = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 3))
    evaluated(client, module, Evaluate("train"))
    assert module[0].num_batches_tracked == 0


def test_undefined_is_told_apart_from_nought() -> None:
    one = Split(torch.randn(5, 2, generator=keyed("u")), torch.ones(5, dtype=torch.int64))
    client = Client("a", None, one, 2)
    found = evaluated(client, nn.Linear(2, 2), Evaluate("validation", ("auroc", "accuracy")))
    assert float(found["auroc.undefined"]) == 1
    assert float(found["accuracy.undefined"]) == 0
    assert math.isfinite(float(found["auroc"]))  # NaN would be a broken reply


def test_metrics_of_groups() -> None:
    n, draw = 40, keyed("groups")
    x, y = torch.randn(n, 3, generator=draw), torch.randint(2, (n,), generator=draw)
    codes = torch.tensor([0, 1, 3, 1, 0] * 8)
    y[codes == 3] = 1
    client = Client("a", None, Split(x, y, {"region": codes}), 2)
    module = nn.Linear(3, 2)
    names = ("accuracy", "auroc")
    found = evaluated(client, module, Evaluate("validation", names, groups={"region": 4}))
    assert found["examples@region"].tolist() == [16, 16, 0, 8]
    assert found["accuracy.undefined@region"].tolist() == [0, 0, 1, 0]
    assert found["auroc.undefined@region"].tolist() == [0, 0, 1, 1]  # one class in the last
    outputs = module(x).detach()
    for group in (0, 1, 3):
        own = codes == group
        expected = sklearn.metrics.accuracy_score(y[own], outputs[own].argmax(1))
        assert float(found["accuracy@region"][group]) == pytest.approx(expected, abs=1e-12)
    for group in (0, 1):
        own = codes == group
        score = outputs[own].softmax(1)[:, 1]
        expected = sklearn.metrics.roc_auc_score(y[own], score)
        assert float(found["auroc@region"][group]) == pytest.approx(expected, abs=1e-12)


def test_an_unknown_metric_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnseenError, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
        Evaluate("validation", ("acuracy",))


def test_outputs_that_are_not_finite_name_the_client() -> None:
    split = Split(torch.full((2, 1), 3e38), torch.tensor([0, 1]))
    model = Model(nn.Linear(1, 2))
    model.vector.fill_(10)
    evaluate = Evaluate("validation")
    with pytest.raises(UnseenError, match="client 'far' are not finite in round 3"):
        evaluate(model, {}, Client("far", None, split, 2), {}, TURN)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e300])
def test_equal_predictions_have_no_correlation_whatever_their_rounding(value: float) -> None:
    constant, y = torch.full((7, 1), value, dtype=torch.float64), torch.arange(7.0)
    assert METRICS["pearson"](constant, y) is None
    assert METRICS["pearson"](y[:, None], constant[:, 0]) is None
