"""A slot's replies as a rule may use them: sums, inner products, or every update in the clear."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from unseen.core.row_store import stacked
from unseen.core.types import Table
from unseen.errors import UnseenError

RuleState = Mapping[str, Any]
#: What a rule makes, weights or a vector, with its new state.
WithState = tuple[Tensor, RuleState]
#: Where a rule's draws come from; None: a generator seeded with 0.
Draws = Generator | None
#: Runs of columns that a rule handles one by one; None: all columns together.
Columns = Sequence[slice] | None
#: Widest run of columns that is summed in float32: a longer chain loses signs near orthogonality.
GRAM_WIDTH = 8192
#: Numbers of the tiles' products in memory at a time: of hundreds of clients they outgrow rows.
GRAM_NUMBERS = 2**24
#: Columns that an elementwise rule handles at a time, so that its temporaries stay in cache.
COLUMNS = 65536
#: Squared distances below this share of the rows' squared lengths are computed again between rows
#: that are moved to one of them; above it a float32 product is a hundred times its rounding.
CLOSE = 0.01


class Rows(Protocol):
    """One slot's replies as the server may use them; a call may be a message to the clients.

    Attributes:
        reference: What the clients received [P]; None where the server cannot have it.
    """

    reference: Tensor | None

    @property
    def shape(self) -> tuple[int, int]: ...

    def linear(self, weights: Tensor, blocks: Columns = None) -> Tensor:
        """Return Σ_i w_i u_i [P].

        Args:
            weights: w [K], or [B, K] with one row per block.
            blocks: The B blocks of columns.
        """

    def gram(self, blocks: Columns = None) -> Tensor:
        """Return inner products <u_i, u_j> [K, K] in float64, or [B, K, K] per block."""

    def dense(self) -> Tensor:
        """Return every update in the clear [K, P]."""

    def weigh(
        self, rule: Mixing, blocks: Columns, table: Table, state: RuleState, generator: Draws
    ) -> WithState:
        """Return the rule's weights and new state, computed where inner products may be seen."""

    def take(self, order: Tensor) -> Rows:
        """Return the same replies in another order."""


class Mixing(Protocol):
    """A rule that makes weights of inner products.

    Attributes:
        differences: Whether these weights stay the same where one vector is taken off all rows.
        solves: Whether it solves equations in the inner products, so that they are summed in
            float64.
    """

    @property
    def differences(self) -> bool: ...

    @property
    def solves(self) -> bool: ...

    def weights(
        self, gram: Tensor, table: Table, state: RuleState, generator: Draws
    ) -> WithState: ...


class DenseRows:
    """Rows that lie in memory, as one [K, P] matrix or apart until somebody needs the matrix.

    Args:
        rows: The matrix [K, P], or K rows [P].
        reference: What the clients received [P].
        memory_limit: The bytes that a matrix of rows which lie apart may take in memory.
    """

    def __init__(
        self,
        rows: Tensor | Sequence[Tensor],
        reference: Tensor | None = None,
        memory_limit: int | None = None,
    ) -> None:
        shape = (len(rows), *rows[0].shape) if len(rows) else (0,)
        if len(shape) != 2:
            raise UnseenError(f"a rule combines rows of shape [K, P] with K > 0; found {shape}.")
        self._rows, self._memory_limit, self.reference = rows, memory_limit, reference

    @cached_property
    def matrix(self) -> Tensor:
        """The rows [K, P]."""
        rows = self._rows
        return rows if isinstance(rows, Tensor) else stacked(rows, self._memory_limit)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._rows), self._rows[0].shape[0]

    def linear(self, weights: Tensor, blocks: Columns = None) -> Tensor:
        weights = weights.to(self.matrix)
        if weights.ndim == 1:
            return weights @ self.matrix
        vector = self.matrix.new_empty(self.shape[1])
        for w, block in zip(weights, blocks or (), strict=True):
            vector[block] = w @ self.matrix[:, block].contiguous()
        return vector

    def gram(self, blocks: Columns = None, dtype: torch.dtype | None = None) -> Tensor:
        if blocks is None:
            return gram(self.matrix, dtype=dtype)
        # Copied, so that every block lies alike in memory whatever the rows' distance is: a
        # kernel may sum in another order for another alignment.
        parts = (self.matrix[:, block].contiguous() for block in blocks)
        return torch.stack([gram(part, dtype=dtype) for part in parts])

    def dense(self) -> Tensor:
        return self.matrix

    def weigh(
        self, rule: Mixing, blocks: Columns, table: Table, state: RuleState, generator: Draws
    ) -> WithState:
        products = self.gram(blocks, torch.float64 if rule.solves else None)
        if rule.differences and coarse(products):
            products = self.about(products, blocks)
        return rule.weights(products, table, state, generator)

    def about(self, products: Tensor, blocks: Columns) -> Tensor:
        """Return these inner products again, of rows less the central one (per block)."""
        if blocks is not None:
            parts = zip(products, blocks, strict=True)
            return torch.stack([DenseRows(self.matrix[:, b]).about(g, None) for g, b in parts])
        origin, total = centre(products), torch.zeros_like(products)
        for _, u in column_blocks(self.matrix):
            total += gram(u - u[origin])
        return total

    def take(self, order: Tensor) -> DenseRows:
        if isinstance(self._rows, Tensor):
            return DenseRows(self._rows[order.to(self._rows.device)], self.reference)
        own = [self._rows[i] for i in order.tolist()]
        return DenseRows(own, self.reference, self._memory_limit)


