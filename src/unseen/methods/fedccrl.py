"""FedCCRL: other clients' styles, and representations and predictions that agree across them."""

from dataclasses import replace
from typing import Annotated, Any

from unseen.core import Method
from unseen.core.losses import SquaredError
from unseen.errors import UnseenError
from unseen.methods.base import asking, federated
from unseen.methods.combine import Mean, Weights
from unseen.methods.gradient import CrossClient
from unseen.methods.gradient.contrast import statistics
from unseen.methods.images.augmix import AugMix
from unseen.methods.images.bank import Bank, with_bank
from unseen.methods.local.train import Train
from unseen.methods.options import options_from
from unseen.methods.recipe import Training
from unseen.ranges import Natural, uniform


@options_from(CrossClient)
def fedccrl(
    training: Training,
    *,
    augment: bool = True,
    severity: Annotated[float, uniform(1, 5)] = 3.0,
    bank: int = 64,
    refresh: Natural = 0,
    weights: Weights = "examples",
    **options: Any,
) -> Method:
    """Learn each image in three views, two of them in other clients' styles, that must agree.

        L = mean_v CE(x_v) + contrast · SupCon(z_0, z_1, z_2) + consistency · JS(p_0, p_1, p_2)
        x_v = AugMix(σ̃ (x − μ) / σ + μ̃),   (μ̃, σ̃) = (1 − λ) (μ, σ) + λ (μ', σ'),   v = 1, 2

    x_0 = x; μ, σ: mean and deviation of each channel over the image's pixels; μ', σ': those of an
    image of another client; λ ~ Beta(beta, beta) for each image; z: the head's input, at unit
    length in SupCon with this temperature; p: class probabilities.

    Args:
        training: The recipe.
        augment: whether AugMix is a part of the views.
        severity: of AugMix, see `unseen.methods.images.augmix.AugMix`.
        bank: images per client whose statistics are sent, two numbers per channel each. The paper
            sends those of a tenth of the images; here all clients send equally many, so that none
            is drawn from more often.
        refresh: rounds between two such exchanges; 0, once before round 0, shares least; the
            released code sends a fresh sample every round (1).
        weights: see `fedavg`.
        **options: The other options of the page.

    Note:
        The three cross-entropies enter by their mean, so that they do not change the learning rate;
        contrast and consistency add to it what their gradients are.

        Without transfer and without augment, the two ablations, there is only x, and no agreement
        to ask for: that is FedAvg.

    Departs from:
        the released code, which sums the three cross-entropies (three times the rate under SGD),
        averages SupCon over the pairs (x, x_1) and (x, x_2) with each anchor among its own
        positives, and sets the consistency to 0.1: here SupCon is that of Khosla et al. over all
        three views. AugMix departs from that of its library as its page says; images are clipped
        before it, not wrapped around at 8 bits.
    """
    if isinstance(training.loss, SquaredError):
        raise UnseenError("fedccrl is for classes: it compares class probabilities.")
    source = Bank("fedccrl", statistics, bank)
    mix = AugMix(severity) if augment else None
    local = Train(CrossClient(training.loss, source, augment=mix, **options), training)
    method = federated("fedccrl", training, Mean(weights), "wang2024fedccrl", local)
    often = "once" if not refresh else f"every {refresh} rounds"
    shares = f"mean and deviation of the pixels of {bank} training images, {often}, to every client"
    method = replace(with_bank(method, source, refresh), shares=(shares,))
    return asking(method, "images", "classes")
