"""mixup: training on convex combinations of a site's examples."""

from typing import Any

from unseen.core import Method
from unseen.methods.base import with_gradient
from unseen.methods.gradient.mixup import Mixup
from unseen.methods.options import options_from


@options_from(Mixup)
def add_mixup(method: Method, **options: Any) -> Method:
    """Train any method's clients on mixed pairs of their own examples.

        x̃ = λ x + (1 − λ) x_π,   loss λ ℓ(f(x̃), y) + (1 − λ) ℓ(f(x̃), y_π),   λ ~ Beta(α, α)

    Each step takes two of the method's gradients.

    Departs from:
        the released code, which passes a mixed batch once: the second gradient takes a pass of its
        own, in which Dropout draws again and BatchNorm counts the batch once more.
    """
    return with_gradient(method, lambda g: Mixup(g, **options), "zhang2018mixup")
