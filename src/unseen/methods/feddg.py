"""FedDG: episodes between a client's own images and their likes in other clients' styles."""

from dataclasses import replace
from typing import Annotated, Any

from unseen.core import MASKS, Method
from unseen.methods.base import asking, federated
from unseen.methods.combine import Mean, Weights
from unseen.methods.gradient import Backprop, Episodic
from unseen.methods.images.bank import Bank, with_bank
from unseen.methods.images.frequency import Window
from unseen.methods.local.train import Train
from unseen.methods.options import options_from
from unseen.methods.recipe import Training
from unseen.ranges import Range, uniform


@options_from(Episodic, without=("bound",))
def feddg(
    training: Training,
    *,
    L: Annotated[float, Range(0, 0.5), uniform(0, 0.3)] = 0.0,
    bank: int = 16,
    weights: Weights = "examples",
    **options: Any,
) -> Method:
    """Take steps that serve a client's images and also those in another client's style (ELCFS).

        w' = w − η clamp(∇F(w; x), ±100),      w ← w − lr · c [∇F(w; x) + ∇F(w'; x̃)]
        |F(x̃)| = (1 − λ) |F(x)| + λ A inside the window,   arg F(x̃) = arg F(x)

    A: the amplitude of an image of another client, drawn for each image.

    Args:
        training: The recipe.
        L: the window, frequencies of at most ⌊L · min(H, W)⌋; 0 is the mean of each channel alone,
            which is what the released training code passes, although its demonstration shows 0.003
            (the DC coefficient too, below 334 pixels); try 0.1 for small images.
        bank: images per client whose amplitudes are sent, once, before round 0; the released code
            hands on an eighth of them.
        weights: see `fedavg`; the released ones are by examples, rounded to two decimals.
        **options: The other options of the page.

    Note:
        x̃ is clipped to the range of the pixels. Amplitudes outside the window, which nobody reads,
        are not sent.

        CSAC's row FedDG is the method without what it has for segmentation, the boundary term,
        which `boundary` adds on masks.

    Departs from:
        the released code in c and in λ, see `scale` and `interpolation`; in that every image has
        one style per step, of any other client; in that statistics of BatchNorm are averaged like
        the weights, and come from the pass on x alone; and in B, which is left out by default: an
        object is the pixels of one class, where its classes are nested; a class that an image lacks
        is left out there.
    """
    source = Bank("feddg", Window(L), bank)
    local = Train(Episodic(Backprop(training.loss), source, **options), training)
    method = federated("feddg", training, Mean(weights), "liu2021feddg", local)
    shares = f"the amplitudes of {bank} training images in the window, once, to every client"
    needs = ("images", MASKS) if options["boundary"] else ("images",)
    return asking(replace(with_bank(method, source), shares=(shares,)), *needs)
