"""FedADG: features aligned to a generated distribution that all clients share."""

from dataclasses import replace
from functools import partial
from typing import Any

from unseen.core import Method
from unseen.data.networks.generator import with_generator
from unseen.methods.base import (
    asking,
    changed_further,
    cited,
    incompatible,
    local_training,
    with_gradient,
    with_local,
)
from unseen.methods.gradient import Backprop, Gradient
from unseen.methods.gradient.adversary import Adversarial, WithDiscriminator
from unseen.methods.gradient.feddyn import Dynamic
from unseen.methods.gradient.proximal import Proximal
from unseen.methods.local.scaffold import Controlled
from unseen.methods.local.train import FullGradient, Train
from unseen.methods.options import options_from
from unseen.methods.recipe import Training
from unseen.ranges import Count

SOURCE = "zhang2021fedadg"


@options_from(Adversarial, without=("training",))
def add_fedadg(method: Method, *, noise: Count = 16, width: Count = 64, **options: Any) -> Method:
    """Align all clients' features, class by class, to a distribution that a generator makes.

        D_k:   min  mean [(1 − D_k(G(e, y), y))² + D_k(f(x), y)²]
        f, h:  min  α ℓ(h(f(x)), y) + (1 − α) mean (1 − D_k(f(x), y))²
        G:     min  mean D_k(G(e, y), y)²

    f: the features that enter the head h; e: uniform noise. The discriminator D_k never leaves its
    client; the generator G is averaged with the model, so that all clients align to one reference,
    which moves towards their features as these move towards it.

    Args:
        method: The method that is changed.
        noise: numbers of noise that enter G; 2,048 as released.
        width: of G's hidden layer; 4,096 as released. Generator and discriminator are small here,
            as the networks of small images are: the generator travels with the model.
        **options: The other options of the page.

    Note:
        Each step moves D_k first, then all others against it, as released. alpha=1 is FedAvg. The
        generator begins with the same weights whatever the seed, and so does every D_k.

    Departs from:
        the released code in that one pass gives the features of all three losses, where it takes
        those of D_k in evaluation mode; that D_k steps without momentum, that R stays as it is,
        where it trains with D_k, and labels are 1, where they are 0.7 in h. Labels are smoothed as
        the recipe says, by 0.1 there; no client keeps its best epoch by validation.
    """
    if cited(SOURCE) in method.references:
        raise incompatible(method, "fedadg", "aligns its features already.", "Set its own alpha.")
    local = local_training(method)
    if isinstance(local, FullGradient):
        why = "takes one gradient a round, and a discriminator learns between a client's steps."
        raise incompatible(method, "fedadg", why)
    if not isinstance(local, Train):
        why = "does not descend a gradient that could be changed."
        raise incompatible(method, "fedadg", why, "Put it on a method that trains a network.")
    return aligned(method, local.training, noise, width, options)


def aligned(
    method: Method, training: Training, noise: int, width: int, options: dict[str, Any]
) -> Method:
    """Return the method with discriminators at its clients, and a generator in its network.

    Terms of the parameters alone, such as a proximal one, stay around: α weighs the loss.
    """
    gradient = Adversarial(Backprop(training.loss), training, **options)

    def inside(loss: Any) -> Gradient:
        term = isinstance(loss, Proximal | Dynamic | Controlled)
        around: Gradient = loss.around(inside(loss.inner)) if term else gradient.around(loss)
        return around

    changed = with_gradient(method, inside, SOURCE)
    changed = with_local(changed, lambda local: WithDiscriminator(local, gradient))
    changed = changed_further(changed, partial(with_generator, noise=noise, width=width))
    shares = (*changed.shares, "a generator of features, averaged with the model")
    return asking(replace(changed, shares=shares), "classes")
