"""Rules that outvote wrong clients: trimmed mean, median, Krum."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from unseen.core import Draws, Elementwise, Gram, Layout, RuleState, Table, WithState
from unseen.core.rows import column_blocks, squared_distances
from unseen.core.schedule import floor_share
from unseen.errors import UnseenError
from unseen.ranges import Count, Natural, Range, uniform


@dataclass(frozen=True)
class TrimmedMean(Elementwise):
    """The mean of each coordinate without its ⌊trim·K⌋ largest and as many smallest values.

        x_d ← x_d + mean of the u_id that are left

    Attributes:
        trim: in [0, 0.5); below 1/K nothing is trimmed and the rule is the uniform mean. 0.2
            withstands one wrong client of five; the paper wants at least the share of wrong ones.

    Note:
        It has no prior: a client must not buy weight by the number of examples that it claims.
        BatchNorm statistics are combined in the same way.

    Source:
        Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
        Definition 2.

    Departs from:
        the paper in that u_i is an update of local training, where it has the gradient of a
        client's whole data at one model, which is `fedsgd+trimmed-mean`.

    Example:
        >>> g = torch.tensor([[1.0], [2.0], [3.0], [4.0], [9e9]])
        >>> rule = TrimmedMean()
        >>> rule(g, {}, rule.init(5, 1))[0]
        tensor([3.])
    """

    outvotes: ClassVar[bool] = True
    trim: Annotated[float, Range(0, 0.5), uniform(0, 0.4)] = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trim == 0.5:
            raise UnseenError("TrimmedMean(trim=0.5) would leave nothing; Median() is the limit.")

    def reduce(self, rows: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        K = len(rows)
        cut = floor_share(self.trim, K)
        share = torch.full((K - 2 * cut,), 1 / (K - 2 * cut), dtype=torch.float64).to(rows)
        vector = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
        for block, u in column_blocks(rows):
            vector[block] = share @ (ascending(u)[cut : K - cut] if cut else u)
        return vector, state


@dataclass(frozen=True)
class Median(Elementwise):
    """The median of each coordinate; for an even K the middle between the two middle values.

        x_d ← x_d + median_i u_id

    Note:
        Withstands fewer than half of the clients being wrong. No prior, as for `TrimmedMean`.
        BatchNorm statistics are combined in the same way.

    Source:
        Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
        Definition 1.

    Departs from:
        the paper in that u_i is an update of local training, where it has the gradient of a
        client's whole data at one model, which is `fedsgd+median`.

    Example:
        >>> g = torch.tensor([[1.0], [2.0], [4.0], [-9e9]])
        >>> rule = Median()
        >>> rule(g, {}, rule.init(4, 1))[0]
        tensor([1.5000])
    """

    outvotes: ClassVar[bool] = True

    def reduce(self, rows: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        K = len(rows)
        vector = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
        for block, u in column_blocks(rows):
            ordered = ascending(u)
            below, above = ordered[(K - 1) // 2], ordered[K // 2]
            vector[block] = below if K % 2 else below / 2 + above / 2  # the sum may overflow
        return vector, state


@dataclass(frozen=True)
class Krum(Gram):
    """The update whose K − f − 2 nearest others are nearest.

        i* = argmin_i Σ_{j among the K − f − 2 nearest of i} ‖u_i − u_j‖²,   x ← x + u_{i*}

    Attributes:
        f: how many clients may be wrong; K ≥ 2f + 3 is needed and checked. None takes the largest f
            that those present admit, ⌊(K − 3)/2⌋: with 5 clients one, with 3 none; one or two
            clients are indistinguishable and are averaged.
        m: how many updates to keep, at most K − f; the result is their mean. More than 1 is
            Multi-Krum.

    Note:
        Ties are won by the first in the roster. Distances come from inner products, so no update is
        read; in the clear they are those of updates less a central one of them, where rounding
        would show, and under encryption as fine as inner products of whole updates are. No prior:
        the chosen ones weigh alike. Where domains differ, "wrong" clients may be merely unlike the
        others, and Krum is then the method that never hears them. BatchNorm statistics are those of
        the chosen ones.

    Source:
        Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient
        Descent", §4 and §6. Squared distances, as printed; some libraries add up plain ones.

    Departs from:
        the paper in that u_i is an update of local training, where it has a gradient of one batch
        at one model.

    Example:
        >>> g = torch.tensor([[0.0], [1.0], [1.5], [9e9], [3.0]])
        >>> rule = Krum(f=1)
        >>> rule(g, {}, rule.init(5, 1))[0]
        tensor([1.])
    """

    outvotes: ClassVar[bool] = True
    differences: ClassVar[bool] = True
    f: Natural | None = None
    m: Count = 1

    def own_state(self, K: int, P: int, layout: Layout | None) -> RuleState:
        """Return nothing; a roster that is too small is refused here, before the first round."""
        self._wrong(K)
        return {}

    def _wrong(self, K: int) -> int:
        if self.f is None:
            return max(0, (K - 3) // 2)
        if 2 * self.f + 3 > K:
            raise UnseenError(
                f"Krum(f={self.f}) needs at least 2f + 3 = {2 * self.f + 3} clients; found {K}.",
                remedy="Take a smaller f, or none, for the largest that the clients admit.",
            )
        return self.f

    def mix(self, gram: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        K = len(gram)
        f = self._wrong(K)
        if K < 3:
            return torch.full((K,), 1 / K, dtype=torch.float64), state
        scores = squared_distances(gram).sort(1).values[:, : K - f - 2].sum(1)
        best = scores.argsort(stable=True)[: min(self.m, K - f)]
        weights = torch.zeros(K, dtype=torch.float64)
        weights[best] = 1 / len(best)
        return weights, state


#: The rules that outvote wrong clients.
Robust = TrimmedMean | Median | Krum


def ascending(u: Tensor) -> Tensor:
    """Return each column of [K, n] in ascending order.

    Note:
        A few rows are sorted by exchanging neighbours, K times, all columns together: about ten
        times as fast for five clients as a sort down the columns.
    """
    K = len(u)
    if K > 16:
        return u.sort(0).values
    rows = list(u)
    for turn in range(K):
        for i in range(turn % 2, K - 1, 2):
            rows[i], rows[i + 1] = rows[i].minimum(rows[i + 1]), rows[i].maximum(rows[i + 1])
    return torch.stack(rows)
