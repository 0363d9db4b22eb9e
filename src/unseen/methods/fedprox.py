"""FedProx: local training that is held near the model it received."""

from typing import Any

from unseen.core import Method
from unseen.methods.base import cited, federated, incompatible, local_training, with_gradient
from unseen.methods.combine import Mean, Weights
from unseen.methods.gradient import Backprop, Proximal
from unseen.methods.local.train import FullGradient, Train
from unseen.methods.options import options_from
from unseen.methods.recipe import Training


@options_from(Proximal)
def fedprox(training: Training, *, weights: Weights = "examples", **options: Any) -> Method:
    """Run FedAvg whose clients minimise F_i(w) + (μ/2) ‖w − x‖², x being the model received.

    Args:
        training: The recipe.
        weights: of the clients in the mean, as in `fedavg`; the paper's are equal (see below).
        **options: The other options of the page.

    Departs from:
        the paper in that all clients take part and are weighed by examples, where it samples them
        by p_k and weighs all equally (`weights="uniform"`, without the sampling); GA's released
        code, where the term is added into the momentum buffer and so piles up; and codes that sum
        unsquared norms per tensor.
    """
    local = Train(Proximal(Backprop(training.loss), **options), training)
    return federated("fedprox", training, Mean(weights), "li2020fedprox", local)


@options_from(Proximal)
def add_fedprox(method: Method, **options: Any) -> Method:
    """Hold any method's local training near the received model: + (μ/2) ‖w − x‖²."""
    if cited("li2020fedprox") in method.references:
        raise incompatible(method, "fedprox", "has its proximal term already.", "Set its mu.")
    if isinstance(local_training(method), FullGradient):
        why = "takes its gradient at the received model, where the proximal term is 0."
        raise incompatible(method, "fedprox", why)
    return with_gradient(method, lambda g: Proximal(g, **options), "li2020fedprox")
