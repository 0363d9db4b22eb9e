"""TorchJD's weightings as server rules; all but `nash-mtl` need the extra `torchjd`."""

import math
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from unseen.core import Draws, Gram, Layout, RuleState, Table, Weighted, WithState
from unseen.core.vector import Blocks
from unseen.errors import optional
from unseen.methods.combine.mean import Mean
from unseen.ranges import NotNegative, uniform

Weighting = Literal["upgrad", "mgda", "cagrad", "nash-mtl"]
#: Weighting -> what TorchJD calls it; `nash-mtl` is computed here, without TorchJD.
CLASSES = {"upgrad": "UPGrad", "mgda": "MGDA", "cagrad": "CAGrad"}


@dataclass(frozen=True)
class JacobianDescent(Gram):
    """Σ_i d_i w_i u_i with w from one of TorchJD's weightings on <d_i u_i, d_j u_j>, d_i = K p_i.

    Attributes:
        weighting: `upgrad` (each row projected on the dual cone of all; Quinton and Rey 2024),
            `mgda` (the point of the hull nearest to 0; Désidéri 2012, Frank-Wolfe), `cagrad` (Liu
            et al. 2021), `nash-mtl` (Navon et al. 2022).
        c: of `cagrad`.
        scale: `"mean"` divides by what K equal updates would be multiplied with, so that they give
            that update and the step is as long as the other rules': 1 + c for `cagrad`, K for
            `nash-mtl`, which follows a sum, and 1 for the others, which follow a mean; `"torchjd"`
            leaves that.
        prior: p, as the weight of client i's objective: uniform leaves d_i = 1. The direction of
            `nash-mtl` does not feel p, except that clients of weight 0 are left out.
        blocks: inner products of the whole vector, or per module or tensor.

    Note:
        The inner products are divided by their mean norm first, since TorchJD takes a matrix of
        norm below 0.01 for 0. `nash-mtl` is `unseen.methods.combine.nash.bargain` on inner products
        of Frobenius norm 1: TorchJD's solver fails
        where the sum of the updates conflicts with one of them and returns its start, the plain
        mean. Where all updates are 0 the weights are the prior's. They are so, too, where a solver
        fails: the state counts such calls as `fallbacks`, and a study prints their number.

    Example:
        >>> g = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
        >>> rule = JacobianDescent("mgda")
        >>> rule(g, {}, rule.init(2, 2))[0]  # doctest: +SKIP
        tensor([0.2000, 0.4000])
    """

    solves: ClassVar[bool] = True

    weighting: Weighting = "upgrad"
    c: Annotated[NotNegative, uniform(0.1, 0.9)] = 0.5
    scale: Literal["mean", "torchjd"] = "mean"
    prior: Weighted = Mean("uniform")
    blocks: Blocks = "whole"

    def own_state(self, K: int, P: int, layout: Layout | None) -> RuleState:
        """Return the number of fallbacks; refuse a missing TorchJD before the first round."""
        if self.weighting in CLASSES:
            library()
        return {"fallbacks": 0}

    def mix(self, gram: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        p = table["prior"]
        present = p > 0
        d = p[present] / p[present].mean()
        inner = gram[present][:, present] * d[:, None] * d
        size = inner.diagonal().mean()
        if float(size) == 0:
            return p, state
        w = self._weights(inner / size)
        if w is None or not bool(w.isfinite().all()):
            return p, {**state, "fallbacks": state["fallbacks"] + 1}
        weights = torch.zeros_like(p)
        weights[present] = w * d
        return weights, state

    def _weights(self, inner: Tensor) -> Tensor | None:
        """Return the weights for inner products of mean norm 1; none where a solver fails."""
        equal = {"cagrad": 1 + self.c, "nash-mtl": float(len(inner))}.get(self.weighting, 1.0)
        w = bargain(inner / inner.norm()) if self.weighting == "nash-mtl" else self._solved(inner)
        return None if w is None else w / (equal if self.scale == "mean" else 1.0)

    def _solved(self, inner: Tensor) -> Tensor | None:
        options = {"c": self.c} if self.weighting == "cagrad" else {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kind = getattr(library(), f"{CLASSES[self.weighting]}Weighting")
                w: Tensor = kind(**options)(inner)
        except (ValueError, ArithmeticError, RuntimeError):
            return None
        return w


def library() -> Any:
    """Return `torchjd.aggregation`.

    Raises:
        UnseenError: TorchJD or a solver that it needs is not installed; the text names the extra.
    """
    needs = ("this rule needs", "torchjd", "take nash-mtl or pcgrad, which need nothing more")
    *_, aggregation = (optional(n, *needs) for n in ("cvxpy", "quadprog", "torchjd.aggregation"))
    return aggregation


STEPS = 500
#: Newton's decrement below which full steps are taken, each of which squares it.
NEAR = 0.25
#: The decrement below which one more step squares it to less than rounding.
FLAT = 1e-8
#: Weights, of updates of length 1, from which on the length of their sum is unknown: it is √K, and
#: its square has the error of an inner product, up to 1e-9 under encryption, times such a square.
UNBOUNDED = 1e4


def bargain(gram: Tensor) -> Tensor | None:
    """Return the weights a [K] > 0 with Σ_j G_ij a_j = 1/a_i, for inner products G [K, K].

    Returns:
        The weights, or None where they do not exist: some mean of the updates vanishes, and nothing
        is left to bargain for.

    Note:
        They minimise ½ aᵀGa − Σ_i log a_i, which is convex and self-concordant, so that Newton's
        method with steps shortened by 1 + (its decrement) finds them from anywhere. An update of
        length 0 has the weight 0.

    Source:
        Navon et al. 2022, "Multi-Task Learning as a Bargaining Game", Eq. 3; the shortened step:
        Boyd and Vandenberghe 2004, "Convex Optimization", section 9.6.

    Example:
        >>> bargain(torch.tensor([[1.0, 0.0], [0.0, 4.0]]).double()).tolist()
        [1.0, 0.5]
    """
    length = gram.diagonal().clamp_min(0).sqrt()
    moves = length > 0
    cosine = (gram / (length * length[:, None]))[moves][:, moves]
    b, last = torch.ones_like(length[moves]), math.inf
    for _ in range(STEPS):
        slope = cosine @ b - 1 / b
        factor, failed = torch.linalg.cholesky_ex(cosine + (1 / b.square()).diag())
        if bool(failed) or float(b.max()) > UNBOUNDED:
            return None
        step = torch.cholesky_solve(slope[:, None], factor)[:, 0]
        decrement = float((slope @ step).clamp_min(0).sqrt())
        b = b - (step / (1 + decrement) if decrement > NEAR else step)
        if decrement < FLAT or last <= decrement < NEAR:  # rounding is reached
            weights = torch.zeros_like(length)
            weights[moves] = b / length[moves]
            return weights
        last = decrement
    return None
