"""Averages over rounds: the server's mean of the models it made, which predicts in their place."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from unseen.core import Method, RuleState, WithState
from unseen.core.types import Table
from unseen.methods.base import citing
from unseen.methods.mixed import averaged
from unseen.ranges import Checked, Share, uniform


@dataclass(frozen=True)
class Tail(Checked, named="tail"):
    """x̄ ← x̄ + (x − x̄) / n over the models of the last rounds; before them x̄ = x.

    Attributes:
        start: The share of the rounds after which the mean begins.

    Source:
        Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and Better Generalization",
        Algorithm 1, here over the server's models.
    """

    at_sites = True

    start: Share = 0.5

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        if float(table["progress"][0]) < self.start:
            return new.clone(), state
        count = state.get("count", torch.zeros(())) + 1
        return old + (new - old) / count, {"count": count}


@dataclass(frozen=True)
class Ema(Checked, named="ema"):
    """x̄ ← β x̄ + (1 − β) x, from the first round's model on.

    Attributes:
        decay: β.

    Source:
        Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging", with a
        mean that forgets.
    """

    at_sites = True

    decay: Share = 0.9

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        if "begun" not in state:
            return new.clone(), {"begun": torch.ones(())}
        return self.decay * old + (1 - self.decay) * new, state


def add_tail(method: Method, *, start: Annotated[float, uniform(0.2, 0.8)] = 0.5) -> Method:
    """Predict by the mean of the server's models over the last rounds.

        x̄ = mean of x_r,  r ≥ start · R

    Training goes on from x_R, not from the mean. The server makes the mean out of what it has, so
    clients send nothing more, and masks and encryption carry it; it goes out next to the model,
    which is evaluated by it. BatchNorm's statistics are averaged with it.

    Args:
        method: The method that is changed.
        start: the share of the rounds after which the mean begins.

    Departs from:
        the paper, which averages along one training at a cyclical or a high constant rate, and
        recomputes BatchNorm's statistics at the end by a pass over the data: here the models are
        the server's, one a round, at the study's own rates.
    """
    return citing(averaged(method, Tail(start), "tail"), "izmailov2018averaging")


def add_ema(method: Method, *, decay: Annotated[float, uniform(0.5, 0.99)] = 0.9) -> Method:
    """Predict by the exponential moving average of the server's models: x̄ ← β x̄ + (1 − β) x.

    See `tail`.

    Args:
        method: The method that is changed.
        decay: β.

    Departs from:
        the paper, whose mean is of all iterates of one descent, each counted alike: this one
        forgets, and is of the server's models.
    """
    return citing(averaged(method, Ema(decay), "ema"), "polyak1992acceleration")
