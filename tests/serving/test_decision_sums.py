"""Calibration, thresholds, conformal scores and distances: sums over sites equal pooled fits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from sklearn.covariance import EmpiricalCovariance
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from unseen.core.turn import keyed
from unseen.errors import UnseenError
from unseen.serving.conformal import BINS, ENDS, Scores, class_score, pool
from unseen.serving.novelty import Novelty, moments
from unseen.serving.scaling import Calibration, fit_calibration
from unseen.serving.thresholds import Counts, Threshold, class_counts, threshold

SIZES = {"a": 30, "b": 80, "c": 15}


def answered(columns: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs that are twice too extreme, and shifted, at three sites."""
    outputs, labels = {}, {}
    for name, n in SIZES.items():
        draw = keyed(f"calibration/{name}/{columns}")
        z = torch.randn(n, columns, generator=draw).double()
        full = torch.cat([torch.zeros(n, 1), z], 1) if columns == 1 else z
        p = (full + torch.arange(full.shape[1]) * 0.5).softmax(1)
        labels[name] = torch.multinomial(p, 1, generator=draw).squeeze(1)
        outputs[name] = 2 * z
    return outputs, labels


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("kind", ["temperature", "platt"])
@pytest.mark.parametrize("uniform", [True, False])
def test_the_fit_is_that_of_the_pooled_rows(columns: int, kind: str, uniform: bool) -> None:
    """Against SciPy's minimum of the whole objective, written out over the pooled rows."""
    outputs, y = answered(columns)
    fit, asked = fit_calibration(kind, outputs, y, uniform)  # type: ignore[arg-type]
    z, labels = torch.cat(list(outputs.values())).numpy(), torch.cat(list(y.values())).numpy()
    total = len(labels)
    weight = np.concatenate([
        np.full(n, total / (len(SIZES) * n) if uniform else 1.0) for n in SIZES.values()
    ])  # fmt: skip
    classes = max(2, columns)
    logits = np.hstack([np.zeros_like(z), z]) if columns == 1 else z

    def objective(theta: np.ndarray) -> float:
        shift = np.concatenate([[0.0], theta[1:]]) if kind == "platt" else np.zeros(classes)
        u = np.exp(theta[0]) * logits + shift
        u = u - u.max(1, keepdims=True)
        losses = np.log(np.exp(u).sum(1)) - u[np.arange(total), labels]
        return float((weight * losses).sum() + (theta**2).sum() / 2)

    start = np.array([0.0] + [0.0] * (classes - 1) * (kind == "platt"))
    best = scipy.optimize.minimize(objective, start, method="BFGS", options={"gtol": 1e-7}).x
    shift = list(best[1:]) if kind == "platt" else [0.0] * (classes - 1)
    assert fit.scale == pytest.approx(np.exp(best[0]), abs=1e-4) and asked < 20
    own = list(fit.shift) if columns == 1 else list(fit.shift[1:])
    assert own == pytest.approx(shift, abs=1e-4)
    assert fit.scale < 1  # the outputs were twice too extreme
    assert Calibration.of_json(fit.to_json()) == fit


@pytest.mark.parametrize("unit", [0.01, 0.05, 1.0, 20.0])
def test_the_unit_of_the_outputs_hardly_matters(unit: float) -> None:
    """Outputs in any unit are calibrated to within a tenth of the slope without a penalty."""
    draw = keyed("calibration/unit")
    z = torch.randn(400, 1, generator=draw).double()
    y = (torch.rand(400, generator=draw) < z[:, 0].sigmoid()).long()
    fit, _ = fit_calibration("platt", {"a": unit * z}, {"a": y})
    free = LogisticRegression(C=1e12, tol=1e-12).fit(z.numpy(), y.numpy())
    assert fit.scale * unit == pytest.approx(free.coef_[0, 0], rel=0.1)


def test_outputs_that_separate_the_classes_have_a_finite_scale() -> None:
    z, y = {"a": torch.tensor([[-5.0], [-1.0], [1.0], [5.0]])}, {"a": torch.tensor([0, 0, 1, 1])}
    fit, _ = fit_calibration("temperature", z, y)
    assert 1 < fit.scale < 10


