"""Trees that scikit-learn fits to rows that lie in one place."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from unseen.core import ONE_LABEL, Exchange, Method, Slot
from unseen.core.client import Client
from unseen.core.exchange import Blueprint, Reply
from unseen.core.losses import SquaredError
from unseen.core.metrics.evaluation import plain
from unseen.core.parts import Part
from unseen.core.turn import Turn
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model
from unseen.data.networks.trees import Trees
from unseen.methods.base import TRAIN, cited, gather
from unseen.methods.combine import Sum
from unseen.methods.recipe import Training
from unseen.ranges import Count, Range, log, whole

Array = npt.NDArray[Any]
#: A node's column, threshold, left child, right child and value; a leaf's column is −1.
Node = tuple[int, float, int, int, float]


@dataclass(frozen=True)
class Estimator(Part):
    """Fits scikit-learn's boosted trees or its forest to a client's training rows.

    Attributes:
        kind: "boosting", HistGradientBoosting, or "forest", a random forest.
        trees: How many, or how many for each class.
        leaves: The most of one tree.
        depth: The most decisions on a path.
        rate: η of boosting.
        least: The fewest rows in a leaf.
        outputs: C, the columns of the output; 1 where a number is predicted.
        numbers: Whether numbers are predicted.
    """

    kind: Literal["boosting", "forest"]
    trees: int
    leaves: int
    depth: int
    rate: float
    least: int
    outputs: int
    numbers: bool

    @property
    def scores(self) -> int:
        """How many trees an iteration has."""
        return 1 if self.numbers or (self.kind == "boosting" and self.outputs < 3) else self.outputs

    @property
    def places(self) -> int:
        """M, the most nodes of a tree."""
        return 2 * self.leaves - 1

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        x, y = client.split("train").batch(slice(None))
        seed = int(torch.randint(2**31, (), generator=turn.generator("estimator")))
        rows, labels = x.flatten(1).cpu().numpy(), y.cpu().numpy()
        fit = self._boosted if self.kind == "boosting" else self._forest
        baseline, fitted = fit(rows, labels, seed)
        numbers = np.zeros((4, self.trees * self.scores, self.places), np.float32)
        numbers[0] = -1
        for place, nodes in fitted.items():
            numbers[:, place] = packed(nodes, self.places)
        vector = torch.from_numpy(np.concatenate([baseline, numbers.ravel()])).to(model.vector)
        outputs = model.at(vector, x)
        loss = F.mse_loss(outputs[:, 0], y) if self.numbers else F.cross_entropy(outputs, y)
        scalars = {"examples": len(labels), "steps": 1, "loss": float(loss)}
        return Reply({"model": vector}, scalars), memory

    def _boosted(self, x: Array, y: Array, seed: int) -> tuple[Array, dict[int, list[Node]]]:
        """Return the baseline [G] and place -> nodes of a boosted classifier or regressor."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        options = {
            "max_iter": self.trees, "max_leaf_nodes": self.leaves, "max_depth": self.depth,
            "learning_rate": self.rate, "min_samples_leaf": self.least, "early_stopping": False,
            "random_state": seed,
        }  # fmt: skip
        baseline = np.zeros(self.scores, np.float32)
        if self.numbers:
            theirs, columns = HistGradientBoostingRegressor(**options).fit(x, y), [0]
        else:
            present, counts = np.unique(y, return_counts=True)
            shares = np.full(max(2, self.outputs), 0.5)
            shares[present] = counts
            logs = np.log(shares / shares.sum())
            baseline[:] = logs if self.scores > 1 else logs[1] - logs[0]
            if len(present) < 2:  # nothing to learn: the shares
                return baseline, {}
            theirs = HistGradientBoostingClassifier(**options).fit(x, y)
            columns = [0] if self.scores == 1 else list(present)
            if self.scores > 1 and len(present) == 2:  # their one score: log odds of the second
                baseline[:], columns = logs - logs[present[0]], [present[1]]
            elif self.scores > 1:  # theirs have the mean 0
                baseline[:] = logs - logs[present].mean()
        baseline[columns] = np.ravel(theirs._baseline_prediction)
        fitted = {
            i * self.scores + int(column): [
                (-1 if n["is_leaf"] else int(n["feature_idx"]), float(n["num_threshold"]),
                 int(n["left"]), int(n["right"]), float(n["value"]))
                for n in tree.nodes
            ]
            for i, iteration in enumerate(theirs._predictors)
            for column, tree in zip(columns, iteration, strict=True)
        }  # fmt: skip
        return baseline, fitted

    def _forest(self, x: Array, y: Array, seed: int) -> tuple[Array, dict[int, list[Node]]]:
        """Return place -> nodes of a forest, whose values are shares of classes, or means."""
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        kind = RandomForestRegressor if self.numbers else RandomForestClassifier
        theirs = kind(
            self.trees, max_leaf_nodes=self.leaves, max_depth=self.depth,
            min_samples_leaf=self.least, random_state=seed,
        ).fit(x, y)  # fmt: skip
        columns = [0] if self.numbers else [int(c) for c in theirs.classes_]
        fitted = {}
        for i, tree in enumerate(member.tree_ for member in theirs.estimators_):
            values = tree.value[:, 0] / self.trees
            left, right = tree.children_left, tree.children_right
            feature = np.where(left < 0, -1, tree.feature)
            for j, column in enumerate(columns):
                nodes = zip(feature, tree.threshold, left, right, values[:, j], strict=True)
                fitted[i * self.scores + column] = [
                    (int(f), float(t), int(a), int(b), float(v)) for f, t, a, b, v in nodes
                ]
        return np.zeros(self.scores, np.float32), fitted


def packed(nodes: Sequence[Node], places: int) -> Array:
    """Return a tree's columns, thresholds, left children and values [4, M], in a new order.

    Both children of a node lie next to each other. A threshold is rounded down, so that no number
    of single precision changes sides.
    """
    numbers = np.zeros((4, places), np.float32)
    numbers[0] = -1
    order = [0]
    for place, at in enumerate(order):  # grows while it is read
        feature, threshold, left, right, value = nodes[at]
        numbers[0, place], numbers[3, place] = feature, value
        if feature < 0:
            continue
        single = np.float32(threshold)
        low = np.nextafter(single, np.float32(-np.inf)) if single > threshold else single
        numbers[1, place], numbers[2, place] = low, len(order)
        order += [left, right]
    return numbers


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
