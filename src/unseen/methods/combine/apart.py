"""A rule of inner products to which some columns do not count."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unseen.core import Draws, Gram, Layout, RuleState, Table, Weighted, WithState


@dataclass(frozen=True)
class Apart(Gram):
    """Another rule's weights w for all columns but some, which have their mean Σ w_i u_i / Σ w_i.

    What is each client's own there, such as its intercepts, is then no part of how much updates
    differ.

    Attributes:
        inner: the other rule, of the whole vector.
        columns: [begin, end) of those that do not count.

    Example:
        >>> from unseen.methods.combine import FedExP
        >>> u = torch.eye(2, 3, dtype=torch.float64)
        >>> rule = Apart(FedExP(eps=1e-9), (1, 2))
        >>> rule(u, {}, rule.init(2, 3))[2]
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000],
                [0.5000, 0.5000]], dtype=torch.float64)
    """

    blocks = "tensor"  # inner products are of runs of columns, not of the whole vector

    inner: Gram
    columns: tuple[int, int]

    @property
    def differences(self) -> bool:  # type: ignore[override]
        return self.inner.differences

    @property
    def solves(self) -> bool:  # type: ignore[override]
        return self.inner.solves

    @property
    def source(self) -> Weighted | None:
        return self.inner.source

    def all_needs(self) -> tuple[str, ...]:
        return self.inner.all_needs()

    def init(self, K: int, P: int, layout: Layout | None = None) -> RuleState:
        begin, end = self.columns
        state: Mapping[str, Any] = self.inner.init(K, P, layout)
        return {**state, "blocks": [(begin, end), (0, begin), (end, P)]}

    def mix(self, gram: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        return self.inner.mix(gram, table, state, generator)

    def weights(
        self, gram: Tensor, table: Table, state: RuleState, generator: Draws = None
    ) -> WithState:
        """Return the weights [3, K] of the columns apart, before and behind; and the state."""
        w, state = self.inner.weights(gram[1] + gram[2], table, state, generator)
        return torch.stack([w / w.sum(), w, w]), state
