"""CSAC's data-free semantic aggregation: layer by layer, weights by distance from the average."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from unseen.core import Combine, Draws, Rows, RuleState, Table, Weighted, WithState
from unseen.core.rows import column_blocks, gram
from unseen.core.rule import Combined, Sees
from unseen.core.vector import Blocks
from unseen.errors import UnseenError
from unseen.methods.combine.mean import Mean


@dataclass(frozen=True)
class SemanticDivergence(Combine):
    """A mean of each layer whose weights grow with a layer's distance from the average.

        M_l = Σ_i c_il w_il,   c_il ∝ p_i dist(w_il, w̄_l) for every layer l,   w̄ = (1/H) Σ_i w_i

    Where all distances are 0, c = p.

    Attributes:
        distance: `l2`, from the inner products of the updates u_i = w_i − x alone (‖u_i − ū‖² is an
            entry of C G C, C = I − 11ᵀ/H); `l1` and `cosine` (1 − cos, of weights, so that the rows
            must know their `reference` x) read every coordinate, so this is not a `Gram` rule,
            although l2 is enough for `weights(gram, ...)`.
        favour: `divergent` as printed; `similar`, c ∝ p / dist, for which the paper gives no
            formula (those at distance 0 share the whole weight); `uniform`, c = p, which sees
            nothing.
        blocks: what a layer is: a tensor as in the released code, a module or the whole vector.
        prior: p; the paper has 1/H.

    Source:
        Yuan et al., "Collaborative Semantic Aggregation and Calibration for Separated Domain
        Generalization", 2021, Eqs. 3-4.

    Departs from:
        the released code, which writes the last client's tensor over the sum where a weight is
        exactly 0, returns that tensor where all are, and takes the cosine itself, not 1 − cos, for
        a distance.

    Example:
        >>> rule = SemanticDivergence(blocks="whole")
        >>> u = torch.tensor([[1.0, 0.0], [1.0, 0.0], [4.0, 0.0]])  # distances 1, 1, 2 from (2, 0)
        >>> rule(u, {}, rule.init(3, 2))[2]
        tensor([0.2500, 0.2500, 0.5000], dtype=torch.float64)
    """

    distance: Literal["l2", "l1", "cosine"] = "l2"
    favour: Literal["divergent", "similar", "uniform"] = "divergent"
    blocks: Blocks = "tensor"
    prior: Weighted = Mean("uniform")

    #: Distances from the average, in all their kinds.
    differences: ClassVar[bool] = True
    solves: ClassVar[bool] = False

    @property
    def sees(self) -> Sees:
        if self.favour == "uniform":
            return "scalars"
        return "products" if self.distance == "l2" else "updates"

    def combine(self, rows: Rows, table: Table, state: RuleState, generator: Draws) -> Combined:
        K, P = rows.shape
        blocks = [slice(a, b) for a, b in state["blocks"]] if "blocks" in state else None
        layers = blocks if blocks is not None else [slice(0, P)]
        if self.sees == "products":
            weights, state = rows.weigh(self, blocks, table, state, generator)
            return rows.linear(weights, blocks), state, weights
        if self.favour == "uniform":
            distances = torch.ones(len(layers), K, dtype=torch.float64)
        else:
            measure = l1 if self.distance == "l1" else cosine
            distances = torch.stack([measure(rows, layer) for layer in layers])
        table, state = self.with_prior(table, state, generator)
        weights = self.mix(distances, table["prior"])
        weights = weights if blocks is not None else weights[0]
        return rows.linear(weights, blocks), state, weights

    def weights(
        self, gram: Tensor, table: Table, state: RuleState, generator: Draws = None
    ) -> WithState:
        """Return weights [K] for inner products [K, K], or [B, K] for [B, K, K]; for l2 alone."""
        if self.distance != "l2":
            raise UnseenError(
                f"SemanticDivergence(distance={self.distance!r}) reads every coordinate; inner "
                "products of the updates are enough for l2 only."
            )
        table, state = self.with_prior(self.checked(table, gram.shape[-1]), state, generator)
        return self.mix(l2(gram), table["prior"]), state

    def mix(self, distances: Tensor, prior: Tensor) -> Tensor:
        relevance = distances / nonzero(distances.amax(-1, keepdim=True))
        if self.favour == "similar":
            nearest = distances.amin(-1, keepdim=True)
            relevance = torch.where(distances > 0, nearest / nonzero(distances), 1)
        elif self.favour == "uniform":
            relevance = torch.ones_like(distances)
        # By the largest, so that a uniform prior is exactly 1 and drops out.
        c = relevance * (prior / prior.max())
        c = torch.where(c.sum(-1, keepdim=True) > 0, c, prior)
        return c / c.sum(-1, keepdim=True)


def l2(gram: Tensor) -> Tensor:
    """Return ‖u_i − ū‖ [..., K] from inner products [..., K, K]; rounding below 0 counts as 0.

    Note:
        Inner products of float32 updates tell distances down to about a hundredth of the updates'
        own length. Updates in the clear that agree more closely are compared by their differences
        from one of them, which lie as far from their own average; encrypted ones are not.
    """
    mean = gram.mean(-1)
    squared = gram.diagonal(dim1=-2, dim2=-1) - 2 * mean + mean.mean(-1, keepdim=True)
    return squared.clamp_min(0).sqrt()


def l1(rows: Rows, block: slice) -> Tensor:
    """Return ‖u_i − ū‖₁ [K] over a block of columns."""
    total = torch.zeros(rows.shape[0], dtype=torch.float64)
    for _, u in column_blocks(rows.dense()[:, block]):
        total += (u - u.mean(0)).abs().sum(1, dtype=torch.float64).cpu()
    return total


def cosine(rows: Rows, block: slice) -> Tensor:
    """Return 1 − cos(w_i, w̄) [K] over a block of columns, w_i = x + u_i; 1 where a length is 0.

    Note:
        From v_i = w_i − w̄ by 1 − cos = (|v|²|w̄|² − <v, w̄>²) / (|w||w̄| (|w||w̄| + <w, w̄>)),
        since between models that are nearly parallel 1 − cos would be a difference of ones.
    """
    if rows.reference is None:
        raise UnseenError(
            "SemanticDivergence(distance='cosine') compares weights, not updates: it needs the "
            "vector that the clients received, as DenseRows(matrix, reference) has it."
        )
    u = rows.dense()[:, block]
    mean = u.mean(0)
    G = gram(torch.cat([u - mean, (rows.reference[block] + mean)[None]]))
    vv, vm, mm = G.diagonal()[:-1], G[:-1, -1], G[-1, -1]
    inner = mm + vm
    norms = (mm * (mm + 2 * vm + vv).clamp_min(0)).sqrt()
    sine = (vv * mm - vm.square()).clamp_min(0)
    near = sine / nonzero(norms * (norms + inner.clamp_min(0)))
    far = 1 - inner / nonzero(norms)
    return torch.where(norms == 0, 1, torch.where(inner > 0, near, far))


def nonzero(x: Tensor) -> Tensor:
    """Return x with 1 for 0: what it divides is 0 there."""
    return torch.where(x == 0, 1, x)
