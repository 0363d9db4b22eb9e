"""RandConv: training on images under random convolutions."""

from typing import Any

from unseen.core import Method
from unseen.methods.base import asking, federated, with_gradient
from unseen.methods.combine import Mean, Weights
from unseen.methods.gradient.randconv import RandomConvolutions
from unseen.methods.options import options_from
from unseen.methods.recipe import Training


@options_from(RandomConvolutions)
def randconv(training: Training, *, weights: Weights = "examples", **options: Any) -> Method:
    """Run FedAvg whose clients train on randomly convolved images, predicted alike in three views.

        ℓ(f(G₁(x)), y) + λ Σ_j KL(p(G_j(x)) ‖ p̄),   G(x) = α x + (1 − α) x ∗ Θ

    Args:
        training: The recipe.
        weights: see `fedavg`.
        **options: The other options of the page.

    Departs from:
        the paper in λ, which is 10 there, and in that the second term takes passes of its own, in
        which Dropout draws again.
    """
    method = federated("randconv", training, Mean(weights), "xu2021randconv")
    return add_randconv(method, **options)


@options_from(RandomConvolutions)
def add_randconv(method: Method, **options: Any) -> Method:
    """Put random convolutions before any method's local training: see `randconv`."""
    changed = with_gradient(method, lambda g: RandomConvolutions(g, **options), "xu2021randconv")
    return asking(changed, "images", "classes")
