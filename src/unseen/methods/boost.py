"""Gradient-boosted trees, grown from histograms that are summed over sites."""

import math
from dataclasses import replace
from typing import Annotated

from torch import nn

from unseen.core import ONE_LABEL, Exchange, Method, Model, Slot
from unseen.core.exchange import Blueprint
from unseen.core.losses import SquaredError
from unseen.core.metrics.evaluation import plain
from unseen.data.networks.trees import Trees
from unseen.methods.base import TRAIN, binned, cited
from unseen.methods.combine import Sum
from unseen.methods.exact import Begin, BoostedForest, Counts, Grow, Histograms
from unseen.methods.recipe import Training
from unseen.ranges import Count, NotNegative, Range, log, whole


def boost(
    training: Training,
    *,
    trees: Annotated[int, Range(1, 10**5)] = 100,
    depth: Annotated[int, Range(1, 12), whole(2, 6)] = 5,
    rate: Annotated[float, Range(0, 1, open_low=True), log(0.03, 0.3)] = 0.1,
    penalty: Annotated[NotNegative, log(0.01, 10)] = 0.0,
    least: Annotated[Count, whole(5, 50)] = 20,
    bins: Annotated[int, Range(2, 255)] = 64,
) -> Method:
    """Boost regression trees on the gradients of the loss, split by sums over all sites.

        f ← f + Σ_leaves v_l 1[x in l],   v_l = −η G_l / (H_l + λ)

    G, H: the first and second derivatives of the loss, summed over the rows of all sites; a node is
    split where G_L² / (H_L + λ) + G_R² / (H_R + λ) is largest. A round grows one level: sites send
    the sums for every node, column and bin, so `depth` rounds make a tree, or one for each class of
    more than two. Bins are common: counts on a fine grid are summed first. Derivatives are rounded
    to multiples of 2⁻³⁰, so that sums are exact for up to eight million rows: the trees are those
    of the pooled rows, and those under masks, bit for bit. The study's network, optimiser, rounds
    and weights have no effect. The sums go under encryption too. `pip install 'unseen[fast]'`
    compiles the loops over rows and bins, and changes no bit.

    Args:
        training: The recipe.
        trees: iterations.
        depth: levels of splits.
        rate: η.
        penalty: λ.
        least: the fewest rows in a leaf.
        bins: of each column, at equal shares of the rows.

    Departs from:
        XGBoost in that bins hold equal shares of the rows, which it weighs by second derivatives,
        and in that there is no penalty for each leaf and no sample of columns; and LightGBM, whose
        trees grow leaf by leaf, and which samples rows by their gradients and bundles columns.
    """
    numbers = isinstance(training.loss, SquaredError)

    def forest(inputs: int, outputs: int) -> BoostedForest:
        scores, classes = (1, None) if numbers else (outputs if outputs > 2 else 1, max(2, outputs))
        return BoostedForest(trees, depth, rate, penalty, least, bins, scores, inputs, classes)

    def network(blueprint: Blueprint) -> nn.Module:
        inputs = math.prod(blueprint.shape)
        sizes = forest(inputs, blueprint.outputs)
        return Trees(trees * sizes.scores, sizes.nodes, depth, sizes.scores, blueprint.outputs,
                     inputs * (bins - 1))  # fmt: skip

    def of_shape(sizes: BoostedForest) -> tuple[Exchange, ...]:
        begin = Slot(Sum(sizes.counts), apply=Begin(sizes), sends="value")
        levels = [
            Slot(Sum(sizes.row(level)), apply=Grow(sizes), sends="value", memory="grown")
            for level in range(depth)
        ]
        return (
            Exchange("bins", Counts(sizes.classes), {"model": begin}, (0, 0), "all", reads=()),
            *(
                Exchange(
                    f"level {level}" if level else TRAIN,
                    Histograms(sizes),
                    {"model": slot},
                    (level, depth),
                    "all",
                )
                for level, slot in enumerate(levels)
            ),
        )

    def sized(method: Method, model: Model, blueprint: Blueprint) -> Method:
        inputs = math.prod(blueprint.shape)
        return replace(method, exchanges=of_shape(forest(inputs, blueprint.outputs)))

    return Method(
        "boost", of_shape(forest(0, 2)), (cited("chen2016xgboost"), cited("ke2017lightgbm")), plain,
        adapt=network, sized=sized, rounds=trees * depth, cycle=depth, asks=(ONE_LABEL,),
        shares=("counts and sums of derivatives of its rows, by node, column and bin",),
        fits="boosted trees", unfit=binned,
    )  # fmt: skip
