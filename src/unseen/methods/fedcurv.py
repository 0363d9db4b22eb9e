"""FedCurv: FedAvg whose clients remember what the curvature at the others' models was."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from unseen.combine import Mean, Sum
from unseen.core.apply import Replace
from unseen.core.exchange import Method, Reference, Slot
from unseen.core.vector import Model
from unseen.gradient import Backprop, Curvature
from unseen.gradient.fedcurv import ANCHOR, FISHER, WithFisher
from unseen.local.train import Train
from unseen.methods.base import federated, trained, with_exchange
from unseen.recipe import Training

REFERENCE = Reference(
    "Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak. Overcoming Forgetting in "
    "Federated Learning on Non-IID Data. NeurIPS workshop 2019.",
    """@inproceedings{shoham2019fedcurv,
  title     = {Overcoming Forgetting in Federated Learning on Non-{IID} Data},
  author    = {Shoham, Neta and Avidor, Tomer and Keren, Aviv and Israel, Nadav and
               Benditkis, Daniel and Mor-Yosef, Liron and Zeitak, Itai},
  booktitle = {NeurIPS Workshop on Federated Learning for Data Privacy and Confidentiality},
  year      = {2019}
}""",
)


def fedcurv(
    training: Training,
    *,
    lam: float = 1.0,
    fisher: Literal["batch", "example"] = "batch",
    chunk: int | None = None,
) -> Method:
    """FedAvg whose clients are held where the other clients' models have high curvature.

        min_w F_i(w) + λ Σ_{j≠i} (w − w_j)ᵀ diag(F_j) (w − w_j)

    w_j: what client j had trained in the round before; F_j: the diagonal of its Fisher
    information there. Each client sends w_j, F_j and F_j w_j; the server returns the unweighted
    sums u and v of the last two, from which a client takes its own part off, so that the
    penalty's gradient is 2λ(u ∘ w − v). Round 0 is FedAvg.

    lam: λ ≥ 0; 0 is FedAvg; which value suits is a matter of the data and of the Fisher's size.
    The penalty is added to the loss and its curvature is 2λu, so that SGD with rate η is stable
    only where η λ max u stays below 1 (less with momentum): with λ = 1 and η = 0.1 it diverges on
    digits. fisher: `"batch"`, the mean over mini-batches of the squared gradient of a batch, which
    is what OpenFL takes; `"example"`, of the squared gradients of single examples, which is the
    definition and up to batch_size times larger. chunk: by example in nets that are not all linear
    layers, how many gradients to hold at a time.

    FedILC's row "FedCurv" is not this method but `fishr`. With a sample of the clients the sums
    are of those who took part in the round before; the paper has all of them.
    """
    curvature = Curvature(Backprop(training.loss), lam)
    local = WithFisher(
        Train(curvature, training), training.loss, fisher, training.batch_size, chunk
    )
    method = federated("fedcurv", training, Mean("examples"), REFERENCE, local)
    exchange = trained(method)
    total = Slot(Sum(), apply=Replace(), sends="value", start=zeros)
    slots = {**exchange.slots, FISHER: total, ANCHOR: total}
    shares = ("the diagonal of the Fisher information", "its product with the trained model")
    return replace(with_exchange(method, replace(exchange, slots=slots)), shares=shares)


def zeros(model: Model) -> Tensor:
    """The sums before round 0."""
    return torch.zeros_like(model.vector)
