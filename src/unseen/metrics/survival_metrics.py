"""Metrics of times until an event: concordances, and Brier's score over intervals."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.survival import hazard_losses, partial_likelihood, risk

#: Pairs of rows that are compared at a time.
PAIRS = 10_000_000


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
    right = count = 0.0
    for comparable, alike in blocks(outputs, y):
        count += float(comparable.sum())
        right += float((comparable * alike).sum())
    return right / count if count else None


def concordance_ipcw(outputs: Tensor, y: Tensor) -> float | None:
    """Return Uno's C: Harrell's, each pair weighted by 1/G(t)², t being its first event's time.

    G is as in `integrated_brier`. What Harrell's C tends to depends on who is censored, and this
    does not, where censoring is independent of risks. Events at whose time G is 0 are left out.

    Source:
        Uno, Cai, Pencina, D'Agostino, Wei 2011.
    """
    right = count = 0.0
    parts = uncensored_weights(y)
    for comparable, alike in blocks(outputs, y):
        weights, parts = parts[: len(comparable), None], parts[len(comparable) :]
        count += float((weights * comparable).sum())
        right += float((weights * comparable * alike).sum())
    return right / count if count else None


def uncensored_weights(y: Tensor) -> Tensor:
    """Return 1/G(t)² of each row with an event [E], in their order; 0 where G is 0."""
    t, event = y[:, 0].double().contiguous(), y[:, 1] > 0
    if not len(t):
        return t
    times, uncensored = not_censored(t, event)
    G = _at(times, uncensored, t[event])
    return torch.where(G > 0, G.clamp(min=1e-300).square().reciprocal(), 0.0)


def blocks(outputs: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield which pairs (i, j) are comparable, i having the event first, and how alike they are.

    Returns:
        Two tensors [E, N] at a time over all rows E with events: 0 or 1; and 1, 1/2 or 0.
    """
    f, t, event = risk(outputs), y[:, 0].double(), y[:, 1] > 0
    for rows in event.nonzero().flatten().split(max(1, PAIRS // max(1, len(y)))):
        own = t[rows, None]
        comparable = (own < t) | ((own == t) & ~event)
        order = f[rows, None] - f
        yield comparable.double(), (order > 0).double() + (order == 0).double() / 2


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
