"""The metrics of `evaluation` with a weight for every example, for many sets of weights.

`WEIGHTED[name](outputs, y)` maps weights [R, N] to values [R], NaN where undefined; weights of one
give the metric itself, up to rounding.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from unseen.core.labels import IGNORED, are_masks, are_times
from unseen.core.losses import CrossEntropyDice, pixel_sums
from unseen.core.metrics.class_metrics import (
    BINS,
    confidence_bins,
    logistic,
    rankable,
    squared_distances,
)
from unseen.core.metrics.finite_scores import of_finite
from unseen.core.metrics.mask_metrics import each_dice, each_hd95, each_iou
from unseen.core.metrics.ordered_pairs import ordered_pairs
from unseen.core.metrics.survival_metrics import brier_rows, comparable_pairs, uncensored_weights
from unseen.core.outputs import class_scores, predicted
from unseen.core.survival import hazard_losses

Weighted = Callable[[Tensor], Tensor]
#: The share of a mean square below which a variance is rounding: the sample has one value.
ROUNDING = 1e-12


def _mean_of(values: Tensor) -> Weighted:
    return lambda weights: weights @ values / weights.sum(1)


def _errors(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs.squeeze(-1).double() - y.double()


def _loss(outputs: Tensor, y: Tensor) -> Weighted:
    z = outputs.double()
    if are_masks(y):
        return _mask_loss(z, y)
    if are_times(y):
        return _breslow(z, y) if z.shape[-1] == 1 else _mean_of(hazard_losses(z, y.double()))
    if y.is_floating_point():
        return _mean_of(_errors(z, y).square())
    if z.shape[-1] > 1:
        return _mean_of(cross_entropy(z, y, reduction="none"))
    return _mean_of(binary_cross_entropy_with_logits(z.squeeze(-1), y.double(), reduction="none"))


def _mask_loss(z: Tensor, y: Tensor) -> Weighted:
    logs, pixels, both, sizes = (part.double() for part in pixel_sums(z, y))
    combined = CrossEntropyDice().combined

    def metric(weights: Tensor) -> Tensor:
        entropy = weights @ logs / (weights @ pixels).clamp(min=1)
        return combined(entropy, weights @ both, weights @ sizes)

    return metric


def _accuracy(outputs: Tensor, y: Tensor) -> Weighted:
    if are_masks(y):
        counted = y != IGNORED
        right = ((predicted(outputs) == y) & counted).sum((1, 2)).double()
        pixels = counted.sum((1, 2)).double()
        return lambda weights: (weights @ right) / (weights @ pixels)
    return _mean_of((predicted(outputs) == y).double())


def _balanced_accuracy(outputs: Tensor, y: Tensor) -> Weighted:
    right, members = (predicted(outputs) == y).double(), one_hot(y).double()
    return lambda weights: ((weights @ (members * right[:, None])) / (weights @ members)).nanmean(1)


def _by_score(outputs: Tensor, y: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return a function from weights [R, N] to those of class 1 and of class 0, by rising score."""
    levels, place = class_scores(outputs.double()).unique(return_inverse=True)  # type: ignore[no-untyped-call]

    def split(weights: Tensor) -> tuple[Tensor, Tensor]:
        zeros = weights.new_zeros(len(weights), len(levels))
        ones, others = (zeros.index_add(1, place[y == c], weights[:, y == c]) for c in (1, 0))
        return ones, others

    return split


def _auroc(outputs: Tensor, y: Tensor) -> Weighted:
    split = _by_score(outputs, y)

    def metric(weights: Tensor) -> Tensor:
        ones, zeros = split(weights)
        below = zeros.cumsum(1) - zeros / 2
        return (ones * below).sum(1) / (ones.sum(1) * zeros.sum(1))

    return metric


def _auprc(outputs: Tensor, y: Tensor) -> Weighted:
    split = _by_score(outputs, y)

    def metric(weights: Tensor) -> Tensor:
        ones, zeros = (part.flip(1) for part in split(weights))
        hits = ones.cumsum(1)
        counted = hits + zeros.cumsum(1)
        precision = torch.where(counted > 0, hits / counted, 0.0)
        average = (ones * precision).sum(1) / ones.sum(1)
        return torch.where(zeros.sum(1) > 0, average, math.nan)

    return metric


