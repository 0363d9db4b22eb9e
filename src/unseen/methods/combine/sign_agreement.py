"""Rules that keep or weigh coordinates by how well the clients' signs agree.

AgrSum and AgrRand, the AND-mask and its geometric mean of absolute values, FedGMA, SAND-mask.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from unseen.core import Draws, Elementwise, RuleState, Table, Weighted, WithState
from unseen.core.rows import column_blocks
from unseen.core.rule import drawing
from unseen.core.vector import Blocks
from unseen.methods.combine.geometric import RELEASED_FLOOR, ROUNDING
from unseen.methods.combine.mean import Mean
from unseen.ranges import Positive, Share, log, uniform

Reduction = Literal["sum", "mean"]


@dataclass(frozen=True)
class AgrSum(Elementwise):
    """The mean of the coordinates on whose sign all clients agree, 0 elsewhere.

        x_d ← x_d + Σ_i p_i g_id  where |Σ_i sign g_id| = K

    Attributes:
        reduction: `"mean"` as above, so that the step is as long as the other rules'; `"sum"` is K
            times that, as released and in the name. PPDG does not say which it used.
        prior: p.

    Note:
        No agreeing coordinate gives zeros.

    Source:
        Mansilla et al. 2021, "Domain Generalization via Gradient Surgery", Eq. 4.

    Departs from:
        the paper in that agreeing coordinates are averaged, where it sums them (`reduction="sum"`),
        and that g_i is an update of local training, where it has a gradient of one batch.

    Example:
        >>> g = torch.tensor([[1.0, 2.0, 0.0], [3.0, -1.0, 1.0]])
        >>> rule = AgrSum()
        >>> rule(g, {}, rule.init(2, 3))[0]
        tensor([2., 0., 0.])
    """

    reduction: Reduction = "mean"
    prior: Weighted = Mean("uniform")

    def reduce(self, rows: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        return agreeing(rows, table["prior"], self.reduction)[0], state


@dataclass(frozen=True)
class AgrRand(AgrSum):
    """AgrSum with Gaussian noise N(0, s²) where signs disagree.

    s is the mean absolute value of the agreeing coordinates, over the whole vector.

    Attributes:
        reduction: see `AgrSum`.
        prior: p.

    Source:
        Mansilla et al. 2021, "Domain Generalization via Gradient Surgery", §3.2.

    Departs from:
        the paper as `agrsum` does, and the released code where no coordinate agrees: there s is the
        mean of an empty set and every coordinate NaN, here the vector is 0 and the model stays as
        it is.
    """

    def reduce(self, rows: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        vector, agree = agreeing(rows, table["prior"], self.reduction)
        count = int(agree.sum())
        if count in (0, len(vector)):
            return vector, state
        scale = float(vector.abs().sum(dtype=torch.float64)) / count
        noise = torch.randn(len(vector), generator=drawing(generator), dtype=vector.dtype)
        return torch.where(agree, vector, noise.to(vector.device) * scale), state


def agreeing(rows: Tensor, prior: Tensor, reduction: Reduction) -> tuple[Tensor, Tensor]:
    """Return the combination on agreeing coordinates, zeros elsewhere [P], and which agree [P]."""
    scale = len(rows) if reduction == "sum" else 1
    weights = (prior * scale).to(rows)
    vector = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
    agree = torch.empty(rows.shape[1], dtype=torch.bool, device=rows.device)
    for block, u in column_blocks(rows):
        agree[block] = (u > 0).all(0) | (u < 0).all(0)
        vector[block] = torch.where(agree[block], weights @ u, 0)
    return vector, agree


@dataclass(frozen=True)
class AndMask(Elementwise):
    """The mean of the coordinates on whose sign enough clients agree, 0 elsewhere.

        x_d ← x_d + Σ_i p_i g_id  where |Σ_i p_i sign g_id| ≥ τ

    g_i: the update of client i.

    Attributes:
        agreement: τ. 1 is AgrSum: a single zero or dissenter masks; 0 is the mean. 0.5 asks for
            three quarters of the weight, the lower end of DomainBed's search: at 1 FedILC sees
            "dead zones" that no gradient leaves. The authors' commands take 1 (synthetic) and 0.2
            (CIFAR-10 with noise).
        rescale: divide each block by the share of coordinates that it kept; off, since one
            coordinate kept of a thousand would be taken a thousand times.
        prior: p; the paper's weights are uniform.
        blocks: what `rescale` divides by itself, a tensor as released.

    Note:
        A share (1 + τ)/2 of the weight must point one way; an exact zero counts for neither side.

    Source:
        Parascandolo et al. 2021, "Learning explanations that are hard to vary", whose environments
        are the clients here.

    Departs from:
        the paper in that g_i is an update of local training, where it has the environments'
        gradients at one model, which is `fedsgd+andmask`; and the authors' commands, which rescale.

    Example:
        >>> g = torch.tensor([[1.0, 2.0, 0.0], [3.0, -1.0, 1.0]])
        >>> rule = AndMask()
        >>> rule(g, {}, rule.init(2, 3))[0]
        tensor([2.0000, 0.0000, 0.5000])
    """

    agreement: Annotated[Share, uniform(0, 1)] = 0.5
    rescale: bool = False
    prior: Weighted = Mean("uniform")
    blocks: Blocks = "whole"

    def reduce(self, rows: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        p = table["prior"].to(rows)
        vector = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
        agree = torch.empty(rows.shape[1], dtype=torch.bool, device=rows.device)
        for block, u in column_blocks(rows):
            agree[block] = (p @ u.sign()).abs() >= self.agreement - ROUNDING
            vector[block] = torch.where(agree[block], p @ u, 0)
        if self.rescale:
            rescaled(vector, agree, state)
        return vector, state


@dataclass(frozen=True)
class AbsoluteGeometricMean(Elementwise):
    """The geometric mean of absolute values, with the sign of the arithmetic mean.

        sign(Σ_i p_i g_i) · exp(Σ_i p_i log|g_i|),   0 where |Σ_i p_i sign g_i| < `agreement`

    Attributes:
        agreement: the sign threshold τ, see `AndMask`.
        zeros: `"paper"`, one zero makes the coordinate 0, or `"released"`, 1e-10 is added to every
            magnitude, so that a zero among K equal numbers g leaves about 1e-10^(1/K) g^(1−1/K);
            the first is the default because it does not depend on the scale of the updates.
        prior: p; the released code has 1/K.

    Note:
        The magnitudes meet as if all signs were one, and the arithmetic mean lends its sign: this
        is what FedILC §3.1 argues against, see `WeightedGeometricMean`. Clients of weight 0 do not
        count. The method is FedSGD, as there: each client sends its full-batch gradient, and the
        training's optimiser runs on the server.

    Source:
        Parascandolo et al. 2021, "Learning explanations that are hard to vary", and their released
        code (`geom_mean`).

    Departs from:
        the released code in exact zeros, to which it adds 1e-10 as to all magnitudes
        (`zeros="released"`).

    Example:
        >>> g = torch.tensor([[1.0, -1.0, 0.0], [4.0, 4.0, 1.0]])
        >>> rule = AbsoluteGeometricMean()
        >>> rule(g, {}, rule.init(2, 3))[0]
        tensor([2., 2., 0.])
    """

    agreement: Annotated[Share, uniform(0, 1)] = 0.0
    zeros: Literal["paper", "released"] = "paper"
    prior: Weighted = Mean("uniform")

    def reduce(self, rows: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        counted = table["prior"] > 0
        if not bool(counted.all()):
            rows = rows[counted.to(rows.device)]
        p = table["prior"][counted].to(rows)
        floor = RELEASED_FLOOR if self.zeros == "released" else 0.0
        vector = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
        for block, u in column_blocks(rows):
            # log 0 = -inf, and exp(-inf) = 0: no finite row can lift it again.
            size = (p @ (u.abs() + floor).log_()).exp_()
            vector[block] = (p @ u).sign() * size
            if self.agreement > 0:
                agree = (p @ u.sign()).abs() >= self.agreement - ROUNDING
                vector[block] = torch.where(agree, vector[block], 0)
        return vector, state


@dataclass(frozen=True)
class GradientMasked(Elementwise, named="fedgma"):
    """The mean of the updates, each coordinate times the agreement of signs where that is small.

        x_d ← x_d + m_d Σ_i p_i u_id,   m_d = 1 where A_d ≥ τ, else A_d,   A_d = |Σ_i p_i sign u_id|

    u_i: the update of client i.

    Attributes:
        agreement: τ; 0 is the mean, 1 weighs every coordinate by its agreement. The paper tunes it
            for each data set.
        prior: p, in A and in the mean.

    Note:
        `training.server` is the paper's step on the server, as in
        `training.server = "sgd(lr=1.0, momentum=0.9)"`.

    Source:
        Tenison et al. 2023, "Gradient Masked Averaging for Federated Learning".

    Departs from:
        the FedDG benchmark's code, whose agreement counts all clients alike, and whose step on the
        server is τ too. No code of the authors is known to us.

    Example:
        >>> u = torch.tensor([[1.0, 2.0], [3.0, 4.0], [2.0, -3.0]])
        >>> rule = GradientMasked(prior=Mean("uniform"))
        >>> rule(u, {}, rule.init(3, 2))[0]
        tensor([2.0000, 0.3333])
    """

    agreement: Annotated[Share, uniform(0, 1)] = 0.4
    prior: Weighted = Mean("examples")

    def reduce(self, rows: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        p = table["prior"].to(rows)
        vector = rows.new_empty(rows.shape[1])
        for block, u in column_blocks(rows):
            agree = (p @ u.sign()).abs()
            vector[block] = torch.where(agree >= self.agreement - ROUNDING, 1, agree) * (p @ u)
        return vector, state


@dataclass(frozen=True)
class SandMask(Elementwise, named="sand-mask"):
    """The mean of the updates, each coordinate times how far signs and sizes agree.

        x_d ← x_d + m_d Σ_i p_i u_id / M,   m_d = max(0, tanh((k / σ_d²) (A_d − τ)))

    A_d = |Σ_i p_i sign u_id|; σ_d²: the variance of u_id over the clients; M: the mean of m over
    the tensor, or 1.

    Attributes:
        agreement: τ; DomainBed's default 1 leaves nothing, since A_d is at most 1; it searches
            from 0 to 1.
        steepness: k; DomainBed's default is 10. A large k is the AND-mask. The unit is that of the
            squared updates.
        rescale: divide each block by M, as released; off here, as in `andmask`.
        prior: p; the paper's are uniform.
        blocks: what `rescale` divides by itself, a tensor as released.

    Note:
        Where all clients agree exactly, σ² is 0 and m_d is 1, as long as A_d is above τ. The
        original has the environments' gradients at one model, which is `fedsgd+sand-mask`.

    Source:
        Shahtalebi et al. 2021, "SAND-mask: An Enhanced Gradient Masking Strategy for the Discovery
        of Invariances in Domain Generalization"; its released code, which is in DomainBed.

    Departs from:
        the released code in that σ² is divided by K, not K − 1, which is a matter of k, and does
        not exist there for one client.

    Example:
        >>> u = torch.tensor([[1.0, 2.0], [1.0, -1.0]])
        >>> rule = SandMask()
        >>> rule(u, {}, rule.init(2, 2))[0]
        tensor([1., 0.])
    """

    agreement: Annotated[Share, uniform(0, 1)] = 0.5
    steepness: Annotated[Positive, log(0.001, 100000)] = 10.0
    rescale: bool = False
    prior: Weighted = Mean("uniform")
    blocks: Blocks = "whole"

    def reduce(self, rows: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        p = table["prior"].to(rows)
        vector, mask = rows.new_empty(rows.shape[1]), rows.new_empty(rows.shape[1])
        for block, u in column_blocks(rows):
            mean = p @ u
            above = ((p @ u.sign()).abs() - self.agreement).clamp(min=0)
            # σ² = 0 gives infinity, whose tanh is 1.
            ratio = self.steepness * above / (p @ (u - mean).square())
            mask[block] = torch.where(above > ROUNDING, ratio.tanh(), 0)
            vector[block] = mask[block] * mean
        if self.rescale:
            rescaled(vector, mask, state)
        return vector, state


def rescaled(vector: Tensor, mask: Tensor, state: RuleState) -> None:
    """Divide each block of a vector [P] by the mean of its mask [P], where that is not 0."""
    for begin, end in state.get("blocks", [(0, len(vector))]):
        share = mask[begin:end].double().mean()
        vector[begin:end] /= torch.where(share > 0, share, 1).to(vector)
