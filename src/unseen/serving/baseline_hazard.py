"""The baseline hazard of Cox's model, from sums over sites at stated times."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Baseline:
    """The cumulative hazard of a row with log-risk f: H_0(t) e^f, and S(t) = exp(− H_0(t) e^f).

        H_0(c_j) = Σ_{k ≤ j} D_k / R_k

    D_k counts the events of interval (c_{k−1}, c_k], and R_k is the sum of e^f over the rows at
    risk in it, each by the share of the interval that it was at risk. In between the hazard is
    constant.

    Note:
        This is the likelihood's maximum where the hazard is constant within intervals. Where no
        event or censoring falls inside an interval it is Breslow's estimator.

    Attributes:
        cuts: The ends c_1 < ... < c_J; c_0 is 0.
        hazard: H_0 at the ends.

    Source:
        Breslow 1974, whose estimator is that of intervals from event to event.

    Example:
        >>> y = torch.tensor([[1.0, 1.0], [2.0, 1.0]])  # two at risk, then one
        >>> Baseline.of_sums((1.0, 2.0), sums_of(torch.zeros(2, 1), y, (1.0, 2.0))).hazard
        (0.5, 1.5)
    """

    cuts: tuple[float, ...]
    hazard: tuple[float, ...]

    @classmethod
    def of_sums(cls, cuts: Sequence[float], sums: Tensor) -> Self:
        """Return the estimate of sums [2, J] over all sites; see `sums_of`."""
        events, at_risk = sums.double()
        tiny = torch.finfo(torch.float64).tiny
        steps = torch.where(events > 0, events / at_risk.clamp(min=tiny), 0.0)
        return cls(tuple(cuts), tuple(steps.cumsum(0).tolist()))

    def survival(self, outputs: Tensor, times: Sequence[float]) -> Tensor:
        """Return S(t | x) [N, T] of log-risks [N, 1] for times up to the last end, NaN beyond."""
        ends, values = (0.0, *self.cuts), (0.0, *self.hazard)
        H = torch.from_numpy(np.interp(np.asarray(times, float), ends, values, right=math.nan))
        return torch.exp(-outputs.double().cpu().exp() * H)


def sums_of(outputs: Tensor, y: Tensor, cuts: Sequence[float]) -> Tensor:
    """Return what a site sends [2, J]: events of each interval, and the risk at risk in it.

    Args:
        outputs: Log-risks f [N, 1].
        y: Times and events [N, 2].
        cuts: The ends of the intervals.
    """
    ends = torch.tensor((0.0, *cuts), dtype=torch.float64)
    t, event = y[:, :1].double().cpu(), (y[:, 1] > 0).cpu()
    low, high = ends[:-1], ends[1:]
    own = (t > low) & (t <= high) | (t <= 0) & (low == 0)
    share = ((t - low) / (high - low)).clamp(0, 1)
    return torch.stack([own[event].sum(0), outputs.double().cpu().exp().T[0] @ share])
