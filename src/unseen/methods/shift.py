"""Site-shift augmentation, by the spread between the source sites."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor

from unseen.core import (
    ONE_LABEL,
    Client,
    Exchange,
    Inbox,
    Memory,
    Method,
    Model,
    Replace,
    Reply,
    RuleState,
    Slot,
    Turn,
    WithState,
)
from unseen.core.exchange import Blueprint
from unseen.core.parts import Part
from unseen.core.types import Table
from unseen.errors import Incompatible
from unseen.methods.base import asking, with_gradient, zeros_of
from unseen.methods.combine import Sum
from unseen.methods.gradient.backprop import Batched, Gradient, Step
from unseen.methods.options import options_from
from unseen.ranges import NotNegative, log

#: Inbox entries: sums by class over all sites [C (2 + 2d)]; spreads between sites (σ_b, σ_s) [2d].
SUMS, SPREAD = "class sums", "site spread"
#: A site's class needs this many rows for a mean's error, and a column this much variance for a
#: scale: what is constant at a site (nobody there has the disease) has none.
FEWEST, LEAST = 2, 1e-6


@dataclass(frozen=True)
class Shifted(Batched, named="shift"):
    """g at x · exp(α σ_s z₂) + α σ_b z₁: one draw for a batch, as if it came from another site.

    z₁, z₂: standard normal, independent for each column, or for each channel of images.

    Attributes:
        inner: the gradient.
        alpha: α, in units of the spread between the source sites; 0 leaves the inputs as they are.

    Source:
        Gao et al. 2023, "Targeted Augmentations", for the idea; Zhou and Konukoglu 2023, FedFA, for
        a normal model of statistics that differ between clients.
    """

    stackable = True

    inner: Gradient
    alpha: Annotated[NotNegative, log(0.1, 2)] = 1.0

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:
        draws, spread = turn.generator("shift"), inbox[SPREAD].view(2, -1)

        def step(x: Tensor, y: Tensor) -> Tensor:
            if not self.alpha:
                return inner(x, y)
            z = torch.randn(spread.shape, generator=draws).to(x)
            return inner(moved(x, self.alpha * spread * z), y)

        return step

    def draws(
        self, inbox: Inbox, client: Client, turn: Turn, sizes: Sequence[int], form: tuple[int, int]
    ) -> tuple[Tensor, ...]:
        draws, spread = turn.generator("shift"), inbox[SPREAD].view(2, -1)
        distances = spread.new_zeros(form[0], *spread.shape)
        if self.alpha and sizes:
            own = [torch.randn(spread.shape, generator=draws) for _ in sizes]
            torch.stack(own, out=distances[: len(sizes)])
        return (distances.mul_(self.alpha * spread),)

    def batched(self, x: Tensor, target: Tensor, *draws: Tensor) -> tuple[Tensor, Tensor]:
        return moved(x, draws[0].unsqueeze(2)), target


def moved(x: Tensor, distance: Tensor) -> Tensor:
    """Return x · exp(s) + b.

    Args:
        x: Inputs [N, d, ...], or of M models [M, N, d, ...].
        distance: b and s [2, d], or [M, 2, 1, d].
    """
    move, stretch = distance[:, None].unbind(0) if distance.ndim == 2 else distance.unbind(1)
    channels = (..., *(None,) * (x.ndim - move.ndim))
    move, stretch = move[channels], stretch[channels]
    return x * stretch.exp() + move


def columns(client: Client) -> tuple[Tensor, Tensor]:
    """Return the training inputs as columns [N, d] in float64, and classes [N].

    Columns of images are each channel's mean; numbers and times are one class.
    """
    x, y = client.split("train").batch(slice(None))
    x = x.double().flatten(2).mean(2) if x.ndim > 2 else x.double()
    return x, y.new_zeros(len(y), dtype=torch.int64) if y.is_floating_point() else y


def class_sums(client: Client) -> Tensor:
    """Return for each class the count n, n − 1 (0 of none), Σ x and Σ (x − x̄)² [C, 2 + 2d].

    Note:
        Squares are of distances from the site's own class means, so that their sum over sites is
        of the scatter within sites.
    """
    x, y = columns(client)
    C = client.classes or 1
    count = x.new_zeros(C, 1).index_add_(0, y, torch.ones_like(x[:, :1]))
    total = x.new_zeros(C, x.shape[1]).index_add_(0, y, x)
    apart = x - (total / count.clamp(min=1))[y]
    squares = torch.zeros_like(total).index_add_(0, y, apart.square())
    return torch.cat([count, (count - 1).clamp(min=0), total, squares], dim=1)


def moments(sums: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return counts [C, 1], degrees of freedom [C, 1], means [C, d] and squares [C, d]."""
    count, freedom = sums[:, :1], sums[:, 1:2]
    total, squares = sums[:, 2:].chunk(2, dim=1)
    return count, freedom, total / count.clamp(min=1), squares


@dataclass(frozen=True)
class ClassSums(Part):
    """What a site sends first: counts, sums and squared deviations of each class."""

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        sums = class_sums(client)
        return Reply({SUMS: sums.flatten()}, {"examples": float(sums[:, 0].sum())}), memory


@dataclass(frozen=True)
class SiteSpread(Part):
    """What a site sends next: how far its class means and scales are from the pooled ones, squared.

    The scale is the one within classes and sites. The square of each one's own sampling error is
    taken off, as of normal columns, so that sites which are draws from one population have no
    spread.
    """

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """Return the row [2d + 2d]: squares of means and log scales, and 1 for each one known."""
        own = class_sums(client)
        n, freedom, mean, squares = moments(own)
        _, all_freedom, center, all_squares = moments(inbox[SUMS].to(own).view_as(own))
        weight = n * (n >= FEWEST)
        error = squares / (freedom * n).clamp(min=1)
        distance = (mean - center).square() - error
        location = (weight * distance).sum(0) / weight.sum().clamp(min=1)
        within = squares.sum(0) / freedom.sum().clamp(min=1)
        usual = all_squares.sum(0) / all_freedom.sum().clamp(min=1)
        ratio = (within.clamp(min=LEAST) / usual.clamp(min=LEAST)).log() / 2
        scaled = (within > LEAST) & (usual > LEAST)
        scale = (ratio.square() - log_error(freedom.sum())) * scaled
        counts = torch.cat([torch.ones_like(location) * (weight.sum() > 0), scaled.to(location)])
        row = torch.cat([location, scale, counts])
        return Reply({SPREAD: row}, {"examples": float(n.sum())}), memory


def log_error(freedom: Tensor) -> Tensor:
    """Return the mean square of ½ log(χ²_ν / ν), an estimated log scale's error."""
    half = freedom.clamp(min=1) / 2
    return (torch.polygamma(1, half) + (half.digamma() - half.log()).square()) / 4


@dataclass(frozen=True)
class Spread:
    """The server's step: the standard deviations (σ_b, σ_s) of the K sites, of summed squares.

    They are of the population form, Σ / K.
    """

    at_sites = True

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        """Return [2d]; a column that no site knows has none."""
        squares, sites = new.chunk(2)
        return (squares / sites.clamp(min=1)).clamp(min=0).sqrt().to(old), state


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
