"""MOON: contrast between models at the client."""

from typing import Any

from unseen.core import ONE_LABEL, Method
from unseen.methods.base import (
    asking,
    cited,
    federated,
    incompatible,
    local_training,
    with_gradient,
    with_local,
)
from unseen.methods.combine import Mean, Weights
from unseen.methods.gradient.moon import ModelContrast, Remember
from unseen.methods.local.train import FullGradient
from unseen.methods.options import options_from
from unseen.methods.recipe import Training


@options_from(ModelContrast)
def moon(training: Training, *, weights: Weights = "examples", **options: Any) -> Method:
    """Run FedAvg whose clients draw features to the received model's, away from their own last.

        F(w) + μ mean_n −log(e^{s(z, z_x)/τ} / (e^{s(z, z_x)/τ} + e^{s(z, z_k)/τ}))

    z: what enters the head, of the model in training; z_x: of the received model; z_k: of the
    client's model after its last training, until which the term is 0; s: the cosine.

    Args:
        training: The recipe.
        weights: see `fedavg`.
        **options: The other options of the page.

    Departs from:
        the paper in that there is no projection head between features and head: the study's network
        stays as it is.
    """
    return contrasted(federated("moon", training, Mean(weights), "li2021moon"), options)


@options_from(ModelContrast)
def add_moon(method: Method, **options: Any) -> Method:
    """Add MOON's contrast between models to any method whose clients train: see `moon`."""
    if cited("li2021moon") in method.references:
        raise incompatible(method, "moon", "contrasts models already.", "Set its own mu.")
    if isinstance(local_training(method), FullGradient):
        why = "takes its gradient at the received model, and no client has one of its own."
        raise incompatible(method, "moon", why)
    return contrasted(method, options)


def contrasted(method: Method, options: dict[str, Any]) -> Method:
    """Return the method with the contrast in its gradient, whose clients keep what they trained."""
    changed = with_gradient(method, lambda g: ModelContrast(g, **options), "li2021moon")
    return asking(with_local(changed, Remember), ONE_LABEL)
