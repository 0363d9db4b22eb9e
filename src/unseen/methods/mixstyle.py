"""MixStyle: styles of feature maps, mixed inside a client."""

from collections.abc import Sequence
from typing import Any

from unseen.core import Method
from unseen.methods.base import asking, with_gradient
from unseen.methods.gradient.mixstyle import StyleMixed
from unseen.methods.options import options_from


@options_from(StyleMixed)
def add_mixstyle(method: Method, *, layers: Sequence[str] | None = None, **options: Any) -> Method:
    """Mix the channel statistics of feature maps between a client's own examples.

        z'_n = (z_n − μ_n) / σ_n · (λ σ_n + (1 − λ) σ_{π(n)}) + λ μ_n + (1 − λ) μ_{π(n)}

    μ, σ: mean and deviation of a channel over an example's pixels; λ ~ Beta(α, α).

    Note:
        Methods that exchange statistics between clients are `fedccrl` and `am(across=True)`.

    Departs from:
        the paper in that styles are those of the client's own examples, where it has several
        domains in one batch, which is what pooled data have, as in `deepall+mixstyle`.
    """
    names = (layers,) if isinstance(layers, str) else None if layers is None else tuple(layers)

    changed = with_gradient(
        method, lambda g: StyleMixed(g, layers=names, **options), "zhou2021mixstyle"
    )
    return asking(changed, "images", "convolutions")
