"""What every server rule is made of: rows, and the kinds of rule by what they must see.

What a rule must see is its type, and that is the order of privacy: `Weighted` sees scalars only,
`Gram` inner products, `Elementwise` every update in the clear; `Collect` hands every one on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from unseen.core.rows import Columns, DenseRows, Draws, Rows, RuleState, WithState
from unseen.core.rule_answers import vector_of, weights_of
from unseen.core.types import Table
from unseen.core.vector import Blocks, Layout
from unseen.errors import UnseenError
from unseen.ranges import Checked

Combined = tuple[Tensor, RuleState, Tensor | None]
Sees = Literal["scalars", "products", "updates"]


class Combine(Checked, ABC):
    """A server rule: `rule(rows, table, state, generator)` -> (vector [P], state, weights).

    Attributes:
        prior: The Weighted rule where this one starts from, of rules that have one; its weights
            reach the rule as `table["prior"]`.
        needs: Names of the scalars that the rule reads.
        blocks: Which runs of the vector's columns the rule handles one by one.
        adapts: Whether it is a mean whose weights change from round to round.
        outvotes: Whether it bounds what a wrong client can do, so that no plain mean may stand
            beside it.
        adds: Whether it is the plain sum of all rows.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    adapts: ClassVar[bool] = False
    outvotes: ClassVar[bool] = False
    adds: ClassVar[bool] = False
    blocks: Blocks = "whole"

    def init(self, K: int, P: int, layout: Layout | None = None) -> RuleState:
        """Return the state before round 0.

        Args:
            K: The size of the roster.
            P: The length of the vectors.
            layout: Where each tensor lies in them; needed for blocks alone.
        """
        state = dict(self.own_state(K, P, layout))
        if self.source is not None:
            state["prior"] = self.source.init(K, P, layout)
        if self.blocks != "whole":
            if layout is None:
                rule = f"{type(self).__name__}(blocks={self.blocks!r})"
                raise UnseenError(
                    f"{rule} needs the layout of the vector.", remedy="Call init(K, P, layout)."
                )
            state["blocks"] = [(b.start, b.stop) for b in layout.blocks(self.blocks)]
        return state

    def own_state(self, K: int, P: int, layout: Layout | None) -> RuleState:
        """Return what the rule itself remembers; nothing, for most."""
        return {}

    @property
    def sees(self) -> Sees:
        """What the rule must see: no rows, their inner products, or all of them."""
        return "updates"

    @property
    def source(self) -> Weighted | None:
        """The prior, for the rules that have one."""
        prior: Weighted | None = getattr(self, "prior", None)
        return prior

    def entry(self, row: Tensor, K: int) -> Tensor:
        """Return the inbox entry before round 0, from one row [P], for a roster of K clients."""
        return row

    def row_shape(self, entry: Tensor) -> torch.Size:
        return entry.shape

    def all_needs(self) -> tuple[str, ...]:
        """Return the scalars that the rule reads, with those of its prior."""
        inner = self.source.all_needs() if self.source is not None else ()
        return tuple(dict.fromkeys((*self.needs, *inner)))

    def __call__(
        self, rows: Rows | Tensor, table: Table, state: RuleState, generator: Draws = None
    ) -> Combined:
        """Combine the rows.

        Args:
            rows: One row per participant [K, P].
            table: The participants' scalars; see `checked`.
            state: What the rule remembers; never written to.
            generator: Where its draws come from; None: one seeded with 0.

        Returns:
            The vector [P], the new state, and the weights where the rule has any.
        """
        rows = DenseRows(rows) if isinstance(rows, Tensor) else rows
        K = rows.shape[0]
        table = self.checked(table, K)
        # Roster order, so that the order in which replies came in cannot change a bit.
        order = table["client"].argsort(stable=True)
        if not torch.equal(order, torch.arange(K)):
            rows, table = rows.take(order), {name: v[order] for name, v in table.items()}
            vector, state, weights = self.combine(rows, table, state, generator)
            return vector, state, None if weights is None else weights[..., order.argsort()]
        return self.combine(rows, table, state, generator)

    def checked(self, table: Table, K: int | None = None) -> dict[str, Tensor]:
        """Return the table in float64, after a check of its lengths and of the rule's needs.

        Args:
            table: Name -> [K] or [K, m]. `client` holds who is present, as indices into the
                roster; without it the rows are the whole roster in order.
            K: The number of rows; None: the length of the table's longest entry.
        """
        checked = {name: torch.as_tensor(v, dtype=torch.float64) for name, v in table.items()}
        K = K or max((len(values) for values in checked.values() if values.ndim), default=0)
        checked.setdefault("client", torch.arange(K, dtype=torch.float64))
        for name, values in checked.items():
            if values.shape[:1] != (K,):
                raise UnseenError(
                    f"the table's {name!r} must have one entry per row, [{K}, ...]; found "
                    f"{list(values.shape) or f'the single number {values.item():g}'}."
                )
        for name in self.all_needs():
            if name not in checked:
                what = (
                    f"{type(self).__name__} reads the scalar {name!r} from the table; found only "
                )
                what += f"{', '.join(sorted(checked))}."
                raise UnseenError(what, remedy="The client's local part must report it.")
        return checked

    @abstractmethod
    def combine(self, rows: Rows, table: Table, state: RuleState, generator: Draws) -> Combined:
        """Do with rows in roster order what the kind of rule does."""

    def with_prior(
        self, table: Table, state: RuleState, generator: Draws
    ) -> tuple[Table, RuleState]:
        """Return the table with `prior`, and the state with what the prior remembers."""
        if self.source is None:
            return table, state
        weights, inner = self.source.weights(table, state["prior"], generator)
        return {**table, "prior": weights}, {**state, "prior": inner}


