"""Metrics of classes by the field's names; class 1 of two is the one that is looked for.

Each takes outputs [N, C] and classes y [N], and returns None where the metric is not defined; those
that need no more than counts are `weighted_metrics` with weights of one.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from unseen.core.outputs import predicted, probabilities

#: Metrics of two classes that look for class 1 and change where the classes change places.
OF_CLASS_1 = (
    "auprc", "auprc-of-decisions", "sensitivity", "specificity", "ppv", "npv",
    "calibration-intercept",
)  # fmt: skip
#: Bins of confidence in the expected calibration error, of equal width.
BINS = 15
#: Steps of Newton's method, and the slope on standardised scores beyond which these separate the
#: classes; how often an interval is halved.
STEPS, SEPARATED, HALVINGS = 40, 1e3, 60


def f1_macro(outputs: Tensor, y: Tensor) -> float:
    """Return the mean of F1 over the classes that occur or are predicted."""
    from sklearn.metrics import f1_score

    pair = y.cpu().numpy(), predicted(outputs).cpu().numpy()
    return float(f1_score(*pair, average="macro", zero_division=0.0))


def auroc_ovr(outputs: Tensor, y: Tensor) -> float | None:
    """Return the mean over classes of the area under the ROC curve of each against all others.

    A class that does not occur, or that all rows are of, is left out; None where none is left. Of
    two classes it is the area itself.
    """
    from sklearn.metrics import roc_auc_score

    p, labels = rankable(outputs).cpu().numpy(), y.cpu().numpy()
    present = [c for c in range(p.shape[1]) if 0 < (labels == c).sum() < len(labels)]
    areas = [float(roc_auc_score(labels == c, p[:, c])) for c in present]
    return sum(areas) / len(areas) if areas else None


def rankable(outputs: Tensor) -> Tensor:
    """Return what orders the rows as each class's probability does [N, C].

    It is log p − log(1 − p), which still tells apart what rounding makes 0 or 1.
    """
    z = outputs.double()
    z = torch.cat([torch.zeros_like(z), z], 1) if z.shape[1] == 1 else z
    others = ~torch.eye(z.shape[1], dtype=torch.bool, device=z.device)
    rest = [z[:, other].logsumexp(1) for other in others]
    return z - torch.stack(rest, 1)


def squared_distances(outputs: Tensor, y: Tensor) -> Tensor:
    """Return each row's part [N] of the Brier score."""
    p = probabilities(outputs.double())
    squares = (p - one_hot(y, p.shape[1])).square().sum(1)
    return squares / 2 if p.shape[1] == 2 else squares


def brier(outputs: Tensor, y: Tensor) -> float:
    """Return the mean of Σ_c (p_c − [y = c])²; of two classes half of it, (p_1 − y)²."""
    return float(squared_distances(outputs, y).mean())


def confidence_bins(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bin of each row's confidence [N], and confidence less whether it is right [N].

    Note:
        The confidence is the largest probability; the bins are (b/15, (b + 1)/15].
    """
    confidence, guess = probabilities(outputs.double()).max(1)
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    return bins, confidence - (guess == y).double()


def logistic(z: Tensor, y: Tensor, weights: Tensor, slope: bool = True) -> Tensor:
    """Fit y ~ a + b z by weighted logistic regressions, all at once.

    Args:
        z: The scores [N].
        y: 0 or 1 [N], floating point.
        weights: Of each row in each regression [R, N].
        slope: Whether b is free; else it is 1.

    Returns:
        a and b [R, 2], NaN where there is no finite fit.
    """
    if not slope:
        a = _in_the_large(z, y, weights)
        return torch.stack([a, torch.ones_like(a)], 1)
    centre, scale = z.mean(), z.std(correction=0)
    if not float(scale):
        return torch.full((len(weights), 2), math.nan, dtype=torch.float64)
    a, b = _newton((z - centre) / scale, y, weights).unbind(1)
    return torch.stack([a - b * centre / scale, b / scale], 1)


def _in_the_large(z: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return the a [R] at which Σ w σ(a + z) = Σ w y, by halving; NaN with one class alone."""
    total, positive = weights.sum(1), weights @ y
    share = positive / total
    # At these the mean of σ is below the share, and above it.
    low, high = (share.logit() - end for end in (z.max(), z.min()))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = (weights * torch.sigmoid(middle[:, None] + z)).sum(1) > positive
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return ((low + high) / 2).masked_fill((share <= 0) | (share >= 1), math.nan)


def _newton(z: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return a and b [R, 2] of regressions on standardised scores, NaN where none is finite."""
    total, positive = weights.sum(1), weights @ y
    none = (positive <= 0) | (positive >= total)
    start = (positive / total).logit()
    fit = torch.stack([start, torch.zeros_like(start)], 1)
    best, loss, rate = fit, torch.full_like(total, math.inf), torch.ones_like(total)
    step = torch.zeros_like(fit)
    for _ in range(STEPS):
        scores = fit[:, :1] + fit[:, 1:] * z
        now = (weights * (softplus(scores) - y * scores)).sum(1)
        # A whole step of Newton's may overshoot: then half of it, from where it began.
        worse = now > loss + 1e-12 * loss.abs()
        p = torch.sigmoid(scores)
        residual, curvature = weights * (y - p), weights * p * (1 - p)
        g0, h00 = residual.sum(1), curvature.sum(1)
        g1, h01, h11 = residual @ z, curvature @ z, curvature @ z.square()
        determinant = h00 * h11 - h01.square()
        none = none | (~worse & (determinant <= 1e-12 * h00 * h11))
        sides = (h11 * g0 - h01 * g1, h00 * g1 - h01 * g0)
        new = torch.stack(sides, 1) / determinant[:, None]
        step, best = (torch.where(worse[:, None], *pair) for pair in ((step, new), (best, fit)))
        loss, rate = torch.where(worse, loss, now), torch.where(worse, rate / 2, 1.0)
        fit = best + rate[:, None] * step.nan_to_num(0.0)
    none = none | (best.abs() > SEPARATED).any(1) | (step.abs() > 1e-6 * (1 + best.abs())).any(1)
    return best.masked_fill(none[:, None], math.nan)


def confusion(outputs: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return how many rows of each class are predicted as each class, [true, predicted] int64."""
    code = y * classes + predicted(outputs)
    return torch.bincount(code, minlength=classes**2).view(classes, classes)


def looked_for(metrics: Iterable[str], classes: Sequence[str] | None) -> str:
    """Return which class of two the metrics look for, in a line; empty where none does.

    Example:
        >>> looked_for(["accuracy", "auprc"], ["alive", "died"])
        "auprc: of 'died'"
    """
    names = ", ".join(name for name in metrics if name in OF_CLASS_1)
    return f"{names}: of {classes[1]!r}" if names and classes and len(classes) == 2 else ""
