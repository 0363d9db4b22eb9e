"""FedProx: local training that is held near the model it received."""

from typing import Any

from unseen.core import Method
from unseen.methods.base import cited, incompatible, local_training, with_gradient
from unseen.methods.gradient import Proximal
from unseen.methods.local.train import FullGradient
from unseen.methods.options import options_from


@options_from(Proximal)
def add_fedprox(method: Method, **options: Any) -> Method:
    """Hold local training near the received model: minimise F_i(w) + (μ/2) ‖w − x‖².

    Departs from:
        the paper in that all clients take part and are weighed by examples, where it samples them
        by p_k and weighs all equally (`weights="uniform"`, without the sampling); GA's released
        code, where the term is added into the momentum buffer and so piles up; and codes that sum
        unsquared norms per tensor.
    """
    if cited("li2020fedprox") in method.references:
        raise incompatible(method, "fedprox", "has its proximal term already.", "Set its mu.")
    if isinstance(local_training(method), FullGradient):
        why = "takes its gradient at the received model, where the proximal term is 0."
        raise incompatible(method, "fedprox", why)
    return with_gradient(method, lambda g: Proximal(g, **options), "li2020fedprox")
