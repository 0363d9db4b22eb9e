"""The two rules of "Learning explanations that are hard to vary".

They are the AND-mask, and the geometric mean with absolute values.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from unseen.combine.geometric import RELEASED_FLOOR, ROUNDING
from unseen.combine.mean import Mean
from unseen.core import Draws, Elementwise, RuleState, Table, Weighted, WithState
from unseen.core.rows import column_blocks
from unseen.core.vector import Blocks
from unseen.ranges import Share, uniform


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
            for begin, end in state.get("blocks", [(0, len(vector))]):
                share = agree[begin:end].double().mean()
                vector[begin:end] /= torch.where(share > 0, share, 1).to(vector)
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
