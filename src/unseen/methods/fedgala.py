"""FedGaLA: alignment of gradients, locally with the last global update, globally with the mean."""

from __future__ import annotations

from typing import Literal

from unseen.combine import GlobalAlignment, Mean
from unseen.core.exchange import Method, Reference
from unseen.gradient import Backprop, LocalAlignment
from unseen.gradient.fedgala import Remember
from unseen.local.train import Train
from unseen.methods.base import federated
from unseen.methods.surgery import replace_rule
from unseen.recipe import Training

REFERENCE = Reference(
    "Pourpanah, Molahasani, Soltany, Greenspan, Etemad. Federated Unsupervised Domain "
    "Generalization using Global and Local Alignment of Gradients. AAAI 2025.",
    """@inproceedings{pourpanah2025fedgala,
  title     = {Federated Unsupervised Domain Generalization using Global and Local Alignment of
               Gradients},
  author    = {Pourpanah, Farhad and Molahasani, Mahdiyar and Soltany, Milad and
               Greenspan, Michael and Etemad, Ali},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year      = {2025}
}""",
)


def fedgala(
    training: Training,
    *,
    threshold: float = 0.0,
    compare: Literal["descent", "released"] = "descent",
    iterations: int = 3,
    blocks: Literal["tensor", "module", "whole"] = "tensor",
    weights: Literal["uniform", "examples"] = "uniform",
) -> Method:
    """Drop local gradients that would undo the last global update; weigh updates by agreement.

        client:  g_l ← 0 where cos(−g_l, Δ_l) < threshold,   for each layer l
        server:  x_l ← x_l + Σ_i a_il u_il,   a_il ∝ p_i (1 + cos(u_il, Σ_j a_jl u_jl))/2

    Δ: what the global model moved since this client last took part; it costs no message, since
    the client remembers what it received. threshold: 0 in the authors' command (−0.1 in an
    earlier one). compare: the released code takes cos(g_l, Δ_l), which for threshold 0 drops
    the gradients that agree; see `unseen.gradient.LocalAlignment`. iterations: of the server's
    line, from a = p; 3 as released. blocks: what a layer is. weights: p.

    Departs: the paper is unsupervised, its clients learn features without labels (SimCLR, BYOL,
    ...) and a linear layer follows on labelled data of the target; here clients minimise the
    training's loss on their labels, so its numbers do not compare.
    """
    aligned = LocalAlignment(Backprop(training.loss), threshold, compare, blocks)
    rule = GlobalAlignment(iterations, blocks, Mean(weights))
    return federated("fedgala", training, rule, REFERENCE, Remember(Train(aligned, training)))


def add_fedgala(
    method: Method,
    *,
    iterations: int = 3,
    blocks: Literal["tensor", "module", "whole"] = "tensor",
) -> Method:
    """FedGaLA's server on any method that averages: layer by layer, weights by agreement.

    The clients stay as they are; the method's weights become the prior. iterations, blocks: see
    `fedgala`.
    """
    return replace_rule(
        method, "fedgala", REFERENCE, lambda prior: GlobalAlignment(iterations, blocks, prior)
    )
