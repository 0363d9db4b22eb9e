"""How good outputs are: metrics over a whole set, and an exchange that evaluates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unseen.core.client import Client, Split
from unseen.core.exchange import Reply
from unseen.core.label_scale import Scale
from unseen.core.labels import IGNORED, Kind, are_masks, are_times, kind_of
from unseen.core.losses import CrossEntropyDice, cross_entropy, squared_error
from unseen.core.metrics import number_metrics, survival_metrics
from unseen.core.metrics.class_metrics import (
    OF_CLASS_1,
    auroc_ovr,
    brier,
    f1_macro,
)
from unseen.core.metrics.finite_scores import of_finite
from unseen.core.metrics.mask_metrics import dice, hd95, iou
from unseen.core.metrics.number_metrics import pearson, r2
from unseen.core.metrics.row_shares import OF_SOME_ROWS, of_few
from unseen.core.metrics.survival_metrics import concordance_ipcw, integrated_brier
from unseen.core.metrics.weighted_metrics import WEIGHTED
from unseen.core.outputs import class_scores, predicted
from unseen.core.survival import Intervals
from unseen.core.turn import Turn
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model
from unseen.errors import Diverged, UnseenError, check_known

#: Rows of one forward pass in evaluation; part of the protocol where BatchNorm has no statistics.
EVALUATION_BATCH = 512
#: (outputs [N, C], y [N]) -> value, or None where the metric is not defined for this set; of
#: masks (outputs [N, C, H, W], y [N, H, W]).
Metric = Callable[[Tensor, Tensor], float | None]
Predict = Callable[[Model, Inbox, Tensor], Tensor]


def loss(outputs: Tensor, y: Tensor) -> float:
    """Return the mean cross-entropy or squared error, minus the likelihood of times, or of masks.

    That of masks is `unseen.core.losses.CrossEntropyDice` with Dice over the whole set.
    """
    if are_masks(y):
        return float(CrossEntropyDice().value(outputs.double(), y))
    if are_times(y):
        return survival_metrics.loss(outputs, y)
    mean = squared_error if y.is_floating_point() else cross_entropy
    return float(mean(outputs.double(), y.double() if y.is_floating_point() else y))


def accuracy(outputs: Tensor, y: Tensor) -> float | None:
    """Return the share of examples whose class is predicted; of masks, the share of pixels.

    None where nothing counts: no example, or no pixel that has a class.

    Example:
        >>> accuracy(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0]))
        0.5
    """
    right = (predicted(outputs) == y)[y != IGNORED]
    return float(right.double().mean()) if len(right) else None


def auroc(outputs: Tensor, y: Tensor) -> float | None:
    """Return the area under the ROC curve of two classes, from scores over the whole set.

    It is the share of pairs of one example of each class that the scores order rightly, ties being
    half of one: Mann and Whitney's U over n₀ n₁. None without both classes.

    Example:
        >>> auroc(torch.tensor([[0.1], [0.4], [0.4], [0.8]]), torch.tensor([0, 0, 1, 1]))
        0.875
    """
    levels = _levels(outputs, y)
    if levels is None:
        return None
    positive, negative = levels
    below = negative.sum() - negative.cumsum(0)  # levels fall: those behind are lower
    return float((positive * (below + negative / 2)).sum() / (positive.sum() * negative.sum()))


def auprc(outputs: Tensor, y: Tensor) -> float | None:
    """Return the average precision of class 1 over the whole set; None without both classes.

    Σ over the levels of the score, from the highest, of (recall gained) × (precision so far).
    """
    levels = _levels(outputs, y)
    if levels is None:
        return None
    positive, negative = levels
    right, count = positive.cumsum(0), (positive + negative).cumsum(0)
    return float((positive / right[-1] * (right / count)).sum())


def _levels(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return how many examples of class 1 and of class 0 have each score, highest score first.

    None without both classes.
    """
    if outputs.shape[-1] > 2:
        raise UnseenError(
            f"auroc and auprc are for two classes; the model has {outputs.shape[-1]} outputs.",
            remedy="Choose auroc-ovr, f1-macro or balanced-accuracy.",
        )
    scores, order = class_scores(outputs).sort(descending=True)
    labels = y[order].double()
    if not 0 < float(labels.sum()) < len(labels):
        return None
    ends = torch.cat([scores[1:] != scores[:-1], scores.new_ones(1, dtype=torch.bool)])
    right, count = labels.cumsum(0)[ends], ends.nonzero().flatten().double() + 1
    positive = right.diff(prepend=right.new_zeros(1))
    return positive, count.diff(prepend=count.new_zeros(1)) - positive


def rmse(outputs: Tensor, y: Tensor) -> float:
    """Return the root of the mean squared error of numbers, which is in their own unit."""
    return math.sqrt(loss(outputs, y.double()))


def concordance(outputs: Tensor, y: Tensor) -> float | None:
    """Return the share of comparable pairs that are ordered alike: of numbers, or Harrell's C."""
    of_times = y.ndim == 2
    return (survival_metrics.concordance if of_times else number_metrics.concordance)(outputs, y)