def test_thresholds_keep_their_rules() -> None:
    draw = keyed("thresholds")
    y = (torch.rand(400, generator=draw) < 0.3).long()
    z = (torch.randn(400, generator=draw) + 2 * y)[:, None]
    halves = [class_counts(z[i], y[i]) for i in (slice(200), slice(200, None))]
    counts = Counts(torch.stack(halves).sum(0))
    assert Counts.of_json(counts.to_json()).rows.equal(counts.rows)

    def rates(rule: Threshold) -> tuple[float, float]:
        positive = rule.applied(z).squeeze(1) > 0
        return tuple(float((positive == c)[y == c].double().mean()) for c in (1, 0))  # type: ignore[return-value]

    rule = threshold("sensitivity>=0.9", counts)
    sensitivity, specificity = rates(rule)
    assert sensitivity >= 0.9
    assert rule.sensitivity == pytest.approx(sensitivity, abs=0.01)
    assert rule.specificity == pytest.approx(specificity, abs=0.01)
    higher = Threshold(1 / (1 + math.exp(-rule.logit - 0.1)), "")
    assert rates(higher)[0] <= sensitivity
    youden = sum(rates(threshold("youden", counts)))
    assert youden >= max(sum(rates(Threshold(p / 100, ""))) for p in range(1, 100)) - 0.02
    low, high = (threshold(f"cost={costs}", counts).value for costs in ("20:1", "1:20"))
    assert low < threshold("cost=1:1", counts).value < high
    assert threshold("0.3", None).value == 0.3


@pytest.mark.parametrize("rule", ["youdn", "sensitivity>=x", "cost=3", "1.5", "sensitivity>=1.1"])
def test_rules_that_cannot_be_are_refused(rule: str) -> None:
    counts = Counts(class_counts(torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])))
    with pytest.raises(UnseenError):
        threshold(rule, counts)


def test_the_quantile_is_that_of_sites_with_equal_weight() -> None:
    scores = {n: torch.rand(size, generator=keyed(n)).double() * 3 for n, size in SIZES.items()}
    pooled = pool(scores)
    assert Scores.of_json(pooled.to_json()).quantile(0.6) == pooled.quantile(0.6)
    for coverage in (0.1, 0.4, 0.6, 0.74):
        q = pooled.quantile(coverage)
        mass = sum(float((s <= q).double().mean()) / 4 for s in scores.values())
        assert mass >= coverage
        below = q * (1 - 1.1 * (ENDS[1] / ENDS[0] - 1))  # the end of the bin before
        assert (
            sum(float((s <= below).double().mean()) / 4 for s in scores.values()) < coverage + 0.02
        )
    with pytest.raises(UnseenError, match="0.75 at most"):
        pooled.quantile(0.8)


def test_sets_hold_a_new_sites_rows_as_often_as_promised() -> None:
    """Sites drawn from one population, whose shift is large: rows of the new one are covered."""
    inside = []
    for trial in range(60):
        draw = keyed(f"conformal/{trial}")
        shift = torch.randn(10, generator=draw).double()
        scores = {
            str(k): (shift[k] + 0.3 * torch.randn(40, generator=draw).double()).abs()
            for k in range(10)
        }
        new = scores.pop("9")
        inside.append(float((new <= pool(scores).quantile(0.8)).double().mean()))
    assert sum(inside) / len(inside) > 0.8 - 2 * np.std(inside) / math.sqrt(60)


def test_the_likeliest_class_is_always_in_the_set() -> None:
    p = torch.tensor([[0.4, 0.3, 0.3], [0.9, 0.05, 0.05]])
    total = torch.zeros(BINS + 1, dtype=torch.float64)
    total[0] = 9.0  # all scores are tiny
    assert Scores(total, 9).sets(p, 0.8).tolist() == [[True, False, False]] * 2
    assert class_score(p, torch.tensor([0, 1])).tolist() == pytest.approx(
        [-math.log(0.4), -math.log(0.05)], rel=1e-6
    )


def test_distances_are_scikit_learns_mahalanobis_distances() -> None:
    """With many rows the covariance is hardly shrunk; sums over sites are the pooled rows'."""
    draw = keyed("novelty")
    mix = torch.randn(3, 3, generator=draw).double()
    x = torch.randn(30_000, 3, generator=draw).double() @ mix
    y = torch.zeros(len(x), dtype=torch.int64)
    parts = [moments(x[i], y[i], 1) for i in (slice(10_000), slice(10_000, None))]
    novelty = Novelty.of(*(torch.stack(pair).sum(0) for pair in zip(*parts, strict=True)))
    expected = EmpiricalCovariance().fit(x.numpy()).mahalanobis(x[:50].numpy())
    found = novelty.distance(x[:50]).square() * 3
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-2)
    novelty = novelty.with_site(x[:5000]).with_site(x[5000:5100])
    middle = float(novelty.score(x[:5000]).mean())
    assert middle == pytest.approx(0.5, abs=0.02)
    assert novelty.score(x[:1] + 100).tolist() == [1.0]


