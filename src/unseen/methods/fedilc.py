"""FedILC's weighted geometric mean across clients (the row "Geometric" of its tables)."""

from __future__ import annotations

from typing import Literal

from unseen.apply import Add, Descend
from unseen.combine import WeightedGeometricMean
from unseen.exchange import Method, Reference
from unseen.gradient import Backprop
from unseen.local import FullGradient
from unseen.methods.base import federated
from unseen.methods.surgery import replace_rule
from unseen.training import Training

REFERENCE = Reference(
    "Zhu, Ezzine, Liu, Bengio. FedILC: Weighted Geometric Mean and Invariant Gradient Covariance "
    "for Federated Learning on Non-IID Data. 2022. §3.1.",
    """@article{zhu2022fedilc,
  title   = {{FedILC}: Weighted Geometric Mean and Invariant Gradient Covariance for Federated
             Learning on Non-{IID} Data},
  author  = {Zhu, Mike He and Ezzine, L{\\'e}na N{\\'e}hale and Liu, Dianbo and Bengio, Yoshua},
  journal = {arXiv preprint arXiv:2205.09305},
  year    = {2022}
}""",
)


def geometric(
    training: Training,
    *,
    zeros: Literal["skip", "paper", "released"] = "skip",
    agreement: float = 0.0,
) -> Method:
    """FedSGD whose server takes the weighted geometric mean of the clients' gradients.

        (E₊/E) (Π_{g>0} g)^{1/E₊} − (E₋/E) (Π_{g<0} |g|)^{1/E₋}

    zeros: what exact zeros count as, see `unseen.combine.WeightedGeometricMean`. agreement: the
    released code's sign threshold τ, 0 in all its commands. Each client sends its full-batch
    gradient and the training's optimiser runs on the server, as released.
    """
    apply = Descend(training.optimiser) if training.server == Add() else training.server
    rule = WeightedGeometricMean(zeros, agreement)
    local = FullGradient(Backprop(training.loss))
    return federated("geometric", training, rule, REFERENCE, local, apply)


def add_geometric(
    method: Method,
    *,
    zeros: Literal["skip", "paper", "released"] = "skip",
    agreement: float = 0.0,
) -> Method:
    """The weighted geometric mean on the server of any method that averages."""
    return replace_rule(
        method,
        "geometric",
        REFERENCE,
        lambda prior: WeightedGeometricMean(zeros, agreement, prior),
    )
