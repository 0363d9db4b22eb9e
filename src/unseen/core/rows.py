"""A slot's replies as a rule may use them: sums, inner products, or every update in the clear."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from unseen.core.centre import centre, coarse
from unseen.core.types import Table
from unseen.errors import UnseenError

RuleState = Mapping[str, Any]
#: Widest run of columns that is summed in float32: a longer chain loses signs near orthogonality.
GRAM_WIDTH = 8192
#: Numbers of the tiles' products that are kept at a time: of hundreds of clients they outgrow rows.
GRAM_NUMBERS = 2**24
#: Columns that an elementwise rule handles at a time, so that its temporaries stay in cache.
COLUMNS = 65536


class Rows(Protocol):
    """One slot's replies as the server may use them; a call may be a message to the clients.

    reference: what the clients received [P], or None where it is not to be had.
    """

    reference: Tensor | None

    @property
    def shape(self) -> tuple[int, int]: ...

    def linear(self, weights: Tensor, blocks: Sequence[slice] | None = None) -> Tensor:
        """Σ_i w_i u_i [P] for weights [K], or [B, K] with one row per block of columns."""
        ...

    def gram(self, blocks: Sequence[slice] | None = None) -> Tensor:
        """Inner products <u_i, u_j> [K, K] in float64, or [B, K, K] per block of columns."""
        ...

    def dense(self) -> Tensor:
        """Every update in the clear [K, P]."""
        ...

    def weigh(
        self,
        rule: Mixing,
        blocks: Sequence[slice] | None,
        table: Table,
        state: RuleState,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, RuleState]:
        """The rule's weights and new state, computed where inner products may be seen."""
        ...

    def take(self, order: Tensor) -> Rows:
        """The same replies in another order."""
        ...


class Mixing(Protocol):
    """A rule that makes weights of inner products.

    differences: whether these weights stay the same where one vector is taken off all rows.
    """

    @property
    def differences(self) -> bool: ...

    def weights(
        self, gram: Tensor, table: Table, state: RuleState, generator: torch.Generator | None
    ) -> tuple[Tensor, RuleState]: ...


class DenseRows:
    """Rows that lie in memory as one [K, P] matrix."""

    def __init__(self, matrix: Tensor, reference: Tensor | None = None) -> None:
        if matrix.ndim != 2 or len(matrix) == 0:
            raise UnseenError(
                f"a rule combines rows of shape [K, P] with K > 0; found {tuple(matrix.shape)}."
            )
        self.matrix, self.reference = matrix, reference

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[0], self.matrix.shape[1]

    def linear(self, weights: Tensor, blocks: Sequence[slice] | None = None) -> Tensor:
        weights = weights.to(self.matrix)
        if weights.ndim == 1:
            return weights @ self.matrix
        vector = torch.empty(self.shape[1], dtype=self.matrix.dtype, device=self.matrix.device)
        for w, block in zip(weights, blocks or (), strict=True):
            vector[block] = w @ self.matrix[:, block].contiguous()
        return vector

    def gram(self, blocks: Sequence[slice] | None = None) -> Tensor:
        if blocks is None:
            return gram(self.matrix)
        # Copied, so that every block lies alike in memory whatever the rows' distance is: a
        # kernel may sum in another order for another alignment.
        return torch.stack([gram(self.matrix[:, block].contiguous()) for block in blocks])

    def dense(self) -> Tensor:
        return self.matrix

    def weigh(
        self,
        rule: Mixing,
        blocks: Sequence[slice] | None,
        table: Table,
        state: RuleState,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, RuleState]:
        gram = self.gram(blocks)
        if rule.differences and coarse(gram):
            gram = self.about(gram, blocks)
        return rule.weights(gram, table, state, generator)

    def about(self, found: Tensor, blocks: Sequence[slice] | None) -> Tensor:
        """The inner products `found` again, of rows less the central one of them (per block)."""
        if blocks is not None:
            parts = zip(found, blocks, strict=True)
            return torch.stack([DenseRows(self.matrix[:, b]).about(g, None) for g, b in parts])
        origin, total = centre(found), torch.zeros_like(found)
        for _, u in column_blocks(self.matrix):
            total += gram(u - u[origin])
        return total

    def take(self, order: Tensor) -> DenseRows:
        return DenseRows(self.matrix[order.to(self.matrix.device)], self.reference)


def gram(matrix: Tensor, width: int = GRAM_WIDTH) -> Tensor:
    """U Uᵀ [K, K] on the CPU in float64, for U [K, P].

    Products are summed in the matrix's own type inside tiles of `width` columns and in float64
    across tiles. One float32 product over all columns is wrong in the third digit at P = 11.7 M
    and can flip the sign of a small inner product.
    """
    K, P = matrix.shape
    total = torch.zeros(K, K, dtype=torch.float64, device=matrix.device)
    tiled = P // width * width
    if tiled:
        tiles = matrix[:, :tiled].unflatten(1, (-1, width)).transpose(0, 1)
        for some in tiles.split(max(1, GRAM_NUMBERS // K**2)):
            total += torch.bmm(some, some.transpose(1, 2)).double().sum(0)
    if tiled < P:
        tail = matrix[:, tiled:]
        total += (tail @ tail.T).double()
    return ((total + total.T) / 2).cpu()


def column_blocks(rows: Tensor, columns: int = COLUMNS) -> Iterator[tuple[slice, Tensor]]:
    """Consecutive column ranges of a [K, P] matrix, small enough for the cache."""
    for begin in range(0, rows.shape[1], columns):
        block = slice(begin, begin + columns)
        yield block, rows[:, block]
