"""FedBN: every client keeps its own BatchNorm."""

from unseen.core import Method
from unseen.methods.base import asking, federated
from unseen.methods.combine import Mean, Weights
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.gperxan import OwnNorms
from unseen.methods.local.train import Train
from unseen.methods.recipe import Training


def fedbn(training: Training, *, weights: Weights = "uniform") -> Method:
    """Run FedAvg whose clients each have BatchNorm of their own: scales, shifts and statistics.

        client k:  (v_k, b_k) ← training from (v, b_k),      server:  v ← Σ_k p_k v_k

    b_k: what BatchNorm of client k has learnt; v: all else. The paper is about the clients
    themselves: it has no model for a site that did not train.

    Args:
        training: The recipe; whatever its `buffers`, statistics are the clients' own.
        weights: p; 1/K as released.

    Note:
        Our reading for an unseen site, and what is evaluated everywhere: its BatchNorm is the mean
        Σ_k p_k b_k of the clients' own, statistics too. A client that takes part for the first time
        begins from that mean. A server's own step, as in `fedbn+fedavgm`, moves the scales and
        shifts as it moves the model, so that they follow the mean. Without BatchNorm in the network
        this would be FedAvg, and the study says that it does not apply.

    Departs from:
        the paper, whose clients keep their BatchNorm to themselves and are evaluated under it: here
        they send it, for that mean.
    """
    local = OwnNorms(Train(Backprop(training.loss), training))
    return asking(federated("fedbn", training, Mean(weights), "li2021fedbn", local), "batchnorm")
