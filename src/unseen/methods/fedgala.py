"""FedGaLA: alignment of gradients, locally with the last global update, globally with the mean."""

from typing import Any

from unseen.core import Method
from unseen.methods.base import federated
from unseen.methods.combine import GlobalAlignment
from unseen.methods.gradient import Backprop, LocalAlignment
from unseen.methods.gradient.fedgala import Remember
from unseen.methods.local.train import Train
from unseen.methods.new_rule import replace_rule
from unseen.methods.options import options_from, picked
from unseen.methods.recipe import Training


@options_from(LocalAlignment, GlobalAlignment)
def fedgala(training: Training, **options: Any) -> Method:
    """Drop local gradients that would undo the last global update; weigh updates by agreement.

        client:  g_l ← 0 where cos(−g_l, Δ_l) < threshold,   for each layer l
        server:  x_l ← x_l + Σ_i a_il u_il,   a_il ∝ p_i (1 + cos(u_il, Σ_j a_jl u_jl))/2

    Δ: what the global model moved since this client last took part; it costs no message, since
    the client remembers what it received.

    Departs from:
        the paper, which is unsupervised: its clients learn features without labels (SimCLR, BYOL,
        ...) and a linear layer follows on labelled data of the target; here clients minimise the
        training's loss on their labels, so its numbers do not compare.
    """
    aligned = LocalAlignment(Backprop(training.loss), **picked(LocalAlignment, options))
    rule = GlobalAlignment(**picked(GlobalAlignment, options))
    return federated(
        "fedgala", training, rule, "pourpanah2025fedgala", Remember(Train(aligned, training))
    )


@options_from(GlobalAlignment, without=("prior",))
def add_fedgala(method: Method, **options: Any) -> Method:
    """Put FedGaLA's server on any method that averages: layer by layer, weights by agreement.

    Note:
        The clients stay as they are; the method's weights become the prior.
    """
    return replace_rule(method, "fedgala", "pourpanah2025fedgala", GlobalAlignment, options)
