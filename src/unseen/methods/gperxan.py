"""gPerXAN: batch and instance normalisation assembled, BatchNorm personal, the head a guide."""

from dataclasses import replace
from typing import Any

from unseen.core import ONE_LABEL, Method
from unseen.methods.base import changed, federated
from unseen.methods.combine import Mean, Weights
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.gperxan import Guided, OwnNorms
from unseen.methods.images.norms import assembled
from unseen.methods.local.train import Train
from unseen.methods.options import options_from, picked
from unseen.methods.recipe import Training


@options_from(Guided, OwnNorms)
def gperxan(training: Training, *, weights: Weights = "examples", **options: Any) -> Method:
    """Mix BatchNorm, which stays each client's own, with instance normalisation, which is shared.

        every norm:  s_b BN(x) + s_i IN(x),   (s_b, s_i) = softmax of two learnt scalars
        client k:    min  ℓ(h(F(x)), y) + λ ℓ(h₀(F(x)), y)
        server:      all but BatchNorm ← Σ_k p_k y_k

    F: the body; h: the head, the last linear layer; h₀: the head as received, frozen.

    Args:
        training: The recipe.
        weights: p_k; by examples as released.
        **options: The other options of the page.

    Note:
        Which BatchNorm an unseen site uses: the mean of the clients', p_k-weighted, which is what
        the released server holds too. Clients send their whole model for it. A rule such as `+ppdg`
        acts on BatchNorm's weights as on all others.

        Needs BatchNorm over images. BatchNorm over vectors stays what it is, since an instance
        there is one number per channel, and personal.

        A client trains on under its own BatchNorm (weights, biases, running statistics) from its
        last round; one that comes for the first time takes the received one.

        BN and IN each have their own affine map, as released; IN's starts as BN's.

    Departs from:
        the released code in that validation at the sources is of the mean model, where it is of
        each client's own; in `personal`; and in that its training keeps the clients' momentum from
        round to round (keep_optimiser), steps along a cosine and starts from an ImageNet network
        trained with these layers, which here are matters of the recipe.
    """
    guided = Guided(training.loss, **picked(Guided, options))
    local = OwnNorms(Train(Backprop(guided), training), **picked(OwnNorms, options))
    method = federated("gperxan", training, Mean(weights), "le2024gperxan", local)
    return replace(method, adapt=changed(assembled), asks=("batchnorm", ONE_LABEL))