def log_loss(outputs: Tensor, y: Tensor) -> float:
    """Return the mean of −log p_y; the loss of classes by the name that others give it."""
    return loss(outputs, y)


def of_equal_weights(name: str) -> Metric:
    """Return the metric that `WEIGHTED` has, with a weight of one for every example."""
    metric = WEIGHTED[name]

    def equal(outputs: Tensor, y: Tensor) -> float | None:
        ones = torch.ones(1, len(y), dtype=torch.float64)
        value = float(metric(outputs.cpu(), y.cpu())(ones))
        return value if math.isfinite(value) else None

    return equal


_BY_FUNCTION = {
    metric.__name__.replace("_", "-"): of_finite(metric)
    for metric in (
        loss, accuracy, auroc, auprc, f1_macro, auroc_ovr, log_loss, brier, rmse, r2, pearson,
        concordance, dice, iou, hd95, integrated_brier, concordance_ipcw,
    )
}  # fmt: skip
#: Every metric by its name; those with a function have other last digits than by weights of one.
METRICS: dict[str, Metric] = {
    name: _BY_FUNCTION.get(name) or of_equal_weights(name) for name in WEIGHTED
}
#: Metrics of which less is better.
LOWER = frozenset({"loss", "log-loss", "brier", "ece", "mae", "rmse", "hd95", "integrated-brier"})
#: Metric -> what it cannot leave; the slope and the intercept of a calibration have no ends.
RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(METRICS.keys() - {"calibration-slope", "calibration-intercept"}, (0.0, 1.0)),
    **dict.fromkeys(("loss", "log-loss", "mae", "rmse", "hd95"), (0.0, math.inf)),
    "brier": (0.0, 2.0), "mcc": (-1.0, 1.0), "pearson": (-1.0, 1.0), "r2": (-math.inf, 1.0),
}  # fmt: skip
#: Metrics in the unit of the labels or of pixels, which no two data sets need share.
IN_UNITS = frozenset({"mae", "rmse", "hd95"})
#: Metrics that are neither better high nor low, and what is best: no rule selects by them.
BEST_AT: Mapping[str, int] = {"calibration-slope": 1, "calibration-intercept": 0}
UNORDERED = frozenset(BEST_AT)
#: Metrics of masks; the names that classes have too mean the same of pixels.
OF_MASKS = frozenset({"loss", "accuracy", "dice", "iou", "hd95"})
#: What is recorded of masks where nobody says otherwise.
FOR_MASKS = ("loss", "dice", "iou", "hd95", "accuracy")
#: Metrics of numbers; `loss` is of all kinds, all others but those of masks are of classes.
OF_NUMBERS = frozenset({"mae", "rmse", "r2", "pearson", "concordance"})
#: What is recorded of numbers where nobody says otherwise.
FOR_NUMBERS = ("loss", "mae", "rmse", "r2", "pearson")
#: Metrics of times until an event; what is recorded otherwise, the last of it of hazards alone.
OF_TIMES = frozenset({"concordance", "concordance-ipcw", "integrated-brier"})
FOR_TIMES = ("concordance", "loss", "integrated-brier")
#: Metrics of classes.
OF_CLASSES = METRICS.keys() - OF_NUMBERS - OF_TIMES - (OF_MASKS - {"loss", "accuracy"})
#: Kind of labels -> the metrics that it has.
BY_KIND: Mapping[Kind, frozenset[str]] = {
    "classes": frozenset(OF_CLASSES),
    "numbers": OF_NUMBERS | {"loss"},
    "masks": OF_MASKS,
    "times": OF_TIMES | {"loss"},
}
#: Metrics of two classes.
OF_TWO = frozenset({"auroc", *OF_CLASS_1, *UNORDERED})
#: Metrics of what is decided, which a threshold moves; all others are of the probabilities.
OF_DECISIONS = frozenset({
    "accuracy", "balanced-accuracy", "auprc-of-decisions", "sensitivity", "specificity", "ppv",
    "npv", "f1-macro", "f1-micro", "mcc",
})  # fmt: skip


def fitting(classes: int | None, masks: bool = False, times: int = 0) -> tuple[str, ...]:
    """Return all metrics that such labels have.

    Args:
        classes: The number of classes; None for numbers and times.
        masks: Whether every pixel has a class.
        times: The outputs of a model of times until an event: 1 log-risk, or hazards; 0 for others.
    """
    if times:
        return (*FOR_TIMES[: 2 if times == 1 else None], "concordance-ipcw")
    fit = BY_KIND[kind_of(classes, masks)]
    return tuple(name for name in METRICS if name in fit and (classes == 2 or name not in OF_TWO))


