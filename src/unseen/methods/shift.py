"""Site-shift augmentation, by the spread between the source sites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from unseen.combine import Sum
from unseen.core import Exchange, Method, Model, Replace, Slot
from unseen.core.exchange import Blueprint
from unseen.errors import Incompatible
from unseen.gradient.shift import SPREAD, SUMS, ClassSums, Shifted, SiteSpread, Spread
from unseen.methods.base import cited, citing, with_gradient
from unseen.methods.options import options_from


@options_from(Shifted)
def add_shift(method: Method, **options: Any) -> Method:
    """Move every batch as much as the source sites differ, as if it came from another site.

        x ← x · exp(α σ_s z₂) + α σ_b z₁

    Before round 0 the sites add up counts, Σ x and Σ (x − x̄)² of each class, and then the squared
    distances of their class means and log scales from the pooled ones, less what sampling alone
    makes of them: the roots of the means over sites are σ_b and σ_s. It helps where sites differ by
    location and scale of the inputs (instruments, speakers), and harms where a site's mean carries
    the label.
    """
    if any(exchange.name == SUMS for exchange in method.exchanges):
        raise Incompatible(f"{method.name}+shift", f"{method.name} shifts its inputs already.")
    moved = with_gradient(method, lambda gradient: Shifted(gradient, **options))
    first = tuple(exchanges(1, 1))
    whole = replace(
        moved,
        exchanges=(*first, *moved.exchanges),
        sized=Sized(method.sized),
        shares=(
            *method.shares,
            "counts, sums and squared deviations of the inputs by class",
            "how far its class means and scales are from the pooled ones",
        ),
    )
    for key in ("gao2023targeted", "zhou2023fedfa"):
        whole = citing(whole, cited(key))
    return whole


@dataclass(frozen=True)
class Sized:
    """Completes the exchanges for the number of classes and of columns or channels.

    Attributes:
        inner: what else completes the method.
    """

    inner: Callable[[Method, Model, Blueprint], Method] | None

    def __call__(self, method: Method, model: Model, blueprint: Blueprint) -> Method:
        """Return the method with rows of the right size."""
        own = exchanges(blueprint.classes or 1, blueprint.shape[0])
        rest = replace(method, exchanges=method.exchanges[2:])
        if self.inner is not None:
            rest = self.inner(rest, model, blueprint)
        return replace(rest, exchanges=(*own, *rest.exchanges), sized=None)


def exchanges(classes: int, columns: int) -> tuple[Exchange, Exchange]:
    """Return the two exchanges before round 0."""
    sums = Slot(Sum(), apply=Replace(), sends="value", start=Zeros(classes * (2 + 2 * columns)))
    spread = Slot(Sum(4 * columns), apply=Spread(), sends="value", start=Zeros(2 * columns))
    return (
        Exchange(SUMS, ClassSums(), {SUMS: sums}, rounds=(0, 0), who="all"),
        Exchange(SPREAD, SiteSpread(), {SPREAD: spread}, rounds=(0, 0), who="all"),
    )


@dataclass(frozen=True)
class Zeros:
    """An entry of zeros before round 0."""

    size: int

    def __call__(self, model: Model) -> Tensor:
        """Return [size]."""
        return model.vector.new_zeros(self.size)