def _rmse(outputs: Tensor, y: Tensor) -> Weighted:
    mean_square = _mean_of(_errors(outputs, y).square())
    return lambda weights: mean_square(weights).sqrt()


def _r2(outputs: Tensor, y: Tensor) -> Weighted:
    mean_square = _mean_of(_errors(outputs, y).square())
    centred = y.double() - y.double().mean()
    first, second = _mean_of(centred), _mean_of(centred.square())

    def metric(weights: Tensor) -> Tensor:
        variance = second(weights) - first(weights).square()
        constant = variance <= ROUNDING * second(weights)
        return torch.where(constant, math.nan, 1 - mean_square(weights) / variance)

    return metric


def _pearson(outputs: Tensor, y: Tensor) -> Weighted:
    a, b = outputs.squeeze(-1).double(), y.double()
    a, b = a - a.mean(), b - b.mean()

    def metric(weights: Tensor) -> Tensor:
        n = weights.sum(1)
        mean_a, mean_b = weights @ a / n, weights @ b / n
        square_a, square_b = weights @ a.square() / n, weights @ b.square() / n
        spread_a, spread_b = square_a - mean_a**2, square_b - mean_b**2
        constant = (spread_a <= ROUNDING * square_a) | (spread_b <= ROUNDING * square_b)
        covariance = weights @ (a * b) / n - mean_a * mean_b
        value = torch.div(covariance, (spread_a * spread_b).clamp(min=0).sqrt())
        return torch.where(constant, math.nan, value)

    return metric


def _area_of_decisions(m: Tensor) -> Tensor:
    """Return the area under the precision-recall curve of decisions 0 and 1, by trapezia.

    The curve has three points (recall, precision): class 1 for all rows, the decisions, and (0, 1).

    Note:
        FedILC's released code computes this in place of `auprc`, and `balanced-accuracy` in place
        of `auroc`, on each whole batch of both classes, and takes means over batches; here both are
        of the whole set.
    """
    prevalence, recall = m[:, 1].sum(1) / m.sum((1, 2)), m[:, 1, 1] / m[:, 1].sum(1)
    positive = m[:, :, 1].sum(1)
    precision = torch.where(positive > 0, m[:, 1, 1] / positive, 1.0)
    area = ((1 - recall) * (prevalence + precision) + recall * (precision + 1)) / 2
    return torch.where(m[:, 0].sum(1) > 0, area, math.nan)


def _of_counts(metric: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Weighted]:
    """Return a metric of confusion matrices [R, true, predicted] as one of weights."""

    def of(outputs: Tensor, y: Tensor) -> Weighted:
        classes = max(2, outputs.shape[-1])
        code = y * classes + predicted(outputs)

        def values(weights: Tensor) -> Tensor:
            cells = weights.new_zeros(len(weights), classes**2).index_add(1, code, weights)
            return metric(cells.view(-1, classes, classes))

        return values

    return of


def _f1(matrices: Tensor) -> Tensor:
    right = matrices.diagonal(dim1=1, dim2=2)
    return (2 * right / (matrices.sum(1) + matrices.sum(2))).nanmean(1)


def _mcc(matrices: Tensor) -> Tensor:
    n, right = matrices.sum((1, 2)), matrices.diagonal(dim1=1, dim2=2).sum(1)
    guess, true = matrices.sum(1), matrices.sum(2)
    covariance = n * right - (guess * true).sum(1)
    spread = (n.square() - guess.square().sum(1)) * (n.square() - true.square().sum(1))
    return covariance / spread.sqrt()


def _auroc_ovr(outputs: Tensor, y: Tensor) -> Weighted:
    p = rankable(outputs)
    areas = [_auroc(p[:, c, None], (y == c).long()) for c in range(p.shape[1])]
    return lambda weights: torch.stack([area(weights) for area in areas], 1).nanmean(1)


def _ece(outputs: Tensor, y: Tensor) -> Weighted:
    """Σ_b |Σ_{i ∈ b} (confidence_i − right_i)| / N, with 15 bins.

    Source:
        Guo et al. 2017, "On Calibration of Modern Neural Networks", Eq. 3.
    """
    bins, gaps = confidence_bins(outputs, y)
    members = one_hot(bins, BINS).double() * gaps[:, None]
    return lambda weights: (weights @ members).abs().sum(1) / weights.sum(1)


