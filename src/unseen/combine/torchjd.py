"""TorchJD's weightings as server rules; all but `OWN` need the extra `torchjd`."""

import warnings
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from unseen.combine.mean import Mean
from unseen.combine.nash import bargain
from unseen.core import Draws, Gram, Layout, RuleState, Table, Weighted, WithState
from unseen.core.rule import drawing
from unseen.core.vector import Blocks
from unseen.errors import UnseenError, optional
from unseen.ranges import NotNegative, Positive, log, uniform

Weighting = Literal[
    "upgrad", "mgda", "cagrad", "nash-mtl", "dualproj", "imtl-g", "aligned-mtl", "fairgrad",
    "config", "random",
]  # fmt: skip
#: Those that are computed here, without TorchJD.
OWN = ("nash-mtl", "imtl-g", "aligned-mtl", "config", "random")
#: Weighting -> what TorchJD calls it.
CLASSES = {
    "upgrad": "UPGrad", "mgda": "MGDA", "cagrad": "CAGrad", "dualproj": "DualProj",
    "fairgrad": "FairGrad",
}  # fmt: skip
_REMEMBERS = (
    "remembers one task after the other from call to call, and clients come and go between rounds"
)
_TWICE = "needs two independent updates of every client, and a round has one"
#: What else TorchJD 0.18 has, in lower case -> why it is not a weighting here, and what to take.
ELSEWHERE = {
    "pcgrad": ("is a rule of its own", "Take the method pcgrad."),
    "krum": ("is a rule of its own", "Take the method krum."),
    "trimmedmean": ("is a rule of its own", "Take the method trimmed-mean."),
    "graddrop": ("needs every coordinate, not inner products alone", "Take the method graddrop."),
    "mean": ("is fedavg", "Take fedavg(weights='uniform')."),
    "sum": ("is fedavg with a longer step", "Take fedavg and its server's learning rate."),
    "constant": ("is fedavg with weights of yours", "Take fedavg, or a rule of your own."),
    "excessmtl": (f"{_REMEMBERS}; it also keeps a square of every update", "Take afl or groupdro."),
    "gradvac": (_REMEMBERS, "Take pcgrad, which aims at a cosine of 0."),
    "pcd": (f"{_REMEMBERS}; it also calls one of them the first", "Take upgrad."),
    "crmogm": (_REMEMBERS, "Take fedavgm, whose server has momentum."),
    "modo": (_TWICE, "Take mgda."),
    "sdmgrad": (_TWICE, "Take cagrad."),
}
#: |Σ w_i| below this share of Σ |w_i| is rounding.
UNSUMMED = 1e-12
#: FairGrad's solver has failed where (G w)_i w_i^(1/alpha), which should be 1, is off by this.
UNSOLVED = 1.0


@dataclass(frozen=True)
class JacobianDescent(Gram):
    """Σ_i d_i w_i u_i with w from one of TorchJD's weightings on <d_i u_i, d_j u_j>, d_i = K p_i.

    Attributes:
        weighting: `upgrad` (each row projected on the dual cone of all; Quinton and Rey 2024),
            `mgda` (the point of the hull nearest to 0; Désidéri 2012, Frank-Wolfe), `cagrad` (Liu
            et al. 2021), `nash-mtl` (Navon et al. 2022), `dualproj` (the mean projected), `imtl-g`
            (equal projections on all rows), `aligned-mtl` (principal axes balanced), `fairgrad`
            (Σ_j <u_i, u_j> w_j = w_i^(−1/alpha); Ban and Ji 2024), `config` (the direction with one
            cosine to all, as long as all updates along it; Liu et al. 2024), `random` (softmax of
            normal draws; Lin et al. 2021).
        c: of `cagrad`.
        scale: `"mean"` divides by what K equal updates would be multiplied with, so that they give
            that update and the step is as long as the other rules': 1 + c for `cagrad`, K for
            `nash-mtl`, `fairgrad` and `config`, which follow a sum, and 1 for the others, which
            follow a mean; `"torchjd"` leaves that.
        prior: p, as the weight of client i's objective: uniform leaves d_i = 1. The directions
            of `nash-mtl`, `imtl-g`, `fairgrad` and `config` do not feel p, except that clients of
            weight 0 are left out.
        blocks: inner products of the whole vector, or per module or tensor.
        alpha: of `fairgrad`: 1 is `nash-mtl` by another solver, more serves the worst served.

    Note:
        The inner products are divided by their mean norm first, since TorchJD takes a matrix of
        norm below 0.01 for 0. `imtl-g`, `aligned-mtl`, `config` and `random` are computed without
        TorchJD; the first three leave out the directions of `principal`. `nash-mtl` is
        `unseen.combine.nash.bargain` on inner products of Frobenius norm 1: TorchJD's solver fails
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
    alpha: Annotated[Positive, log(0.5, 5)] = 2.0

    def __post_init__(self) -> None:
        name = self.weighting.lower().replace("-", "").replace("_", "")
        if name in ELSEWHERE:
            why, instead = ELSEWHERE[name]
            what = f"{self.weighting} is not a weighting here: it {why}."
            raise UnseenError(what, remedy=instead)
        super().__post_init__()

    def own_state(self, K: int, P: int, layout: Layout | None) -> RuleState:
        """Return the number of fallbacks; refuse a missing TorchJD before the first round."""
        if self.weighting not in OWN:
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
        w = self._weights(inner / size, generator)
        if w is None or not bool(w.isfinite().all()):
            return p, {**state, "fallbacks": state["fallbacks"] + 1}
        weights = torch.zeros_like(p)
        weights[present] = w * d
        return weights, state

    def _weights(self, inner: Tensor, generator: Draws) -> Tensor | None:
        """Return the weights for inner products of mean norm 1; none where a solver fails."""
        K = len(inner)
        sums = dict.fromkeys(("nash-mtl", "fairgrad", "config"), float(K))
        equal = {"cagrad": 1 + self.c, **sums}.get(self.weighting, 1.0)
        equal = equal if self.scale == "mean" else 1.0
        w = self._raw(inner, generator)
        return None if w is None else w / equal

    def _raw(self, inner: Tensor, generator: Draws) -> Tensor | None:
        if self.weighting == "nash-mtl":
            return bargain(inner / inner.norm())
        solvers = {"config": conflict_free, "imtl-g": impartial, "aligned-mtl": aligned}
        if self.weighting in solvers:
            return solvers[self.weighting](inner)
        if self.weighting == "random":
            return torch.randn(len(inner), generator=drawing(generator)).to(inner).softmax(0)
        options = {"cagrad": {"c": self.c}, "fairgrad": {"alpha": self.alpha}}
        # The weights of fairgrad, like those of nash-mtl, are one over a length.
        scaled = inner / inner.norm() if self.weighting == "fairgrad" else inner
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kind = getattr(library(), f"{CLASSES[self.weighting]}Weighting")
                w: Tensor = kind(**options.get(self.weighting, {}))(scaled)
        except (ValueError, ArithmeticError, RuntimeError):
            return None
        return None if self.weighting == "fairgrad" and self._unsolved(scaled, w) else w

    def _unsolved(self, inner: Tensor, w: Tensor) -> bool:
        """Return whether fairgrad's w are no solution, as where some mean of the updates is 0."""
        return not bool(((inner @ w) * w ** (1 / self.alpha) - 1).abs().max() < UNSOLVED)


