"""FedOMG: gradient matching between domains, on the server."""

from __future__ import annotations

from typing import Literal

from unseen.combine import FedOMG, Mean
from unseen.core.exchange import Method, Reference
from unseen.methods.base import federated
from unseen.methods.surgery import replace_rule
from unseen.recipe import Training

REFERENCE = Reference(
    "Nguyen, Nguyen, Park, Pham, Hwang. Federated Domain Generalization with Data-free On-server "
    "Matching Gradient. ICLR 2025.",
    """@inproceedings{nguyen2025fedomg,
  title     = {Federated Domain Generalization with Data-free On-server Matching Gradient},
  author    = {Nguyen, Trong-Binh and Nguyen, Minh-Duong and Park, Jinsun and Pham, Quoc-Viet and
               Hwang, Won Joo},
  booktitle = {International Conference on Learning Representations},
  year      = {2025}
}""",
)


def fedomg(
    training: Training,
    *,
    c: float = 0.5,
    eta: float = 1.0,
    solver: Literal["exact", "released"] = "exact",
    weights: Literal["uniform", "examples"] = "uniform",
) -> Method:
    """Step near the mean update, towards the client that it serves worst.

        x ← x + η Σ_i (p_i + λ w_i) g_i / (1 + c²),   λ = c ‖ḡ‖ / ‖Σ_i w_i g_i‖

    w minimises <Σ_i w_i g_i, ḡ> + c ‖ḡ‖ ‖Σ_i w_i g_i‖ over the simplex, ḡ = Σ_i p_i g_i: CAGrad
    on updates. c: how far from ḡ, as a share of its length; 0 is FedAvg with uniform weights.
    eta: η; 0.5 in the released commands, 0.05 to 0.5 in their searches; 1 here, for a step about
    as long as FedAvg's. solver: `"exact"`, or the 20 steps of SGD as `"released"`, see
    `unseen.combine.FedOMG`. weights: of ḡ; the paper's are uniform.

    Departs from the released code in that updates are not multiplied by p_i before they are
    averaged (its step is K times shorter for it), and in that BatchNorm statistics are averaged:
    there they never leave the clients.
    """
    return federated("fedomg", training, FedOMG(c, eta, solver, Mean(weights)), REFERENCE)


def add_fedomg(
    method: Method,
    *,
    c: float = 0.5,
    eta: float = 1.0,
    solver: Literal["exact", "released"] = "exact",
) -> Method:
    """FedOMG on the server of any method that averages; its weights become the prior."""
    return replace_rule(method, "fedomg", REFERENCE, lambda prior: FedOMG(c, eta, solver, prior))
