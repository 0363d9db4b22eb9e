"""MOON: contrast between models at the client."""

from typing import Any

from unseen.core import ONE_LABEL, Method
from unseen.methods.base import (
    asking,
    cited,
    incompatible,
    local_training,
    with_gradient,
    with_local,
)
from unseen.methods.gradient.moon import ModelContrast, Remember
from unseen.methods.local.train import FullGradient
from unseen.methods.options import options_from


@options_from(ModelContrast)
def add_moon(method: Method, **options: Any) -> Method:
    """Draw features to the received model's, away from the client's own last ones.

        F(w) + μ mean_n −log(e^{s(z, z_x)/τ} / (e^{s(z, z_x)/τ} + e^{s(z, z_k)/τ}))

    z: what enters the head, of the model in training; z_x: of the received model; z_k: of the
    client's model after its last training, until which the term is 0; s: the cosine.

    Departs from:
        the paper in that there is no projection head between features and head: the study's network
        stays as it is.
    """
    if cited("li2021moon") in method.references:
        raise incompatible(method, "moon", "contrasts models already.", "Set its own mu.")
    if isinstance(local_training(method), FullGradient):
        why = "takes its gradient at the received model, and no client has one of its own."
        raise incompatible(method, "moon", why)
    changed = with_gradient(method, lambda g: ModelContrast(g, **options), "li2021moon")
    return asking(with_local(changed, Remember), ONE_LABEL)