def conflict_free(inner: Tensor) -> Tensor | None:
    """Return ConFIG's weights of updates with these inner products [K, K].

        v = U⁺ 1,   d = v/‖v‖ Σ_i <u_i, v/‖v‖>,   U the updates at unit length

    Returns:
        None where v vanishes, as where updates are opposite: no direction is left.

    Source:
        Liu, Chu, Thuerey 2024, "ConFIG: Towards Conflict-free Training of Physics Informed Neural
        Networks", Eq. 2.
    """
    length = inner.diagonal().clamp_min(0).sqrt()
    over = torch.where(length > 0, 1 / length.clamp_min(torch.finfo(inner.dtype).tiny), 0)
    values, vectors = principal(inner * over * over[:, None])
    w = over * (vectors @ ((vectors.T @ (length > 0).to(inner)) / values))
    size = w @ inner @ w
    if not bool(size > 0):
        return None
    along: Tensor = w * (inner @ w).sum() / size
    return along


def impartial(inner: Tensor) -> Tensor | None:
    """Return IMTL-G's weights of updates with these inner products [K, K]: w ∝ G⁺ (‖u_i‖)_i.

    Returns:
        None where the weights would sum to 0.

    Source:
        Liu et al. 2021, "Towards Impartial Multi-task Learning"; for linearly dependent updates as
        in Quinton and Rey 2024, "Jacobian Descent for Multi-Objective Optimization".
    """
    length = inner.diagonal().clamp_min(0).sqrt()
    values, vectors = principal(inner)
    w = vectors @ ((vectors.T @ length) / values)
    total = w.sum()
    return w / total if float(total.abs()) > UNSUMMED * float(w.abs().sum()) else None


def aligned(inner: Tensor) -> Tensor:
    """Return Aligned-MTL's weights of updates with these inner products [K, K].

        w = √λ_min G^(−½) 1/K,   λ_min the smallest eigenvalue of G that is not 0

    Source:
        Senushkin et al. 2023, "Independent Component Alignment for Multi-Task Learning",
        Algorithm 1.
    """
    values, vectors = principal(inner)
    return vectors @ ((values.min() / values).sqrt() * vectors.mean(0))


def principal(inner: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues [r] and eigenvectors [K, r] of inner products that are not rounding.

    Updates are float32, so that the smaller eigenvalues of their K inner products, summed exactly,
    are nothing from K · eps of the largest on, which is where TorchJD stops too for such updates.
    The inner products themselves are finer than that, in the clear and under encryption.
    """
    values, vectors = torch.linalg.eigh(inner)
    significant = values > values.max() * len(inner) * torch.finfo(torch.float32).eps
    return values[significant], vectors[:, significant]


def library() -> Any:
    """Return `torchjd.aggregation`.

    Raises:
        UnseenError: TorchJD or a solver that it needs is not installed; the text names the extra.
    """
    needs = ("this rule needs", "torchjd", "take nash-mtl or pcgrad, which need nothing more")
    *_, aggregation = (optional(n, *needs) for n in ("cvxpy", "quadprog", "torchjd.aggregation"))
    return aggregation
