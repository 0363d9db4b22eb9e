"""FedProx: local training that is held near the model it received."""

from __future__ import annotations

from unseen.combine import Mean
from unseen.core.exchange import Method, Reference
from unseen.errors import Incompatible
from unseen.gradient import Backprop, Proximal
from unseen.local.train import Train
from unseen.methods.base import citing, federated, local_training, with_gradient
from unseen.recipe import Training

REFERENCE = Reference(
    "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous "
    "Networks. MLSys 2020. Eq. 2.",
    """@inproceedings{li2020fedprox,
  title     = {Federated Optimization in Heterogeneous Networks},
  author    = {Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and
               Talwalkar, Ameet and Smith, Virginia},
  booktitle = {Proceedings of Machine Learning and Systems},
  year      = {2020}
}""",
)


def fedprox(training: Training, *, mu: float = 0.1) -> Method:
    """FedAvg whose clients minimise F_i(w) + (μ/2) ‖w − x‖².

    x: the model received. mu: μ ≥ 0; 0 is FedAvg. PPDG's experiments use 0.1 (FMoW 0.01), GA's
    0.1. Departs from GA's released code, where the term is added into the momentum buffer and so
    piles up, and from codes that sum unsquared norms per tensor.
    """
    local = Train(Proximal(Backprop(training.loss), mu), training)
    return federated("fedprox", training, Mean("examples"), REFERENCE, local)


def add_fedprox(method: Method, *, mu: float = 0.1) -> Method:
    """Hold any method's local training near the received model: + (μ/2) ‖w − x‖²."""
    if REFERENCE in method.references:
        raise Incompatible(
            f"{method.name}+fedprox", f"{method.name} has its proximal term already; set its mu."
        )
    if not isinstance(local_training(method), Train):
        raise Incompatible(
            f"{method.name}+fedprox",
            f"{method.name} takes its gradient at the received "
            "model, where the proximal term is 0.",
        )
    return citing(with_gradient(method, lambda gradient: Proximal(gradient, mu)), REFERENCE)
