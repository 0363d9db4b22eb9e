"""How far each client's weights lie from their average: what `SemanticDivergence` reads."""

from __future__ import annotations

import torch
from torch import Tensor

from unseen.core import Rows
from unseen.core.rule import column_blocks, gram
from unseen.errors import UnseenError


def l2(gram: Tensor) -> Tensor:
    """Return ‖u_i − ū‖ [..., K] from inner products [..., K, K]; rounding below 0 counts as 0.

    Inner products of float32 updates tell distances down to about a hundredth of the updates'
    own length. Updates in the clear that agree better than that differ by what each differs
    from one of them, which lie as far from their own average; encrypted ones do not.
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

    From v_i = w_i − w̄ by 1 − cos = (|v|²|w̄|² − <v, w̄>²) / (|w||w̄| (|w||w̄| + <w, w̄>)), since
    between models that are nearly parallel 1 − cos would be a difference of ones.
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
