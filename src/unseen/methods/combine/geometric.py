"""FedILC's weighted geometric mean of vectors, coordinate by coordinate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Literal

import torch
from torch import Tensor

from unseen.core import Draws, Elementwise, RuleState, Table, Weighted, WithState
from unseen.core.rows import COLUMNS, column_blocks
from unseen.errors import UnseenError
from unseen.methods.combine.mean import Mean
from unseen.ranges import Share, uniform

Zeros = Literal["skip", "paper", "released"]

#: What the released code adds to every magnitude before the logarithm.
RELEASED_FLOOR = 1e-10
#: Shares of signs are sums of rounded weights: five times 1/5 may fall short of an agreement of 1.
ROUNDING = 1e-6
#: The least normal number of each type, and the least one.
TINY = {t: torch.finfo(t).tiny for t in (torch.float32, torch.float64)}
LEAST = {t: tiny * torch.finfo(t).eps for t, tiny in TINY.items()}


@dataclass(frozen=True)
class LogSums:
    """All that a weighted geometric mean needs to know of vectors g_i with weights p_i, Σ p_i = 1.

    Attributes:
        weights: Σ p_i over the entries > 0, and over those < 0, of each coordinate [2, n].
        logs: Σ p_i log|g_i| over the same [2, n].
        zero: Σ p_i over the entries = 0 [n]; None where it is not needed.
        spare: memory to compute in [2, n], if there is some.
    """

    weights: Tensor
    logs: Tensor
    zero: Tensor | None
    spare: Tensor | None = None

    @classmethod
    def of(cls, vectors: Tensor, p: Tensor, floor: float = 0.0, zeros: bool = True) -> LogSums:
        """Return the sums over `vectors` [K, n] with weights p [K]."""
        return Work(vectors, vectors.shape[1]).sums(vectors, p, floor, zeros)


class Work:
    """Memory, and views of it, for the sums of blocks [K, n]: what a loop takes once.

    The sums live until the next ones.

    Args:
        like: a tensor [K, ...].
        n: columns of a block.
    """

    def __init__(self, like: Tensor, n: int) -> None:
        K = len(like)
        self.n, self.logs = n, like.new_empty(K, n)
        self.signs = like.new_empty(2, K, n)
        self.plus, self.minus = self.signs.unbind()
        weights, logs, spare = like.new_empty(3, 2, n).unbind()
        self.buffers = LogSums(weights, logs, None, spare)
        columns = [sign.t() for sign in self.signs]
        self.weights = list(zip(columns, self.buffers.weights, strict=True))
        self.sums_of_logs = list(zip(columns, self.buffers.logs, strict=True))

    def sums(self, vectors: Tensor, p: Tensor, floor: float, zeros: bool) -> LogSums:
        """Return the sums over `vectors` [K, n] with weights p [K]."""
        _signs_and_logs(vectors, floor, self.plus, self.minus, self.logs)
        for sign, weights in self.weights:
            torch.mv(sign, p, out=weights)
        zero = p @ (1 - self.plus - self.minus) if zeros else None
        self.signs.mul_(self.logs)
        for sign, logs in self.sums_of_logs:
            torch.mv(sign, p, out=logs)
        return replace(self.buffers, zero=zero) if zeros else self.buffers


class RunningLogSums:
    """`LogSums` of vectors of one weight that come one at a time, or never come into being."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.count = 0
        self.positive, self.negative = torch.zeros(2, size, device=device).unbind()
        logs = torch.zeros(2, size, dtype=torch.float64, device=device)
        self.log_positive, self.log_negative = logs.unbind()

    def add(self, vector: Tensor, floor: float = 0.0) -> None:
        """Add a vector [P], in blocks that stay in the cache."""
        self.count += 1
        for begin in range(0, len(vector), COLUMNS):
            block = slice(begin, begin + COLUMNS)
            plus, minus, logs = torch.empty_like(vector[block].expand(3, -1)).unbind()
            _signs_and_logs(vector[block], floor, plus, minus, logs)
            self.positive[block] += plus
            self.negative[block] += minus
            self.log_positive[block] += plus.mul_(logs)
            self.log_negative[block] += minus.mul_(logs)

    def add_sums(
        self, count: int, plus: Tensor, minus: Tensor, log_plus: Tensor, log_minus: Tensor
    ) -> None:
        """Add `count` vectors, of which the sums are known."""
        self.count += count
        self.positive += plus
        self.negative += minus
        self.log_positive += log_plus
        self.log_negative += log_minus

    def sums(self) -> LogSums:
        """Return the sums so far, with weights 1 / count."""
        n, plus, minus = self.count, self.positive.double(), self.negative.double()
        zero = n - plus - minus  # counts: exact
        logs = torch.stack([self.log_positive, self.log_negative])
        return LogSums(torch.stack([plus, minus]) / n, logs / n, zero / n)


