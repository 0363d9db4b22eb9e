"""Times until an event: Cox's partial likelihood, and hazards of intervals.

Labels y [N, 2] are a time and whether the event was seen then (1) or the row was censored (0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.client import Client
from unseen.core.losses import LossFunction
from unseen.core.parts import Part
from unseen.core.turn import Turn
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model
from unseen.errors import UnseenError
from unseen.ranges import Range

#: The share of events before the last end of intervals that are made of sums.
COVERED = 0.95
#: Euler's constant γ.
EULER = 0.5772156649015329


def checked(cuts: Sequence[float]) -> tuple[float, ...]:
    """Return the ends of intervals as numbers, if there are any; an expression has a list."""
    ends = tuple(map(float, cuts))
    return Intervals(ends).cuts if ends else ()


@dataclass(frozen=True)
class Cox(Part, named="cox"):
    """Minus Cox's partial log-likelihood of a batch over its rows; one output f, the log-risk.

        − (1/N) Σ_{i: δ_i = 1} (f_i − log Σ_{j: t_j ≥ t_i} e^{f_j})

    Note:
        Risk sets are those of the batch at its site, so that the likelihood is stratified by site:
        no site is compared with another, and each has a baseline hazard of its own. Where a batch
        is the whole training split, the sites' sum is the stratified likelihood itself, which is
        what `fedsgd` descends with `weights = "examples"`; smaller batches have smaller risk sets,
        and descend another objective with a similar minimum. `deepall` pools rows, and so risk
        sets. A batch without an event has the loss 0.

    Attributes:
        ties: Of d events at one time, `efron`, which takes l/d of them out of the risk set of the
            l-th (l = 0, ..., d − 1), or `breslow`, which leaves them all in.

    Source:
        Cox 1972; Breslow 1974; Efron 1977.
    """

    divisible: ClassVar[bool] = False

    ties: Literal["efron", "breslow"] = "efron"

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> LossFunction:
        return lambda model, x, y: partial_likelihood(model(x), y, self.ties)


@dataclass(frozen=True)
class Hazards(Part, named="hazards"):
    """Minus the log-likelihood of a batch by discrete hazards, over its rows; J outputs, logits.

        h_j = σ(z_j) = P(event in interval j | none before)
        event in j:  − log h_j − Σ_{k<j} log(1 − h_k);    censored in j:  − Σ_{k<m} log(1 − h_k)

    m is j + 1 for who was censored in the second half of the interval, else j: the time at risk to
    the nearest whole interval.

    Note:
        Labels are in units of intervals (`Intervals.standardised`), as a study prepares them.

    Attributes:
        intervals: J, if `cuts` does not name their ends. The ends are then quantiles of the Weibull
            law with the mean and the deviation of the log times of the training sites' events,
            which leave the sites as three sums; 95% of its events lie before the last.
        cuts: The ends of the intervals, ascending; the first begins at 0. No sums are sent.

    Source:
        Brown 1975; Gensheimer and Narasimhan 2019.
    """

    divisible: ClassVar[bool] = True

    intervals: Annotated[int, Range(2, math.inf)] = 10
    cuts: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        vars(self)["cuts"] = checked(self.cuts)

    @property
    def outputs(self) -> int:
        """J."""
        return len(self.cuts) or self.intervals

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> LossFunction:
        return lambda model, x, y: hazard_losses(model(x), y).mean()


@dataclass(frozen=True)
class Intervals:
    """Times in units of intervals: j + the share of interval j that has passed, j from 0.

    Attributes:
        cuts: The ends c_1 < ... < c_J; c_0 is 0, and interval j is [c_j, c_{j+1}).

    Example:
        >>> intervals = Intervals((10.0, 30.0))
        >>> intervals.standardised(torch.tensor([[5.0, 1.0], [10.0, 0.0], [60.0, 1.0]])).tolist()
        [[0.5, 1.0], [1.0, 0.0], [3.0, 1.0]]
    """

    #: The unit of outputs, as `Scale` has one.
    deviation: ClassVar[float] = 1.0

    cuts: tuple[float, ...]

    def __post_init__(self) -> None:
        ends = (0.0, *self.cuts)
        rising = all(a < b for a, b in pairwise(ends))
        if len(self.cuts) < 2 or not rising or not math.isfinite(ends[-1]):
            raise UnseenError(
                "the ends of intervals are two or more finite times above 0 that rise; found "
                f"{list(self.cuts)}."
            )

    @classmethod
    def of_moments(cls, mean: float, deviation: float, count: int) -> Intervals:
        """Return intervals that hold equal shares of a Weibull law of times.

        Args:
            mean: Of the log times.
            deviation: Of the log times.
            count: J.

        Note:
            Logarithms of such times have the deviation π/(k √6) and the mean log λ − γ/k, with the
            law's shape k and scale λ and Euler's γ.
        """
        k = math.pi / (max(deviation, 1e-6) * math.sqrt(6))
        shares = (COVERED * (j + 1) / count for j in range(count))
        return cls(tuple(math.exp(mean + (EULER + math.log(-math.log1p(-p))) / k) for p in shares))

    def standardised(self, y: Tensor) -> Tensor:
        """Return labels [N, 2] with times in units of intervals, in float32."""
        ends = torch.tensor((0.0, *self.cuts), dtype=torch.float64, device=y.device)
        t = y[:, 0].double().contiguous()
        j = torch.searchsorted(ends, t, right=True) - 1
        # Beyond the last end goes on in units of all intervals, which keeps the order.
        last = j == len(self.cuts)
        low, high = ends[j], torch.where(last, 2 * ends[-1], ends[(j + 1).clamp(max=len(ends) - 1)])
        units = (j + (t - low) / (high - low)).float()
        below = torch.nextafter((j + 1).float(), torch.zeros_like(units))  # rounding stays inside
        return torch.stack([torch.where(last, units, units.minimum(below)), y[:, 1].float()], 1)

    def restored(self, z: Tensor) -> Tensor:
        """Return outputs and labels as they are: metrics read times in units of intervals."""
        return z.double()

    def survival(self, outputs: Tensor, times: Sequence[float]) -> Tensor:
        """Return S(t | x) [N, T] for times up to the last end, NaN beyond.

        Note:
            Within an interval the hazard is constant: log S is linear between the ends.
        """
        units = self.standardised(torch.tensor([[t, 0.0] for t in times]))[:, 0].double()
        logs = F.pad(-F.softplus(outputs.double()).cumsum(1), (1, 0))  # log S at c_0, ..., c_J
        J = len(self.cuts)
        j = units.long().clamp(max=J - 1)
        share = units - j
        values = (logs[:, j] * (1 - share) + logs[:, j + 1] * share).exp()
        beyond = torch.tensor([t > self.cuts[-1] for t in times])
        return values.masked_fill(beyond, math.nan)


def partial_likelihood(
    outputs: Tensor, y: Tensor, ties: Literal["efron", "breslow"] = "efron"
) -> Tensor:
    """Return minus Cox's partial log-likelihood over the rows, all of which are one stratum.

    Args:
        outputs: Log-risks f [N, 1].
        y: Times and events [N, 2].
        ties: See `Cox`.

    Example:
        >>> y = torch.tensor([[1.0, 1.0], [2.0, 1.0]])
        >>> round(float(partial_likelihood(torch.zeros(2, 1), y)), 4)  # log 2 / 2
        0.3466
    """
    order = y[:, 0].argsort(descending=True, stable=True)
    # In float64, whose e^f reaches over 700: torch's logcumsumexp has no second derivative.
    f, event = outputs.double().squeeze(-1)[order], y[order, 1] > 0
    group, sizes = torch.unique_consecutive(y[order, 0], return_inverse=True, return_counts=True)[
        1:
    ]
    # The risk set of a time ends with the last row of its group: times fall.
    top = f.detach().max()
    sums = (f - top).exp().cumsum(0).clamp(min=torch.finfo(f.dtype).tiny)
    at_risk = sums.log()[sizes.cumsum(0) - 1] + top
    logs = at_risk[group]
    if ties == "efron":
        zero = f.new_zeros(len(sizes))
        flags = event.to(f.dtype)
        deaths = zero.index_add(0, group, flags)
        share = zero.index_add(0, group, flags * (f - logs).exp())  # of the risk in tied events
        before = flags.cumsum(0) - flags
        first = before[sizes.cumsum(0) - sizes]
        out = (before - first[group]) / deaths[group].clamp(min=1)
        logs = logs + torch.log1p(-out * event * share[group])
    return (-torch.where(event, f - logs, 0.0).sum() / len(f)).to(outputs.dtype)


def at_risk(y: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the intervals with a row's event, and those that it survived, both boolean [N, J].

    Args:
        y: Times in units of intervals, and events [N, 2]; from J on, all were censored at J.
        count: J.
    """
    t, place = y[:, :1], torch.arange(count, device=y.device)
    event = (y[:, 1:] > 0) & (t < count)
    return (t.floor() == place) & event, torch.where(event, t >= place + 1, t >= place + 0.5)


def hazard_losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Return minus each row's log-likelihood [N], see `Hazards`.

    Args:
        outputs: Logits of hazards [N, J].
        y: Times in units of intervals, and events [N, 2]; from J on, all were censored at J.
    """
    own, survived = (marks.to(outputs.dtype) for marks in at_risk(y, outputs.shape[1]))
    return (survived * F.softplus(outputs) + own * F.softplus(-outputs)).sum(1)


def risk(outputs: Tensor) -> Tensor:
    """Return what orders rows by risk [N]: the log-risk, or the hazard cumulated over intervals."""
    f = outputs.double()
    return f.squeeze(-1) if f.shape[-1] == 1 else F.softplus(f).sum(-1)
