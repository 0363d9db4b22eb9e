"""Generalised linear models, fitted exactly as on pooled rows."""

import math
from dataclasses import replace
from typing import Annotated

from torch import nn

from unseen.core import ONE_LABEL, Exchange, Method, Model, Slot
from unseen.core.exchange import Blueprint
from unseen.core.losses import SquaredError
from unseen.core.metrics.evaluation import plain
from unseen.data.networks.digit_nets import logistic
from unseen.methods.base import TRAIN, cited
from unseen.methods.combine import Sum
from unseen.methods.exact.newton import Derivatives, Family, Newton, Shape, too_large
from unseen.methods.recipe import Training
from unseen.ranges import Count, NotNegative, log


def glm(
    training: Training, *, ridge: Annotated[NotNegative, log(0.01, 100)] = 1.0, steps: Count = 10
) -> Method:
    """Fit a logistic, multinomial or linear regression by Newton's steps from sums over sites.

        β ← β − (Σ_k H_k + Λ)⁻¹ (Σ_k g_k + Λ β)

    g_k, H_k: the gradient and the Hessian of the log-likelihood loss, summed over the rows of
    site k, so that the fit is the one of the pooled rows: with the same penalty scikit-learn's
    `LogisticRegression(C=1/ridge)` and `Ridge(alpha=ridge)`. Intercepts are not penalised. A few
    exchanges are enough, whatever the study's `rounds`; the study's network, optimiser and weights
    have no effect. It is evaluated after its last step alone, since the steps before it do not fit
    the rows yet. The sums go under masks and encryption.

    Args:
        training: The recipe.
        ridge: λ of the penalty λ/2 ‖W‖² on the sum of losses. Without it, classes that a column
            separates have infinite coefficients: a small penalty comes in.
        steps: Newton's steps, one a round. Without a penalty there are twice as many rounds, since
            separated classes show after several, and the fit then begins again. A penalty below
            0.001 takes some 15 steps where classes are separated.

    Departs from:
        the paper, which has two classes and no penalty; and in that a step that makes the objective
        larger is halved.
    """
    family: Family = "linear" if isinstance(training.loss, SquaredError) else "multinomial"
    rounds = 2 * steps if ridge == 0 and family == "multinomial" else steps

    def of_shape(outputs: int, inputs: int) -> Exchange:
        shape = Shape(outputs, inputs, family)
        slot = Slot(Sum(shape.row), apply=Newton(shape, ridge), sends="value")
        return Exchange(TRAIN, Derivatives(shape), {"model": slot}, who="all")

    def sized(method: Method, model: Model, blueprint: Blueprint) -> Method:
        return replace(method, exchanges=(of_shape(*model.layout.shapes[0]),))

    def unfit(blueprint: Blueprint) -> str:
        return too_large(Shape(blueprint.outputs, math.prod(blueprint.shape), family))

    return Method(
        "glm", (of_shape(1, 0),), (cited("wu2012glore"),), plain,
        adapt=linear, sized=sized, rounds=rounds, cycle=rounds, asks=(ONE_LABEL,),
        shares=("first and second derivatives of its loss, summed over its rows",),
        fits="a linear model", unfit=unfit,
    )  # fmt: skip


def linear(blueprint: Blueprint) -> nn.Module:
    """Return the linear network of the study's inputs and outputs, with all weights 0."""
    network = logistic((math.prod(blueprint.shape),), blueprint.outputs)
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    return network