def _calibration(outputs: Tensor, y: Tensor, slope: bool) -> Weighted:
    """Fit y ~ a + b logit(p_1) of two classes: b, the slope, or a with b = 1, the intercept.

    Undefined where the fit does not exist: one class alone, one probability alone, or probabilities
    that separate the classes.

    Source:
        Van Calster et al. 2019, "Calibration: the Achilles heel of predictive analytics".
    """
    z, target = class_scores(outputs.double()), y.double()
    return lambda weights: logistic(z, target, weights, slope)[:, int(slope)]


def _breslow(f: Tensor, y: Tensor) -> Weighted:
    order = y[:, 0].argsort(descending=True, stable=True)
    f, event = f.squeeze(-1)[order], (y[order, 1] > 0).double()
    _, group, sizes = torch.unique_consecutive(y[order, 0], return_inverse=True, return_counts=True)
    ends, top = (sizes.cumsum(0) - 1)[group], f.max()

    def metric(weights: Tensor) -> Tensor:
        w = weights[:, order]
        at_risk = (w * (f - top).exp()).cumsum(1)[:, ends].clamp(min=1e-300)
        return (w * event * (at_risk.log() + top - f)).sum(1) / w.sum(1)

    return metric


def _brier_of_intervals(outputs: Tensor, y: Tensor) -> Weighted:
    rows = brier_rows(outputs, y)  # its G is the whole set's in all samples
    return _undefined if rows is None else _mean_of(rows)


def _undefined(weights: Tensor) -> Tensor:
    return torch.full((len(weights),), math.nan, dtype=torch.float64)


def _concordance(outputs: Tensor, y: Tensor, ipcw: bool = False) -> Weighted:
    # G is the whole set's in all samples, as above.
    first = uncensored_weights(y) if ipcw else (y[:, 1] > 0).double() if y.ndim == 2 else None
    falling = (-y).unique(return_inverse=True)[1] if first is None else y  # type: ignore[no-untyped-call]

    def metric(weights: Tensor) -> Tensor:
        if first is None:
            count, right = ordered_pairs(falling, outputs.squeeze(-1), weights, weights)
        else:
            count, right = comparable_pairs(outputs, y, weights * first, weights)
        return right / count

    return metric


_METRICS: dict[str, Callable[[Tensor, Tensor], Weighted]] = {
    "loss": _loss,
    "accuracy": _accuracy,
    "balanced-accuracy": _balanced_accuracy,
    "auroc": _auroc,
    "auprc": _auprc,
    "auprc-of-decisions": _of_counts(_area_of_decisions),
    "sensitivity": _of_counts(lambda m: m[:, 1, 1] / m[:, 1].sum(1)),
    "specificity": _of_counts(lambda m: m[:, 0, 0] / m[:, 0].sum(1)),
    "ppv": _of_counts(lambda m: m[:, 1, 1] / m[:, :, 1].sum(1)),
    "npv": _of_counts(lambda m: m[:, 0, 0] / m[:, :, 0].sum(1)),
    "f1-macro": _of_counts(_f1),
    "f1-micro": _accuracy,
    "mcc": _of_counts(_mcc),
    "auroc-ovr": _auroc_ovr,
    "log-loss": _loss,
    "brier": lambda outputs, y: _mean_of(squared_distances(outputs, y)),
    "ece": _ece,
    "calibration-slope": lambda outputs, y: _calibration(outputs, y, slope=True),
    "calibration-intercept": lambda outputs, y: _calibration(outputs, y, slope=False),
    "mae": lambda outputs, y: _mean_of(_errors(outputs, y).abs()),
    "rmse": _rmse,
    "r2": _r2,
    "pearson": _pearson,
    "concordance": _concordance,
    "dice": lambda outputs, y: _mean_of(each_dice(outputs, y)),
    "iou": lambda outputs, y: _mean_of(each_iou(outputs, y)),
    "hd95": lambda outputs, y: _mean_of(each_hd95(outputs, y)),
    "integrated-brier": _brier_of_intervals,
    "concordance-ipcw": lambda outputs, y: _concordance(outputs, y, ipcw=True),
}
WEIGHTED = {name: of_finite(metric) for name, metric in _METRICS.items()}