class Weighted(Combine):
    """Σ_i w_i u_i with weights from scalars alone: any sum will do, masked or encrypted ones too.

    Attributes:
        averages: Whether the weights are those of a mean, which sum to 1.
    """

    averages: ClassVar[bool] = True

    @property
    def sees(self) -> Sees:
        return "scalars"

    @abstractmethod
    def share(self, table: Table, state: RuleState, generator: Draws) -> WithState:
        """Return the rule's weights [K] in float64, and the new state."""

    def weights(self, table: Table, state: RuleState, generator: Draws = None) -> WithState:
        """Return the weights [K] of those present, and the new state, once the prior is known."""
        table, state = self.with_prior(self.checked(table), state, generator)
        answer = self.share(table, state, generator)
        return weights_of(self, "share", answer, len(table["client"]), table, self.averages)

    def combine(self, rows: Rows, table: Table, state: RuleState, generator: Draws) -> Combined:
        weights, state = self.weights(table, state, generator)
        return rows.linear(weights), state, weights


class Gram(Combine):
    """Σ_i w_i u_i with weights from the K×K inner products, once per block of its layout.

    Attributes:
        differences: Whether the weights depend on differences of rows alone, so that one vector
            may be taken off all of them first; of rows in the clear it is, where rounding would
            show.
        spread: Whether they depend on how much updates differ, to which numbers that every client
            has for itself must not count.
        solves: Whether the weights solve equations in the inner products, which then are summed in
            float64: where updates are linearly dependent, the rounding of a sum in float32 is all
            that an inverse would see.
    """

    differences: ClassVar[bool] = False
    solves: ClassVar[bool] = False
    spread: ClassVar[bool] = False

    @property
    def sees(self) -> Sees:
        return "products"

    @abstractmethod
    def mix(self, gram: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        """Return the weights [K] in float64 for inner products [K, K], and the new state."""

    def weights(
        self, gram: Tensor, table: Table, state: RuleState, generator: Draws = None
    ) -> WithState:
        """Return weights [K] for inner products [K, K], or [B, K] for [B, K, K], and the state."""
        table, state = self.with_prior(self.checked(table, gram.shape[-1]), state, generator)
        K, scalars = gram.shape[-1], {**table, "gram": gram}
        if gram.ndim == 2:
            answer = self.mix(gram, table, state, generator)
            return weights_of(self, "mix", answer, K, scalars, mean=False)
        weights = []
        for block in gram:
            answer = self.mix(block, table, state, generator)
            w, state = weights_of(self, "mix", answer, K, scalars, mean=False)
            weights.append(w)
        return torch.stack(weights), state

    def combine(self, rows: Rows, table: Table, state: RuleState, generator: Draws) -> Combined:
        blocks: Columns = None
        if "blocks" in state:
            blocks = [slice(*ends) for ends in state["blocks"]]
        weights, state = rows.weigh(self, blocks, table, state, generator)
        return rows.linear(weights, blocks), state, weights


class Elementwise(Combine):
    """A rule that reads every coordinate of every update: it runs in the clear only."""

    @abstractmethod
    def reduce(self, rows: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        """Return a fresh vector [P] for rows [K, P], and the new state."""

    def combine(self, rows: Rows, table: Table, state: RuleState, generator: Draws) -> Combined:
        table, state = self.with_prior(table, state, generator)
        dense = rows.dense()
        answer = self.reduce(dense, table, state, generator)
        vector, state = vector_of(self, answer, tuple(dense.shape[1:]))
        return vector, state, None


@dataclass(frozen=True)
class Collect(Combine):
    """Hands the rows on as they are, one for each client of the roster: the entry is [K, P].

    Note:
        Use it with `unseen.core.apply.Put`, so that the rows of those who stay away remain.
        Everybody receives every row in the clear.
    """

    def entry(self, row: Tensor, K: int) -> Tensor:
        return row.expand(K, *row.shape).clone()

    def row_shape(self, entry: Tensor) -> torch.Size:
        return entry.shape[1:]

    def combine(self, rows: Rows, table: Table, state: RuleState, generator: Draws) -> Combined:
        return rows.dense().clone(), state, None


def drawing(generator: Draws) -> Generator:
    """Return the generator, or one seeded with 0 where there is none."""
    return generator if generator is not None else Generator().manual_seed(0)


def visits(K: int, order: str, generator: Draws) -> Iterator[tuple[int, int]]:
    """Yield every ordered pair i ≠ j of K clients.

    Args:
        K: The number of clients.
        order: "fixed", or else i, and for each i all j, come in random order.
        generator: Where the order comes from.
    """
    generator = drawing(generator)

    def everyone() -> list[int]:
        return (
            list(range(K)) if order == "fixed" else torch.randperm(K, generator=generator).tolist()
        )

    yield from ((i, j) for i in everyone() for j in everyone() if i != j)