@dataclass(frozen=True)
class WeightedGeometricMean(Elementwise):
    """The geometric means of the positive and of the negative entries, each by its share.

        P₊ exp(Σ_{i∈+} p_i log g_i / P₊) − P₋ exp(Σ_{i∈−} p_i log|g_i| / P₋),   P_± = Σ_{i∈±} p_i

    and 0 where |Σ_i p_i sign g_i| < `agreement`. With p_i = 1/E this is the formula of FedILC §3.1,
    (E₊/E) (Π_{g>0} g)^{1/E₊} − (E₋/E) (Π_{g<0} |g|)^{1/E₋}.

    Attributes:
        zeros: `"skip"` leaves exact zeros out of both sets; `"paper"` puts them in both, so that
            one zero makes the coordinate 0; `"released"` puts them in the negative set and adds
            1e-10 to every magnitude. Dead ReLUs and blank pixels give exact zeros, so the choice
            matters.
        agreement: the released code's sign threshold τ, 0 in all its commands and then without
            effect.
        of: whether rows are `"gradients"` or `"updates"` −g; only `zeros="released"`, which is not
            odd, tells the two apart.
        prior: p.
        compiled: one pass over all rows by torch.compile, for zeros "skip" and no agreement; twice
            as fast, other last digits, and it needs a C++ compiler for some ten seconds once.

    Note:
        The method is FedSGD, as released: each client sends its full-batch gradient, and the
        training's optimiser runs on the server.

    Source:
        Zhu et al. 2022, "FedILC: Weighted Geometric Mean and Invariant Gradient Covariance for
        Federated Learning on Non-IID Data", §3.1.

    Departs from:
        the paper and the released code in exact zeros, which are left out of both sets: see
        `zeros`.

    Example:
        >>> g = torch.tensor([[1.0, 1.0], [4.0, 0.0]])
        >>> [WeightedGeometricMean(zeros)(g, {}, {"prior": {}})[0].tolist()
        ...  for zeros in ("skip", "paper")]
        [[2.0, 0.5], [2.0, 0.0]]
    """

    zeros: Zeros = "skip"
    agreement: Annotated[Share, uniform(0, 0.8)] = 0.0
    of: Literal["gradients", "updates"] = "gradients"
    prior: Weighted = Mean("uniform")
    compiled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compiled and (self.zeros != "skip" or self.agreement > 0):
            raise UnseenError(
                "compiled=True is for zeros='skip' and agreement=0; found "
                f"zeros={self.zeros!r} and agreement={self.agreement!r}.",
                remedy="Leave it out.",
            )

    @property
    def floor(self) -> float:
        """What is added to every magnitude before the logarithm."""
        return RELEASED_FLOOR if self.zeros == "released" else 0.0

    def reduce(self, rows: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        """Return the mean, in blocks of columns: one logarithm per entry, no K×P temporary."""
        counted = table["prior"] > 0  # a client of weight 0 must not veto a coordinate
        if not bool(counted.all()):
            rows = rows[counted.to(rows.device)]
        p = table["prior"][counted].to(rows)
        if self.compiled:
            return one_pass(rows, p), state
        vector = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
        columns = max(64, COLUMNS // len(rows) // 64 * 64)
        work = Work(rows, columns)  # of all rows together it stays in cache
        for block, u in column_blocks(rows, columns):
            memory = work if u.shape[1] == columns else Work(rows, u.shape[1])
            sums = memory.sums(u, p, self.floor, self.zeros != "skip")
            self.mean(sums, vector[block])
        return vector, state

    def mean(self, sums: LogSums, out: Tensor | None = None) -> Tensor:
        """Return the mean of the vectors that went into the sums."""
        weights, logs = sums.weights, sums.logs
        zero = sums.zero
        if self.zeros == "released" and zero is not None:
            there = torch.tensor([self.of == "updates", self.of == "gradients"]).to(weights)
            zeros = there.unsqueeze(1) * zero
            weights, logs = weights + zeros, logs + zeros * math.log(self.floor)
        # P exp(Σ p_i log|g_i| / P); 0 where nothing is inside and both sums are 0.
        some = torch.clamp(weights, min=TINY[weights.dtype], out=sums.spare)
        positive, negative = torch.div(logs, some, out=some).exp_().mul_(weights).unbind()
        mean = torch.sub(positive, negative, out=out)
        if self.zeros == "paper" and zero is not None:
            mean.masked_fill_(zero > 0, 0)
        if self.agreement > 0:
            signs = (sums.weights[0] - sums.weights[1]).abs()
            mean.masked_fill_(signs < self.agreement - ROUNDING, 0)
        return mean


def one_pass(rows: Tensor, p: Tensor) -> Tensor:
    """Return the mean of `rows` [K, P] with weights p [K] by one compiled loop, zeros left out."""
    try:
        return _compiled()(rows.unbind(), p.unbind())
    except Exception as error:  # what is missing differs from system to system
        raise UnseenError(
            "compiled=True needs a C++ compiler that torch.compile finds, and it failed: "
            f"{str(error).splitlines()[0]}.",
            remedy="Leave it out.",
        ) from error


@cache
def _compiled() -> Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]:
    # torch's cache of graphs does not ask which vector unit a loop was written for, and gives
    # wrong numbers on another; what the C++ compiler made is looked up by its flags too.
    return torch.compile(unrolled, dynamic=False, options={"fx_graph_cache": False})


def unrolled(rows: Sequence[Tensor], p: Sequence[Tensor]) -> Tensor:
    """Return the mean of rows [P] with weights, row by row, for a compiler to make one loop of."""
    zero = torch.zeros((), dtype=rows[0].dtype, device=rows[0].device)
    plus, minus, log_plus, log_minus = zero, zero, zero, zero
    for g, weight in zip(rows, p, strict=True):
        log = weight * g.abs().clamp(min=LEAST[g.dtype]).log()
        plus = plus + torch.where(g > 0, weight, zero)
        minus = minus + torch.where(g < 0, weight, zero)
        log_plus = log_plus + torch.where(g > 0, log, zero)
        log_minus = log_minus + torch.where(g < 0, log, zero)
    tiny = TINY[rows[0].dtype]
    positive = plus * (log_plus / plus.clamp(min=tiny)).exp()
    return positive - minus * (log_minus / minus.clamp(min=tiny)).exp()


def _signs_and_logs(g: Tensor, floor: float, plus: Tensor, minus: Tensor, logs: Tensor) -> None:
    """Write 1[g > 0], 1[g < 0] and log(|g| + floor), finite where g = 0.

    Note:
        Signs as numbers, and of a copy with its rows side by side, take a third of the time of
        masks.
    """
    logs.copy_(g)
    torch.gt(logs, 0, out=plus)
    torch.lt(logs, 0, out=minus)
    # No number but 0 is below the least one; the logarithm of 0 takes ten times as long as others.
    magnitude = logs.abs_().add_(floor) if floor else logs.abs_().clamp_(min=LEAST[g.dtype])
    magnitude.log_()
