"""FedCurv: FedAvg whose clients remember what the curvature at the others' models was."""

from dataclasses import replace
from typing import Any

from unseen.core import Method, Replace, Slot
from unseen.methods.base import federated, trained, with_exchange, zeros
from unseen.methods.combine import Mean, Sum
from unseen.methods.gradient import Backprop, Curvature
from unseen.methods.gradient.fedcurv import ANCHOR, FISHER, WithFisher
from unseen.methods.local.train import Train
from unseen.methods.options import options_from, picked
from unseen.methods.recipe import Training


@options_from(Curvature, WithFisher, without=("batch_size", "own"))
def fedcurv(training: Training, **options: Any) -> Method:
    """Run FedAvg whose clients are held where the other clients' models have high curvature.

        min_w F_i(w) + λ Σ_{j≠i} (w − w_j)ᵀ diag(F_j) (w − w_j)

    w_j: what client j had trained in the round before; F_j: the diagonal of its Fisher
    information there. Each client sends w_j, F_j and F_j w_j; the server returns the unweighted
    sums u and v of the last two, from which a client takes its own part off, so that the
    penalty's gradient is 2λ(u ∘ w − v). Round 0 is FedAvg.

    Note:
        FedILC's row "FedCurv" is not this method but `fishr`.

    Departs from:
        the paper in F_j, which by default is of batches, not of examples; and with a sample of the
        clients, since the sums are then of those who took part in the round before, where it has
        all.
    """
    trains = Train(Curvature(Backprop(training.loss), **picked(Curvature, options)), training)
    fisher = picked(WithFisher, options)
    local = WithFisher(trains, training.loss, batch_size=training.batch_size, **fisher)
    method = federated("fedcurv", training, Mean("examples"), "shoham2019fedcurv", local)
    exchange = trained(method)
    total = Slot(Sum(), apply=Replace(), sends="value", start=zeros)
    slots = {**exchange.slots, FISHER: total, ANCHOR: total}
    shares = ("the diagonal of the Fisher information", "its product with the trained model")
    return replace(with_exchange(method, replace(exchange, slots=slots)), shares=shares)
