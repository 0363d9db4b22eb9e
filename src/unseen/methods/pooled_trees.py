"""Trees that scikit-learn fits to rows that lie in one place."""

from dataclasses import replace
from typing import Annotated, Literal

from torch import nn

from unseen.core import ONE_LABEL, Exchange, Method, Model, Slot
from unseen.core.exchange import Blueprint
from unseen.core.losses import SquaredError
from unseen.core.metrics.evaluation import plain
from unseen.data.networks.trees import Trees
from unseen.methods.base import TRAIN, cited, gather
from unseen.methods.combine import Sum
from unseen.methods.local.estimator import Estimator
from unseen.methods.recipe import Training
from unseen.ranges import Count, Range, log, whole


def trees(
    training: Training,
    *,
    kind: Literal["boosting", "forest"] = "boosting",
    count: Annotated[int, Range(1, 10**5)] = 100,
    leaves: Annotated[int, Range(2, 10**4), whole(7, 63)] = 31,
    depth: Annotated[int, Range(1, 64), whole(3, 10)] = 8,
    rate: Annotated[float, Range(0, 1, open_low=True), log(0.02, 0.3)] = 0.1,
    least: Annotated[Count, whole(5, 50)] = 20,
) -> Method:
    """Fit scikit-learn's trees to the pooled rows; in a bag, every site's to its own.

        f(x) = b + η Σ_t tree_t(x),   or   p(x) = 1/T Σ_t tree_t(x) for a forest

    What a practitioner would have with all rows in one place, which federated learning forbids;
    `boost` fits such trees from sums over sites. `bag(of='trees')` is the one-shot federation:
    every site's trees, averaged. A class that a site lacks keeps the log share of half a row. The
    study's network, optimiser, rounds and weights have no effect.

    Args:
        training: The recipe.
        kind: HistGradientBoosting, or a random forest.
        count: T, for each class of more than two.
        leaves: the most of a tree.
        depth: the most decisions on a path.
        rate: η.
        least: the fewest rows in a leaf.

    Departs from:
        LightGBM as scikit-learn's HistGradientBoosting does, which neither samples rows by their
        gradients nor bundles columns.
    """
    numbers = isinstance(training.loss, SquaredError)

    def estimator(outputs: int) -> Estimator:
        return Estimator(kind, count, leaves, depth, rate, least, outputs, numbers)

    def network(blueprint: Blueprint) -> nn.Module:
        own = estimator(1 if numbers else max(2, blueprint.outputs))
        return Trees(count * own.scores, own.places, depth, own.scores, own.outputs,
                     shares=kind == "forest" and not numbers)  # fmt: skip

    def exchange(own: Estimator, size: int) -> Exchange:
        slot = Slot(Sum(size), sends="value")  # of one client
        return Exchange(TRAIN, own, {"model": slot}, rounds=(0, 0), who="all")

    def sized(method: Method, model: Model, blueprint: Blueprint) -> Method:
        own = estimator(1 if numbers else max(2, blueprint.outputs))
        return replace(method, exchanges=(exchange(own, model.layout.size),))

    source = "ke2017lightgbm" if kind == "boosting" else "breiman2001forests"
    return Method(
        "trees", (exchange(estimator(2), 0),), (cited(source),), plain,
        adapt=network, sized=sized, gather=gather, rounds=1, asks=(ONE_LABEL,),
        fits="boosted trees" if kind == "boosting" else "a random forest",
    )  # fmt: skip
