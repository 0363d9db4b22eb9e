"""The exchange of sums over columns, by which tables are standardised, before any training."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from unseen.core import (
    Client,
    Draws,
    Elementwise,
    Exchange,
    Method,
    Model,
    Replace,
    RuleState,
    Slot,
    Table,
    WithState,
    play,
    start,
)
from unseen.core.metrics.evaluation import plain
from unseen.data.dataset import Totals
from unseen.engine.inprocess import InProcess
from unseen.methods.combine import Sum


@dataclass(frozen=True)
class Typical(Elementwise):
    """Sums over columns of which no single site decides the means and deviations.

    Attributes:
        totals: What the sums are of.
    """

    totals: Totals

    def reduce(self, rows: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        return self.totals.typical(rows), state


def statistics(totals: Totals, robust: bool = False) -> Method:
    """Return the one exchange that sums up the training clients' rows, before training."""
    slot = Slot(
        Typical(totals) if robust else Sum(),
        apply=Replace(),
        sends="value",
        start=partial(_zeros, totals.size),
    )
    exchange = Exchange("statistics", totals, {"statistics": slot}, rounds=(0, 0), who="all")
    shares = ("count, sum and sum of squares per column, and counts of categories",)
    return Method("statistics", (exchange,), (), plain, shares=shares)


def _zeros(size: int, model: Model) -> Tensor:
    return torch.zeros(size, dtype=torch.float64)


def summed(totals: Totals, sources: Mapping[str, Client], robust: bool = False) -> Tensor:
    """Exchange the training clients' statistics of their raw rows, in this process."""
    method, nothing, roster = statistics(totals, robust), Model(torch.nn.Module()), sorted(sources)
    first = start(method, nothing, roster, seed=0)
    state, _ = play(method, first, InProcess(nothing, sources), roster, rounds=1)
    return state.inbox["statistics"]