def check_metric(name: str, classes: int | None, masks: bool = False, times: int = 0) -> None:
    """Refuse a metric that does not exist or is not for such labels; see `fitting`."""
    check_known("metric", METRICS, name)
    if name in OF_TWO and not masks and classes not in (2, None):
        raise UnseenError(
            f"the metric {name!r} is for two classes; these labels have {classes}.",
            remedy="Choose accuracy, auroc-ovr, f1-macro or balanced-accuracy.",
        )
    kind = kind_of(classes, masks, bool(times))
    if name == "integrated-brier" and times == 1:
        raise UnseenError(
            "the metric 'integrated-brier' is of survival at given times, and Cox's model has "
            "log-risks alone.",
            remedy="Choose concordance, or train training.loss = 'hazards(intervals=10)'.",
        )
    if name not in BY_KIND[kind]:
        remedy = f"Choose from {', '.join(sorted(BY_KIND[kind]))}."
        words = "times until an event" if times else kind
        raise UnseenError(f"the metric {name!r} is not for labels that are {words}.", remedy=remedy)


def check_ordered(name: str | None) -> None:
    """Refuse to select by a metric that is better neither high nor low."""
    if name in UNORDERED:
        raise UnseenError(
            f"nothing can be selected by {name}, which is better neither high nor low.",
            remedy="Select by log-loss or brier; `metrics` may name it all the same.",
        )


def plain(model: Model, inbox: Inbox, x: Tensor) -> Tensor:
    """Return the model's own outputs: how all methods predict that say nothing else."""
    return model(x)


def forward(
    model: Model, split: Split, predict: Predict = plain, inbox: Inbox | None = None
) -> Tensor:
    """Return outputs [N, C] for a split, in evaluation mode and in its own order.

    Args:
        model: The model.
        split: The split.
        predict: How the method predicts.
        inbox: What else it predicts with.
    """
    if any(layer.training for layer in model.module.modules()):  # to set it costs much more
        model.module.eval()
    with torch.no_grad():
        parts = [
            predict(model, inbox or {}, split.batch(slice(i, i + EVALUATION_BATCH))[0])
            for i in range(0, len(split), EVALUATION_BATCH)
        ]
    return torch.cat(parts)


@dataclass(frozen=True)
class Evaluate:
    """A local that changes nothing and reports metrics of the received model.

    A metric that is not defined is sent as 0 with `metric.undefined` = 1: NaN is a broken reply.

    Attributes:
        split: Which split: `train` or `validation`.
        metrics: Names in METRICS.
        predict: How the method predicts.
        groups: Metadata column -> number of its codes. The metrics of each group are reported as
            vectors `metric@column`, and `examples@column` says which groups are there; examples of
            the code −1 (`unseen.data.dataset.NO_GROUP`) count in the metrics of the whole
            split and in no group.
        scale: What the labels were standardised by, if they were; metrics are of outputs and
            labels in the labels' own units.
        least: Of fewer rows, shares of one class or decision are not defined.
    """

    split: str
    metrics: tuple[str, ...] = ("loss", "accuracy")
    predict: Predict = plain
    groups: Mapping[str, int] = field(default_factory=dict)
    scale: Scale | Intervals | None = None
    least: int = 1

    def __post_init__(self) -> None:
        check_known("metric", METRICS, *self.metrics)

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """Evaluate the model where it is bound, with the client's own statistics if it has any."""
        if "buffers" in memory:
            model.buffers.copy_(memory["buffers"])
        outputs = forward(model, client.split(self.split), self.predict, inbox)
        return self.scored(outputs, client, turn), memory

    def scored(self, outputs: Tensor, client: Client, turn: Turn) -> Reply:
        """Return the metrics of outputs [N, C] for the client's split.

        Raises:
            Diverged: If an output is not finite.
        """
        split = client.split(self.split)
        if not bool(torch.isfinite(outputs).all()):
            what = f"the model's outputs on client {client.name!r} are not finite in round "
            what += f"{turn.round}: training has diverged."
            raise Diverged(what, remedy="A smaller learning rate helps.")
        if self.scale is not None:
            outputs = self.scale.restored(outputs)
            split = replace(split, y=self.scale.restored(split.y))
        scalars: dict[str, float | Tensor] = {"examples": len(split)}
        for name in self.metrics:
            value = self._value(name, outputs, split.y)
            scalars[name] = 0.0 if value is None else value
            scalars[f"{name}.undefined"] = float(value is None)
        for column, count in self.groups.items():
            scalars |= self._grouped(outputs, split, column, count)
        return Reply(scalars=scalars)

    def _value(self, name: str, outputs: Tensor, y: Tensor) -> float | None:
        hidden = name in OF_SOME_ROWS and of_few(outputs, y, self.least)
        return None if hidden else METRICS[name](outputs, y)

    def _grouped(
        self, outputs: Tensor, split: Split, column: str, count: int
    ) -> dict[str, float | Tensor]:
        members = [split.meta[column] == code for code in range(count)]
        groups = {"examples": [float(m.sum()) for m in members]}
        for name in self.metrics:
            parts = ((outputs[m], split.y[m], bool(m.any())) for m in members)
            values = [self._value(name, z, y) if some else None for z, y, some in parts]
            groups[name] = [v or 0.0 for v in values]
            groups[f"{name}.undefined"] = [float(v is None) for v in values]
        return {f"{n}@{column}": torch.tensor(v, dtype=torch.float64) for n, v in groups.items()}