def test_a_class_that_training_had_is_near_and_features_may_be_constant() -> None:
    draw = keyed("classes")
    y = torch.arange(200) % 2
    x = torch.randn(200, 4, generator=draw).double() + 20 * y[:, None]
    x[:, 3] = 1.0
    novelty = Novelty.of(*moments(x, y, 3)).with_site(x)
    between = torch.full((1, 4), 10.0).double()
    between[:, 3] = 1.0
    assert len(novelty.means) == 2  # the third class did not occur
    assert float(novelty.score(between)) > 0.99 > float(novelty.score(x).mean())


def test_the_largest_score_is_known_as_such() -> None:
    """Three sites of ten rows: a row is worth 1/40, and all of them 30/40."""
    draw = keyed("largest")
    scores = pool({n: torch.rand(10, generator=draw).double() + 0.1 for n in "abc"})
    assert scores.is_largest(0.75) and not scores.is_largest(0.72)


def test_a_threshold_between_the_classes_lies_in_the_middle() -> None:
    counts = Counts(class_counts(torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])))
    assert threshold("youden", counts).value == pytest.approx(0.5, abs=0.02)


def test_the_lowest_threshold_has_the_specificity() -> None:
    """Two of three rows of class 0 lie below the first border above -1, and no row of class 1."""
    z, y = torch.tensor([[-2.0], [-1.01], [0.4], [1.0]]), torch.tensor([0, 0, 0, 1])
    rule = threshold("specificity>=0.6", Counts(class_counts(z, y)))
    assert rule.logit == pytest.approx(-1.0) and rule.sensitivity == 1.0
    assert rule.specificity == pytest.approx(2 / 3)


def test_a_score_beyond_all_bins_is_the_largest() -> None:
    scores = pool({n: torch.tensor([0.1, 1e5], dtype=torch.float64) for n in "abc"})
    assert scores.quantile(0.7) == math.inf and scores.is_largest(0.7)
    assert not scores.is_largest(0.3)


def test_a_row_like_all_others_is_in_the_middle_of_them() -> None:
    x = torch.randn(50, 2, generator=keyed("middle")).double()
    novelty = Novelty.of(*moments(x, torch.zeros(50, dtype=torch.int64), 1))
    novelty = novelty.with_site(x[:1].expand(5, -1)).with_site(x[:1].expand(9, -1))
    assert novelty.score(x[:1]).tolist() == [0.5]


@pytest.mark.parametrize("outputs", [torch.zeros(4, 1), torch.zeros(4, 2)])
def test_a_row_at_the_threshold_is_answered_as_it_is_counted(outputs: torch.Tensor) -> None:
    y = torch.tensor([0, 0, 1, 1])
    rule = threshold("0.5", Counts(class_counts(outputs, y)))
    applied = rule.applied(outputs)
    positive = applied[:, 0] > 0 if applied.shape[1] == 1 else applied.argmax(1) == 1
    assert float(positive[y == 1].double().mean()) == rule.sensitivity == 1.0
    assert float((~positive)[y == 0].double().mean()) == rule.specificity == 0.0


def test_the_rates_of_a_given_threshold_lie_between_those_of_its_edges() -> None:
    """Of rows spread evenly over one bin a straight line gives those of the threshold itself."""
    z = torch.linspace(0.0, 0.05, 2001, dtype=torch.float64)[:-1, None]
    y = torch.arange(len(z)) % 2
    counts = Counts(class_counts(z, y))
    for logit in (0.01, 0.02, 0.045):
        rule = threshold(repr(1 / (1 + math.exp(-logit))), counts)
        expected = float((z[y == 1] >= logit).double().mean())
        assert rule.sensitivity == pytest.approx(expected, abs=2e-3)
        assert rule.specificity == pytest.approx(1 - expected, abs=2e-3)
    assert math.isnan(threshold("0.99999999", counts).sensitivity)
