"""RandConv: training on images under random convolutions."""

from typing import Any

from unseen.core import Method
from unseen.methods.base import asking, with_gradient
from unseen.methods.gradient.randconv import RandomConvolutions
from unseen.methods.options import options_from


@options_from(RandomConvolutions)
def add_randconv(method: Method, **options: Any) -> Method:
    """Train on randomly convolved images, predicted alike in three views.

    ℓ(f(G₁(x)), y) + λ Σ_j KL(p(G_j(x)) ‖ p̄),   G(x) = α x + (1 − α) x ∗ Θ

    Departs from:
        the paper in λ, which is 10 there, and in that the second term takes passes of its own, in
        which Dropout draws again.
    """
    changed = with_gradient(method, lambda g: RandomConvolutions(g, **options), "xu2021randconv")
    return asking(changed, "images", "classes")