def gram(matrix: Tensor, width: int = GRAM_WIDTH, dtype: torch.dtype | None = None) -> Tensor:
    """Return U Uᵀ [K, K] on the CPU in float64, for U [K, P].

    One float32 product over all columns is wrong in the third digit at P = 11.7 M and can flip the
    sign of a small inner product.

    Args:
        matrix: U.
        width: Products are summed in `dtype` inside tiles of this many columns, and in float64
            across tiles.
        dtype: The matrix's own type, unless said otherwise.
    """
    K, P = matrix.shape
    dtype = dtype or matrix.dtype
    # The products of a tile, and the copy of it where its type changes.
    numbers = K**2 if dtype == matrix.dtype else max(K**2, K * width)
    total = torch.zeros(K, K, dtype=torch.float64, device=matrix.device)
    tiled = P // width * width
    if tiled:
        tiles = matrix[:, :tiled].unflatten(1, (-1, width)).transpose(0, 1)
        for part in tiles.split(max(1, GRAM_NUMBERS // numbers)):
            some = part.to(dtype)
            total += torch.bmm(some, some.transpose(1, 2)).double().sum(0)
    if tiled < P:
        tail = matrix[:, tiled:].to(dtype)
        total += (tail @ tail.T).double()
    return ((total + total.T) / 2).cpu()


def column_blocks(rows: Tensor, columns: int = COLUMNS) -> Iterator[tuple[slice, Tensor]]:
    """Yield consecutive column ranges of a [K, P] matrix, small enough for the cache."""
    for begin in range(0, rows.shape[1], columns):
        block = slice(begin, begin + columns)
        yield block, rows[:, block]


def squared_distances(gram: Tensor) -> Tensor:
    """Return ‖u_i − u_j‖² [..., K, K] for i ≠ j, from inner products; infinity for i = j.

    Huge rows overflow to inf and to inf − inf: both are far away. Rounding below 0 counts as 0.
    """
    norms = gram.diagonal(dim1=-2, dim2=-1)
    squared = norms[..., :, None] + norms[..., None, :] - 2 * gram
    squared = squared.nan_to_num(torch.inf, torch.inf, torch.inf).clamp(min=0)
    squared.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    return squared


def coarse(gram: Tensor) -> bool:
    """Return whether two rows are so close, for their length, that rounding shows."""
    norms = gram.diagonal(dim1=-2, dim2=-1)
    lengths = (norms[..., :, None] + norms[..., None, :]) / 2
    return bool((squared_distances(gram) < CLOSE * lengths).any())


def centre(gram: Tensor) -> int:
    """Return the row whose K // 2 nearest neighbours are nearest.

    A wrong client can neither be it, unless it is near the right ones, nor move it far. A mean
    would follow the largest row, and rows less that mean would be worse to tell apart than ever.
    """
    K = len(gram)
    return int(squared_distances(gram).sort(1).values[:, K // 2 - 1].argmin())
