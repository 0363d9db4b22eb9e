"""COPA: the body is averaged, the heads are collected and all of them travel."""

from dataclasses import replace
from functools import partial
from typing import Literal

from unseen.core import ONE_LABEL, Method, Put, Slot
from unseen.core.losses import SquaredError
from unseen.methods.base import changed, federated, trained, with_exchange
from unseen.methods.combine import Collect, Mean, Weights
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.copa import HEADS, Collaboration, Ensemble, OwnHead, first_head
from unseen.methods.images.norms import halves, hybrid
from unseen.methods.local.train import Train
from unseen.methods.recipe import Training

ADAPT = {"hybrid": changed(hybrid), "half": changed(halves)}


def copa(
    training: Training,
    *,
    scale: Literal["mean", "sum"] = "mean",
    ensemble: Literal["probabilities", "logits"] = "probabilities",
    norm: Literal["as-is", "hybrid", "half"] = "as-is",
    weights: Weights = "examples",
    head: str | None = None,
) -> Method:
    """Average the body, keep every client's head, and train each body under all of them.

        client k:   min over F of c Σ_j ℓ(h_j(F(x)), y),   min over h_k of ℓ(h_k(F(x)), y)
        server:     F ← Σ_k p_k F_k,   heads ← (h_1, ..., h_N)
        prediction: (1/N) Σ_j softmax(h_j(F(x))),  for numbers (1/N) Σ_j h_j(F(x))

    F: the body, all but the head; h_j: the head of client j as last sent, frozen at the others.

    Args:
        training: The recipe.
        scale: c = 1/N (`"mean"`), so that body and head take steps of FedAvg's length, or 1
            (`"sum"`), which multiplies the learning rate of the body by up to N under SGD (exactly
            N in round 0, where all heads are equal) and wants one about N times smaller.
        ensemble: the mean of probabilities, or of logits before the softmax.
        norm: `"hybrid"` puts `unseen.methods.images.norms.Hybrid`, BN and IN mixed by a learnt gate
            for each channel, instead of BatchNorm; `"half"` IN for half the channels, as in
            IBN-Net.
        weights: p_k.
        head: the layer, by default the last linear one.

    Note:
        No released code was found, and of the paper only the abstract was available: feature
        extractors are averaged, classifiers assembled into an ensemble, "hybrid batch-instance
        normalization" and "collaboration of frozen classifiers". The rest is our reading: the mean
        over heads, where the one reimplementation that we know (in MarsFL, which averages no
        predictions) has the sum; probabilities, the usual ensemble, since the heads' logits need
        not be of one scale.

        A rule put on COPA, as in `copa+ppdg`, is on the body; with `copa+ga` a gap is the risk of
        the averaged body less that of the client's own, both under the client's own head. Such an
        addition finds the received body under the client's head wherever it looks at the received
        model.

        All heads start as one and go to every client, so traffic grows with N; with a sample of the
        clients those who stay away keep their head, also one that was never trained. One client
        alone is plain local training. The loss that is reported is the mean over heads, or the sum.

    Departs from:
        the abstract in that normalisation stays as it is by default, since PPDG's rows of COPA do
        not say, and since every method then trains the same network; `norm="hybrid"` has both
        kinds.
    """
    loss = Collaboration(training.loss, scale, head)
    local = OwnHead(Train(Backprop(loss), training), head)
    method = federated("copa", training, Mean(weights), "wu2021copa", local)
    exchange = trained(method)
    heads = Slot(Collect(), apply=Put(), sends="value", start=partial(first_head, head))
    return replace(
        with_exchange(method, replace(exchange, slots={**exchange.slots, HEADS: heads})),
        predict=Ensemble(ensemble, isinstance(training.loss, SquaredError), head),
        adapt=ADAPT.get(norm),
        shares=("every client's own head, with all other clients",),
        asks=("batchnorm", ONE_LABEL) if norm in ADAPT else (ONE_LABEL,),
    )
