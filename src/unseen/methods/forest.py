"""A forest of extremely randomised trees, grown from counts that are summed over sites."""

import math
from dataclasses import replace
from typing import Annotated

from torch import nn

from unseen.core import ONE_LABEL, Exchange, Method, Model, Slot
from unseen.core.exchange import Blueprint
from unseen.core.losses import SquaredError
from unseen.core.metrics.evaluation import plain
from unseen.data.networks.random_trees import RandomTrees
from unseen.methods.base import TRAIN, binned, cited
from unseen.methods.combine import Sum
from unseen.methods.exact import Branch, Counts, LeftOfCuts, Plant, Sizes
from unseen.methods.recipe import Training
from unseen.ranges import Count, Natural, Range, whole

#: Trees that grow at a time, and nodes of one that are split on a level: what fits a message.
BLOCK, WIDTH = 10, 256


def forest(
    training: Training,
    *,
    trees: Annotated[int, Range(1, 10**4)] = 100,
    depth: Annotated[int, Range(1, 24), whole(6, 16)] = 14,
    least: Annotated[Count, whole(1, 20)] = 2,
    columns: Count | None = None,
    bins: Annotated[int, Range(2, 255)] = 64,
    draw: Natural = 0,
) -> Method:
    """Grow extremely randomised trees from counts over all sites.

        p(x) = (1/T) Σ_t v_t(leaf of x in tree t),   v: shares of the classes, or the mean of y

    At every node m columns and one cut of each are drawn before anything is known of the rows;
    sites count their rows left of each cut, by class, and the node is split where the Gini impurity
    of both sides is least (of numbers, the squared error). Ten trees grow at a time, one level a
    round, so that 100 trees take 140 rounds of short messages, in which nothing goes
    out but counts; where a level has more than 256 nodes of a tree to split, those with most rows
    are. Counts are whole numbers: the trees are those of the pooled rows, and those under masks,
    bit for bit. The study's network, optimiser, seed, rounds and weights have no effect.

    Args:
        training: The recipe.
        trees: T.
        depth: levels of splits.
        least: the fewest rows of all sites in a leaf.
        columns: m; None: √d for classes and d/3 for numbers, rounded up.
        bins: of each column, at equal shares of the rows; cuts lie between them.
        draw: which of the forests that chance may draw.

    Departs from:
        the paper, which draws a cut evenly between the least and the largest value at a node, where
        here it is a border of bins that earlier cuts leave to the node; and in depth and width,
        which have a limit.
    """
    numbers = isinstance(training.loss, SquaredError)

    def sizes_of(inputs: int, outputs: int) -> Sizes:
        m = columns or math.ceil(inputs / 3 if numbers else math.sqrt(inputs))
        classes = None if numbers else max(2, outputs)
        block, m = min(BLOCK, trees), max(1, min(m, inputs))
        return Sizes(trees, block, depth, WIDTH, m, least, bins, inputs, classes, draw)

    def network(blueprint: Blueprint) -> nn.Module:
        inputs = math.prod(blueprint.shape)
        sizes = sizes_of(inputs, blueprint.outputs)
        outputs = sizes.classes or 1
        return RandomTrees(trees, sizes.nodes, depth, outputs, numbers, sizes.workspace)

    def of_sizes(sizes: Sizes) -> tuple[Exchange, ...]:
        begin = Slot(Sum(sizes.counts), apply=Plant(sizes), sends="value", memory="grown")
        levels = [
            Slot(
                Sum(sizes.row(level)), apply=Branch(sizes), sends="value", memory="grown",
                part=(0, sizes.workspace) if level + 1 < depth else None,
            )
            for level in range(depth)
        ]  # fmt: skip
        local, reads = LeftOfCuts(sizes), ((0, sizes.workspace),)
        return (
            Exchange("bins", Counts(sizes.classes), {"model": begin}, (0, 0), "all", reads=()),
            *(
                Exchange(
                    f"level {level}" if level else TRAIN,
                    local,
                    {"model": slot},
                    (level, depth),
                    "all",
                    reads=reads,
                )
                for level, slot in enumerate(levels)
            ),
        )

    def sized(method: Method, model: Model, blueprint: Blueprint) -> Method:
        sizes = sizes_of(math.prod(blueprint.shape), blueprint.outputs)
        return replace(method, exchanges=of_sizes(sizes))

    sizes = sizes_of(1, 2)
    return Method(
        "forest", of_sizes(sizes), (cited("geurts2006extremely"),), plain,
        adapt=network, sized=sized, rounds=sizes.rounds, cycle=depth, asks=(ONE_LABEL,),
        shares=("counts of its rows left of random cuts, by node and class",),
        fits="a forest of random trees", unfit=binned,
    )  # fmt: skip
