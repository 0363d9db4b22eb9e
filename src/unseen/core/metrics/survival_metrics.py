"""Metrics of times until an event: concordances, and Brier's score over intervals."""

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.metrics.ordered_pairs import ordered_pairs
from unseen.core.survival import hazard_losses, partial_likelihood, risk


def loss(outputs: Tensor, y: Tensor) -> float:
    """Return minus the mean log-likelihood: Breslow's partial one, or that of hazards.

    Note:
        The partial likelihood takes all rows as one stratum. It grows with the logarithm of their
        number, and so is for comparing models on the same rows.
    """
    z = outputs.double()
    if z.shape[-1] == 1:
        return float(partial_likelihood(z, y.double(), "breslow")) + 0.0  # of a row alone not −0
    return float(hazard_losses(z, y.double()).mean())


def concordance(outputs: Tensor, y: Tensor) -> float | None:
    """Return Harrell's C: of comparable pairs, the share whose first event was of the higher risk.

    Two rows are comparable if the earlier time is an event's, or if at equal times one is an event
    and the other was censored, who then outlived it. Equal risks count half. None without a pair.
    """
    return _share(outputs, y, (y[:, 1] > 0).double())


def concordance_ipcw(outputs: Tensor, y: Tensor) -> float | None:
    """Return Uno's C: Harrell's, each pair weighted by 1/G(t)², t being its first event's time.

    G is as in `integrated_brier`. What Harrell's C tends to depends on who is censored, and this
    does not, where censoring is independent of risks. Events at whose time G is 0 are left out.

    Source:
        Uno, Cai, Pencina, D'Agostino, Wei 2011.
    """
    return _share(outputs, y, uncensored_weights(y))


def _share(outputs: Tensor, y: Tensor, first: Tensor) -> float | None:
    ones = torch.ones_like(first)[None]
    count, right = map(float, comparable_pairs(outputs, y, first[None], ones))
    return right / count if count else None


def comparable_pairs(
    outputs: Tensor, y: Tensor, first: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return Σ v_i w_j over comparable pairs, i having the event first, and over those in order.

    Args:
        outputs: [N, C].
        y: Times and events [N, 2].
        first: v [R, N], 0 of every row that was censored.
        weights: w [R, N].

    Returns:
        The sums [R]; in order are pairs whose i has the higher risk, and half of equal risks.
    """
    times = y[:, 0].unique(return_inverse=True)[1]  # type: ignore[no-untyped-call]
    outlives = 2 * times + (y[:, 1] <= 0)
    return ordered_pairs(outlives, risk(outputs), first, weights)


def uncensored_weights(y: Tensor) -> Tensor:
    """Return 1/G(t)² of each row with an event, 0 of the others and where G is 0 [N]."""
    t, event = y[:, 0].double().contiguous(), y[:, 1] > 0
    if not len(t):
        return t
    times, uncensored = not_censored(t, event)
    G = _at(times, uncensored, t)
    return torch.where(event & (G > 0), G.clamp(min=1e-300).square().reciprocal(), 0.0)


def integrated_brier(outputs: Tensor, y: Tensor) -> float | None:
    """Return Brier's score of survival at the ends of intervals, its mean; None for log-risks.

        BS(c) = (1/N) Σ_i [S_i(c)² 1(t_i ≤ c, δ_i = 1)/G(t_i) + (1 − S_i(c))² 1(t_i > c)/G(c)]

    G is Kaplan and Meier's probability of not being censored by then, of the same rows. Ends at or
    after the last time of these rows, after which nobody is under observation, are left out: sites
    that were followed for different times have means over different horizons, which do not compare.
    The ends are quantiles of the times of events, so that the mean weighs times as events are
    frequent.

    Source:
        Graf, Schmoor, Sauerbrei, Schumacher 1999.
    """
    rows = brier_rows(outputs, y)
    return None if rows is None else float(rows.mean())


def brier_rows(outputs: Tensor, y: Tensor) -> Tensor | None:
    """Return each row's part of `integrated_brier` [N]; None where there is none."""
    if outputs.shape[-1] == 1:
        return None
    t, event = y[:, 0].double().contiguous(), y[:, 1] > 0
    times, uncensored = not_censored(t, event)
    ends = torch.arange(1, outputs.shape[1] + 1, dtype=torch.float64, device=t.device)
    ends = ends[ends < t.max()]
    if not len(ends):
        return None
    survival = (-F.softplus(outputs.double()).cumsum(1)).exp()[:, : len(ends)]
    own, at_end = _at(times, uncensored, t), _at(times, uncensored, ends)
    dead, alive = (t[:, None] <= ends) & event[:, None], t[:, None] > ends
    score = torch.where(dead, survival.square() / own[:, None], 0.0)
    score = score + torch.where(alive, (1 - survival).square() / at_end, 0.0)
    return score.mean(1)


def not_censored(t: Tensor, event: Tensor) -> tuple[Tensor, Tensor]:
    """Return distinct times [T], rising, and Kaplan and Meier's G at each [T], by censorings.

    Note:
        Events come before censorings of the same time, so that those leave the risk set first.
    """
    times, place, sizes = torch.unique(t, return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
    events = torch.zeros(len(times), dtype=torch.float64, device=t.device)
    events = events.index_add(0, place, event.double())
    at_risk = sizes.flip(0).cumsum(0).flip(0) - events
    censored = sizes - events
    return times, (1 - censored / at_risk.clamp(min=1)).cumprod(0)


def _at(times: Tensor, uncensored: Tensor, when: Tensor) -> Tensor:
    """Return G at each of `when`: that of the last of the times until then, 1 before the first."""
    return F.pad(uncensored, (1, 0), value=1.0)[torch.searchsorted(times, when, right=True)]
