"""Site-shift augmentation, by the spread between the source sites."""

from dataclasses import replace
from functools import partial
from typing import Any

from unseen.core import ONE_LABEL, Exchange, Method, Model, Replace, Slot
from unseen.core.exchange import Blueprint
from unseen.errors import Incompatible
from unseen.methods.base import asking, with_gradient, zeros_of
from unseen.methods.combine import Sum
from unseen.methods.gradient.shift import SPREAD, SUMS, ClassSums, Shifted, SiteSpread, Spread
from unseen.methods.options import options_from


@options_from(Shifted)
def add_shift(method: Method, **options: Any) -> Method:
    """Move every batch as much as the source sites differ, as if it came from another site.

        x ← x · exp(α σ_s z₂) + α σ_b z₁

    Before round 0 the sites add up counts, Σ x and Σ (x − x̄)² of each class, and then the squared
    distances of their class means and log scales from the pooled ones, less what sampling alone
    makes of them: the roots of the means over sites are σ_b and σ_s. They are the spread of these K
    sites, divided by K and not by K − 1; of sites of one size σ_b² is on average (K − 1)/K of the
    variance of all sites that these were drawn from, and a larger α makes up for it. It helps where
    sites differ by location and scale of the inputs (instruments, speakers), and harms where a
    site's mean carries the label.

    Departs from:
        both papers, which give the idea alone. FedFA has the spread of a batch and moves features:
        here it is the one between sites, exchanged once, and inputs are moved.
    """
    if any(exchange.name == SUMS for exchange in method.exchanges):
        raise Incompatible(f"{method.name}+shift", f"{method.name} shifts its inputs already.")

    def sized(whole: Method, model: Model, blueprint: Blueprint) -> Method:
        own = exchanges(blueprint.classes or 1, blueprint.shape[0])
        rest = replace(whole, exchanges=whole.exchanges[2:])
        if method.sized is not None:
            rest = method.sized(rest, model, blueprint)
        return replace(rest, exchanges=(*own, *rest.exchanges), sized=None)

    keys = "gao2023targeted", "zhou2023fedfa"
    moved = asking(with_gradient(method, lambda g: Shifted(g, **options), *keys), ONE_LABEL)
    return replace(
        moved,
        exchanges=(*exchanges(1, 1), *moved.exchanges),
        sized=sized,
        shares=(
            *method.shares,
            "counts, sums and squared deviations of the inputs by class",
            "how far its class means and scales are from the pooled ones",
        ),
    )


def exchanges(classes: int, columns: int) -> tuple[Exchange, Exchange]:
    """Return the two exchanges before round 0."""
    size = 2 * columns
    begin = partial(zeros_of, classes * (2 + size))
    sums = Slot(Sum(), apply=Replace(), sends="value", start=begin)
    spread = Slot(Sum(2 * size), apply=Spread(), sends="value", start=partial(zeros_of, size))
    return (
        Exchange(SUMS, ClassSums(), {SUMS: sums}, rounds=(0, 0), who="all"),
        Exchange(SPREAD, SiteSpread(), {SPREAD: spread}, rounds=(0, 0), who="all"),
    )
