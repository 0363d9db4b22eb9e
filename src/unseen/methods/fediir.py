"""FedIIR: clients whose batches pull on the head as the average client's data does."""

from dataclasses import replace
from typing import Any

from unseen.core import ONE_LABEL, Exchange, Method, MovingAverage, Slot
from unseen.methods.base import asking, federated
from unseen.methods.combine import Mean, Weights
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.fediir import MEAN, HeadGradient, Invariance
from unseen.methods.local.train import Measure, Train
from unseen.methods.options import options_from
from unseen.methods.recipe import Training


@options_from(Invariance)
def fediir(
    training: Training,
    *,
    ema: float = 0.95,
    weights: Weights = "examples",
    **options: Any,
) -> Method:
    """Penalise clients where the head's gradient differs from the mean one.

        first exchange:  ḡ ← β ḡ + (1 − β) Σ_k p_k ∇_h F_k(x)
        second:          min_w  ℓ(w; batch) + γ ‖∇_h ℓ(w; batch) − ḡ‖²,   x ← Σ_k p_k y_k

    h: the head, the last linear layer; F_k: the mean loss over client k's training split, at the
    model x that was received, in training mode; ḡ: 0 before round 0, and without a correction for
    it, as released, so that it takes some 20 rounds to reach its size.

    Args:
        training: The recipe.
        ema: β in [0, 1], 0.95 as released.
        weights: p_k, both of the models and of the gradients; the released code has uniform ones
            for the models and weighs gradients by batches, that is by examples.
        **options: The other options of the page.

    Note:
        The loss that is reported contains the penalty, which is added to it: the rate of the loss's
        own part stays FedAvg's.

    Departs from:
        the released code, whose classifier h is three layers for all but RotatedMNIST, where a
        short last batch counts as a whole one in ḡ, and whose pass for ḡ also moves BatchNorm's
        statistics.
    """
    head = options["head"]
    first = HeadGradient(training.loss, training.batch_size, training.drop_last, head)
    slot = Slot(Mean(weights), apply=MovingAverage(ema), sends="value", start=first.zeros)
    measure = Exchange(MEAN, Measure(MEAN, first), {MEAN: slot})
    local = Train(Backprop(Invariance(training.loss, **options)), training)
    method = federated("fediir", training, Mean(weights), "guo2023fediir", local)
    shares = ("the head's gradient at the received model",)
    method = replace(method, exchanges=(measure, *method.exchanges), shares=shares)
    return asking(method, ONE_LABEL)
