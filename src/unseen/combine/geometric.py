"""FedILC's weighted geometric mean of vectors, coordinate by coordinate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unseen.combine.base import COLUMNS, Elementwise, RuleState, Table, Weighted, column_blocks
from unseen.combine.mean import Mean
from unseen.errors import choice, number

Zeros = Literal["skip", "paper", "released"]

#: What the released code adds to every magnitude before the logarithm.
RELEASED_FLOOR = 1e-10
#: Shares of signs are sums of rounded weights: five times 1/5 may fall short of an agreement of 1.
ROUNDING = 1e-6


@dataclass(frozen=True)
class LogSums:
    """All that a weighted geometric mean needs to know of vectors g_i with weights p_i, Σ p_i = 1.

    positive, negative, zero: Σ p_i over the entries > 0, < 0 and = 0 of each coordinate; the last
    is None where nobody asks for it.
    log_positive, log_negative: Σ p_i log|g_i| over the first two.
    """

    positive: Tensor
    negative: Tensor
    zero: Tensor | None
    log_positive: Tensor
    log_negative: Tensor

    @classmethod
    def of(cls, vectors: Tensor, p: Tensor, floor: float = 0.0, zeros: bool = True) -> LogSums:
        """The sums over `vectors` [K, n] with weights p [K]."""
        plus, minus, logs = _signs_and_logs(vectors, floor)
        positive, negative = p @ plus, p @ minus
        zero = p @ (1 - plus - minus) if zeros else None
        return cls(positive, negative, zero, p @ plus.mul_(logs), p @ minus.mul_(logs))


class RunningLogSums:
    """`LogSums` of vectors of one weight that come one at a time, or never come into being."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.count = 0
        self.positive, self.negative = torch.zeros(2, size, device=device).unbind()
        logs = torch.zeros(2, size, dtype=torch.float64, device=device)
        self.log_positive, self.log_negative = logs.unbind()

    def add(self, vector: Tensor, floor: float = 0.0) -> None:
        """One more vector [P], in blocks that stay in the cache."""
        self.count += 1
        for begin in range(0, len(vector), COLUMNS):
            block = slice(begin, begin + COLUMNS)
            plus, minus, logs = _signs_and_logs(vector[block], floor)
            self.positive[block] += plus
            self.negative[block] += minus
            self.log_positive[block] += plus.mul_(logs)
            self.log_negative[block] += minus.mul_(logs)

    def add_sums(
        self, count: int, plus: Tensor, minus: Tensor, log_plus: Tensor, log_minus: Tensor
    ) -> None:
        """`count` more vectors, of which the sums are known."""
        self.count += count
        self.positive += plus
        self.negative += minus
        self.log_positive += log_plus
        self.log_negative += log_minus

    def sums(self) -> LogSums:
        """The sums so far, with weights 1 / count."""
        n, plus, minus = self.count, self.positive.double(), self.negative.double()
        zero = n - plus - minus  # counts: exact
        return LogSums(plus / n, minus / n, zero / n, self.log_positive / n, self.log_negative / n)


@dataclass(frozen=True)
class WeightedGeometricMean(Elementwise):
    """The geometric means of the positive and of the negative entries, each by its share.

        P₊ exp(Σ_{i∈+} p_i log g_i / P₊) − P₋ exp(Σ_{i∈−} p_i log|g_i| / P₋),   P± = Σ_{i∈±} p_i

    and 0 where |Σ_i p_i sign g_i| < `agreement` (the released code's mask, at 0 without effect).
    With p_i = 1/E this is the formula of FedILC §3.1.

    zeros: `"skip"` leaves exact zeros out of both sets; `"paper"` puts them in both, so that one
    zero makes the coordinate 0; `"released"` puts them in the negative set and adds 1e-10 to
    every magnitude. Dead ReLUs and blank pixels give exact zeros, so the choice matters.
    of: whether rows are `"gradients"` or `"updates"` −g; only `zeros="released"`, which is not
    odd, tells the two apart.

    Source: Zhu et al. 2022, "FedILC: Weighted Geometric Mean and Invariant Gradient Covariance
    for Federated Learning on Non-IID Data", §3.1.

    >>> g = torch.tensor([[1.0, 1.0], [4.0, 0.0]])
    >>> [WeightedGeometricMean(zeros)(g, {}, {"prior": {}})[0].tolist()
    ...  for zeros in ("skip", "paper")]
    [[2.0, 0.5], [2.0, 0.0]]
    """

    zeros: Zeros = "skip"
    agreement: float = 0.0
    of: Literal["gradients", "updates"] = "gradients"
    prior: Weighted = Mean("uniform")

    def __post_init__(self) -> None:
        choice("WeightedGeometricMean(zeros)", self.zeros, ("skip", "paper", "released"))
        number("WeightedGeometricMean(agreement)", self.agreement, 0, 1)
        choice("WeightedGeometricMean(of)", self.of, ("gradients", "updates"))

    @property
    def floor(self) -> float:
        """What is added to every magnitude before the logarithm."""
        return RELEASED_FLOOR if self.zeros == "released" else 0.0

    def reduce(
        self, rows: Tensor, table: Table, state: RuleState, generator: torch.Generator | None
    ) -> tuple[Tensor, RuleState]:
        """The mean, in blocks of columns: one logarithm per entry, no K×P temporary."""
        counted = table["prior"] > 0  # a client of weight 0 must not veto a coordinate
        if not bool(counted.all()):
            rows = rows[counted.to(rows.device)]
        p = table["prior"][counted].to(rows)
        vector = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
        columns = max(
            64, COLUMNS // len(rows) // 64 * 64
        )  # of all rows: what is made stays in cache
        for block, u in column_blocks(rows, columns):
            vector[block] = self.mean(LogSums.of(u, p, self.floor, self.zeros != "skip"))
        return vector, state

    def mean(self, sums: LogSums) -> Tensor:
        """The mean of the vectors that went into the sums."""
        plus, minus = sums.positive, sums.negative
        log_plus, log_minus = sums.log_positive, sums.log_negative
        zero = sums.zero if sums.zero is not None else plus.new_zeros(())
        if self.zeros == "released" and self.of == "gradients":
            minus, log_minus = minus + zero, log_minus + zero * math.log(self.floor)
        elif self.zeros == "released":
            plus, log_plus = plus + zero, log_plus + zero * math.log(self.floor)
        mean = _part(plus, log_plus) - _part(minus, log_minus)
        if self.zeros == "paper":
            mean = torch.where(zero > 0, 0, mean)
        if self.agreement > 0:
            signs = (sums.positive - sums.negative).abs()
            mean = torch.where(signs >= self.agreement - ROUNDING, mean, 0)
        return mean


def _part(weight: Tensor, logs: Tensor) -> Tensor:
    """P exp(Σ p_i log|g_i| / P) with P = Σ p_i; 0 where nothing is inside and both sums are 0."""
    some = weight.clamp(min=torch.finfo(weight.dtype).tiny)
    return (logs / some).exp_().mul_(weight)


def _signs_and_logs(g: Tensor, floor: float) -> tuple[Tensor, Tensor, Tensor]:
    """1[g > 0], 1[g < 0] and log(|g| + floor), finite where g = 0; three times as fast as masks."""
    minus = g.sign()
    plus = minus.clamp(min=0)
    torch.sub(plus, minus, out=minus)
    logs = g.abs()
    # No number but 0 is below the least one; the logarithm of 0 takes ten times as long as others.
    least = torch.finfo(g.dtype).tiny * torch.finfo(g.dtype).eps
    logs = logs.add_(floor) if floor else logs.clamp_(min=least)
    return plus, minus, logs.log_()
