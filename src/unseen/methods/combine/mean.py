"""Weighted means: by examples as in FedAvg, or uniform; over a roster; and the plain sum."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from unseen.core import Draws, Layout, RuleState, Table, Weighted, WithState
from unseen.errors import UnseenError, choice

Weights = Literal["examples", "uniform"]


@dataclass(frozen=True, init=False, repr=False)
class Mean(Weighted):
    """Σ_i p_i u_i with p_i = n_i / Σ_j n_j (`examples`) or p_i = 1/K (`uniform`).

    n_i counts the examples of client i's training split. Under partial participation the weights
    are those of the clients present.

    Attributes:
        by: the weights, `"examples"` or `"uniform"`.

    Source:
        McMahan et al. 2017, Algorithm 1 (FedAvg).

    Example:
        >>> rule = Mean("examples")
        >>> table = {"examples": torch.tensor([1.0, 3.0])}
        >>> rule(torch.tensor([[0.0, 4.0], [4.0, 0.0]]), table, rule.init(2, 2))[0]
        tensor([3., 1.])
    """

    by: Weights

    # The keyword is `weights`, which on every rule is also the name of what it computes.
    def __init__(self, weights: Weights = "examples") -> None:
        choice("Mean(weights)", weights, get_args(Weights))
        object.__setattr__(self, "by", weights)

    def __repr__(self) -> str:
        return f"Mean({self.by!r})"

    def all_needs(self) -> tuple[str, ...]:
        return ("examples",) if self.by == "examples" else ()

    def share(self, table: Table, state: RuleState, generator: Draws = None) -> WithState:
        if self.by == "uniform":
            K = len(table["client"])
            return torch.full((K,), 1 / K, dtype=torch.float64), state
        n = table["examples"]
        if not bool((n >= 0).all()) or float(n.sum()) <= 0:
            raise UnseenError(f"a mean by examples needs counts >= 0, not all 0; found {n}.")
        return n / n.sum(), state


@dataclass(frozen=True)
class Sum(Weighted):
    """Σ_i u_i, for counts and other statistics that add up.

    Attributes:
        size: The numbers in a row, where the entry that the sum changes is of another size.
    """

    averages: ClassVar[bool] = False
    adds: ClassVar[bool] = True

    size: int | None = None

    def row_shape(self, entry: Tensor) -> torch.Size:
        return entry.shape if self.size is None else torch.Size((self.size,))

    def share(self, table: Table, state: RuleState, generator: Draws = None) -> WithState:
        return torch.ones(len(table["client"]), dtype=torch.float64), state


@dataclass(frozen=True)
class RosterMean(Weighted):
    """(|S|/N) Σ_{i∈S} p_i u_i, S being those present of a roster of N.

    Attributes:
        prior: p.

    Note:
        With p_i = 1/|S| it is (1/N) Σ_{i∈S} u_i, so that what each client adds to its own part of a
        mean over the roster is added to that mean.

    Source:
        Karimireddy et al. 2020, "SCAFFOLD", Algorithm 1, line 17.

    Example:
        >>> rule = RosterMean()
        >>> rule(torch.tensor([[2.0], [4.0]]), {"client": torch.tensor([0, 3])}, rule.init(4, 1))[0]
        tensor([1.5000])
    """

    prior: Weighted = Mean("uniform")
    averages = False

    def own_state(self, K: int, P: int, layout: Layout | None) -> RuleState:
        return {"roster": K}

    def share(self, table: Table, state: RuleState, generator: Draws = None) -> WithState:
        return table["prior"] * (len(table["client"]) / state["roster"]), state
