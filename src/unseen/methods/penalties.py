"""Penalties inside each client: spectral decoupling, and IRM with clients as environments."""

from typing import Any

from unseen.core import ONE_LABEL, Method
from unseen.methods.base import asking, with_gradient
from unseen.methods.gradient.penalties import Decoupled, InvariantRisk
from unseen.methods.options import options_from


@options_from(Decoupled)
def add_sd(method: Method, **options: Any) -> Method:
    """Keep logits small: minimise F_i(w) + (λ/2) mean_n ‖f(x_n)‖².

    A sum over examples, so that the clients' means are the pooled penalty's.

    Departs from:
        the paper in that the penalty takes a pass of its own, in which Dropout draws again.
    """
    changed = with_gradient(method, lambda g: Decoupled(g, **options), "pezeshki2021gradient")
    return asking(changed, "classes")


@options_from(InvariantRisk)
def add_irm(method: Method, **options: Any) -> Method:
    """Add IRM's penalty, the clients being its environments.

        Σ_i p_i (F_i(w) + λ D_i(w)²),   D_i = ∂/∂s of its loss of the outputs s f(x) at s = 1

    A representation is invariant if no client would rather have its outputs scaled. IRMv1's
    objective is a sum over environments, so that each client has its own part of it and nothing
    more is sent: `fedsgd+irm` descends exactly the pooled objective.

    Departs from:
        the paper in that clients train alone between two averages, except in `fedsgd+irm`; that its
        sum over environments is a mean here, and a λ above 1 divides neither loss nor penalty; and
        that the penalty takes a pass of its own, in which Dropout draws again.
    """
    changed = with_gradient(method, lambda g: InvariantRisk(g, **options), "arjovsky2019irm")
    return asking(changed, ONE_LABEL)
