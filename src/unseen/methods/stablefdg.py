"""StableFDG's style-based learning: styles of other clients, and styles further out than any."""

from dataclasses import replace
from functools import partial
from typing import Any

from unseen.combine import Collect, Mean, Weights
from unseen.core import Exchange, Method, Put, Slot
from unseen.gradient import Backprop
from unseen.gradient.style_exploration import STYLES, StyleExplored, StyleStatistics, first_style
from unseen.local.train import Train
from unseen.methods.base import asking, federated
from unseen.methods.options import options_from
from unseen.recipe import Training


@options_from(StyleExplored)
def stablefdg_style(training: Training, *, weights: Weights = "uniform", **options: Any) -> Method:
    """Run FedAvg on feature maps in styles of another client, and in styles outside the batch's.

        shared:    z ← σ' (z − μ)/σ + μ',   (μ', σ') ~ N(mean_k, deviation_k²),  on half of a batch
        explored:  μ + α (μ − mean_batch(μ)),   σ + α (σ − mean_batch(σ)),       on added examples
        mixed:     λ (μ, σ) + (1 − λ) (μ, σ)_π,   λ ~ Beta,                      on all

    μ, σ: mean and deviation of each channel of an example's map over its pixels; mean_k,
    deviation_k: theirs over the examples of another client k, which clients measure at the received
    model and send before they train; in each round every client has another k. The added examples
    are of the classes with fewest in the batch.

    Args:
        training: The recipe.
        weights: p; uniform as released.
        **options: The other options of the page.

    Note:
        This is one of StableFDG's two parts, hence the name. The other, a highlighter that weighs
        the last maps by attention to those of an example of the same class, replaces the pooling
        and doubles the width of a particular network's head; it is not here.

    Departs from:
        the released code, whose sharing gives the styles that k-means++ finds to the first half of
        the batch, whichever examples had them, where here an example keeps its own or takes the
        other client's; where clients do not share in round 0, since no style was sent; and where
        an example whose class is alone in a batch of Office-Home is doubled from another batch.
    """
    gradient = StyleExplored(Backprop(training.loss), **options)
    method = federated(
        "stablefdg-style", training, Mean(weights), "park2023stablefdg", Train(gradient, training)
    )
    start = partial(first_style, gradient.layers)
    slot = Slot(Collect(), apply=Put(), sends="value", start=start)
    first = Exchange(STYLES, StyleStatistics(gradient.layers), {STYLES: slot})
    shares = ("mean and spread of feature maps' statistics on the training data, to every client",)
    method = replace(method, exchanges=(first, *method.exchanges), shares=shares)
    return asking(method, "images", "convolutions", "classes")
