"""FedSR: simple representations, drawn from a distribution and held to one of their label."""

from dataclasses import replace
from typing import Any

from unseen.core import Method
from unseen.data.networks.encoded import with_encoder
from unseen.methods.base import changed, federated
from unseen.methods.combine import Mean, Weights
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.fedsr import SimpleRepresentation
from unseen.methods.local.train import Train
from unseen.methods.options import options_from
from unseen.methods.recipe import Training


@options_from(SimpleRepresentation)
def fedsr(training: Training, *, weights: Weights = "uniform", **options: Any) -> Method:
    """Run FedAvg whose features are short, random, and hold little beyond the label.

        min  E ℓ(h(z), y) + α E ‖z‖² + β E KL(p(z | x) ‖ r(z | y)),   z ~ p(z | x) = N(μ(f), σ(f)²)

    f: what entered the head h before; μ, σ: a linear layer of it; r(z | y) = N(m_y, s_y²): one
    normal distribution for each class, learnt with the network and averaged with it. The second
    term bounds what z says of x, the third what it says of x beyond y.

    Args:
        training: The recipe.
        weights: p; uniform as released.
        **options: The other options of the page.

    Note:
        Predictions are by z = μ. The terms take a pass of their own, in which z is drawn again.

    Departs from:
        the released code, which takes ‖z‖ without the square, keeps r and a scale of μ and σ at
        each client, draws 20 z to predict, and begins with a random layer of 512 features, where
        here μ = f and σ = 0.1 at first.
    """
    local = Train(SimpleRepresentation(Backprop(training.loss), **options), training)
    method = federated("fedsr", training, Mean(weights), "nguyen2022fedsr", local)
    return replace(method, adapt=changed(with_encoder), asks=("classes",))
