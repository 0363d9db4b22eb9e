"""Penalties inside each client: spectral decoupling, and IRM with clients as environments."""

from typing import Any

from unseen.core import ONE_LABEL, Method
from unseen.methods.base import asking, federated, with_gradient
from unseen.methods.combine import Mean, Weights
from unseen.methods.gradient.penalties import Decoupled, InvariantRisk
from unseen.methods.options import options_from
from unseen.methods.recipe import Training


@options_from(Decoupled)
def sd(training: Training, *, weights: Weights = "examples", **options: Any) -> Method:
    """Run FedAvg whose clients keep their logits small: F_i(w) + (λ/2) mean_n ‖f(x_n)‖².

    A sum over examples, so that the clients' means are the pooled penalty's.

    Args:
        training: The recipe.
        weights: see `fedavg`.
        **options: The other options of the page.

    Departs from:
        the paper in that the penalty takes a pass of its own, in which Dropout draws again.
    """
    return add_sd(federated("sd", training, Mean(weights), "pezeshki2021gradient"), **options)


@options_from(Decoupled)
def add_sd(method: Method, **options: Any) -> Method:
    """Add spectral decoupling to any method's local training: + (λ/2) mean_n ‖f(x_n)‖²."""
    changed = with_gradient(method, lambda g: Decoupled(g, **options), "pezeshki2021gradient")
    return asking(changed, "classes")


@options_from(InvariantRisk)
def irm(training: Training, *, weights: Weights = "uniform", **options: Any) -> Method:
    """Run FedAvg with IRM's penalty, the clients being its environments.

        Σ_i p_i (F_i(w) + λ D_i(w)²),   D_i = ∂/∂s of its loss of the outputs s f(x) at s = 1

    A representation is invariant if no client would rather have its outputs scaled. IRMv1's
    objective is a sum over environments, so that each client has its own part of it and nothing
    more is sent: `fedsgd+irm` descends exactly the pooled objective.

    Args:
        training: The recipe.
        weights: p; the paper's are uniform.
        **options: The other options of the page.

    Departs from:
        the paper in that clients train alone between two averages, except in `fedsgd+irm`; that its
        sum over environments is a mean here, and a λ above 1 divides neither loss nor penalty; and
        that the penalty takes a pass of its own, in which Dropout draws again.
    """
    return add_irm(federated("irm", training, Mean(weights), "arjovsky2019irm"), **options)


@options_from(InvariantRisk)
def add_irm(method: Method, **options: Any) -> Method:
    """Add IRM's penalty to any method's local training: + λ D², see `irm`."""
    changed = with_gradient(method, lambda g: InvariantRisk(g, **options), "arjovsky2019irm")
    return asking(changed, ONE_LABEL)
