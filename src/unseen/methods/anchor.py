"""Anchor regression with sites as anchors: a penalty on each site's mean residual."""

from typing import Any

from unseen.core import ONE_LABEL, Method
from unseen.methods.base import asking, with_gradient
from unseen.methods.gradient.anchor import Anchored
from unseen.methods.options import options_from


@options_from(Anchored)
def add_anchor(method: Method, **options: Any) -> Method:
    """Draw the mean residual of every site to 0: + λ ‖mean_i (p(x_i) − y_i)‖².

    Errors that a site makes on the whole are what a new site is likely to see again. The penalty
    is computed where the data are; nothing more is sent.

    Departs from:
        the paper, whose loss is the squared error: for classes p is the predicted probability. One
        logit has one residual, whose square is half of that of the same model with two logits. The
        mean is the batch's, not the site's, so small batches add the variance of their labels. The
        penalty takes a pass of its own, in which Dropout draws again.
    """
    changed = with_gradient(method, lambda g: Anchored(g, **options), "rothenhausler2021anchor")
    return asking(changed, ONE_LABEL)
