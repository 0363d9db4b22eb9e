"""Anchor regression with sites as anchors: a penalty on each site's mean residual."""

from __future__ import annotations

from typing import Any

from unseen.core import Method
from unseen.gradient.anchor import Anchored
from unseen.methods.base import cited, citing, with_gradient
from unseen.methods.options import options_from


@options_from(Anchored)
def add_anchor(method: Method, **options: Any) -> Method:
    """Draw the mean residual of every site to 0: + λ ‖mean_i (p(x_i) − y_i)‖².

    Errors that a site makes on the whole are what a new site is likely to see again. The penalty
    is computed where the data are; nothing more is sent.
    """
    held = with_gradient(method, lambda gradient: Anchored(gradient, **options))
    return citing(held, cited("rothenhausler2021anchor"))
