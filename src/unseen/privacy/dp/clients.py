"""The privacy of whole clients: their rows leave clipped and noised."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from unseen.core import Client, Gram, Inbox, Layout, Memory, Model, RuleState, Table, Turn, Weighted
from unseen.core.exchange import Exchange, Local, Method, Reply, Slot
from unseen.core.parts import Wrapper
from unseen.core.round import sample
from unseen.errors import Incompatible
from unseen.privacy.dp.noise import Noise, Stream, check_scalars, keyed_memory, no_key


@dataclass(frozen=True)
class Clients(Noise, named="dp"):
    """Every row that a client sends: u ← min(1, C / ‖u‖) u + s ξ.

    Attributes:
        clip: C.
        noise: σ, in units of C.
        delta: As for `Examples`.
        trust: `"nobody"`, s = σ C, so that each row is private before anybody sees it, the server
            included; or `"sum"`, s = σ C / √K with K the clients of a round, so that only their sum
            is: for channels in which the server sees no more than that.
        seed: For tests only.

    Source:
        McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models"; the sum of
        K shares of the noise is Kairouz et al. 2021.

    Departs from:
        McMahan et al., where the server adds the noise: here the clients do.
    """

    trust: Literal["nobody", "sum"] = "nobody"
    seed: int | None = None

    def deviation(self, clients: int) -> float:
        """Return s, the noise's standard deviation in each coordinate of one client's row."""
        shared = math.sqrt(clients) if self.trust == "sum" else 1.0
        return self.noise * self.clip / shared if self.noise else 0.0


@dataclass(frozen=True)
class NoisedRows(Wrapper):
    """Another local whose rows leave clipped, all together, and noised; no scalar leaves."""

    inner: Local
    dp: Clients
    slots: Mapping[str, str]
    participation: float | int = 1.0

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        ready = keyed_memory(memory, inbox, turn, self.dp.seed)
        reply, after = self.inner(model, inbox, client, ready, turn)
        trained = {id(model.vector), id(model.buffers)}
        rows = {}
        for name, to in self.slots.items():
            row = reply.rows[name]
            rows[name] = (row - inbox[to] if id(row) in trained else row).double()
        length = math.sqrt(sum(float(row.square().sum()) for row in rows.values()))
        factor = min(1.0, self.dp.clip / length) if length else 1.0
        deviation = self.dp.deviation(self.count(turn))
        if deviation and not math.isfinite(length):  # to say so would be one bit without noise
            rows = {name: torch.zeros_like(row) for name, row in rows.items()}
        draws = Stream.of(ready, f"rows of {turn.exchange}")
        noised_rows = {}
        for name, row in rows.items():
            noised = row * factor
            if deviation:
                noised += (draws.normal(row.numel()) * deviation).to(row.device)
            noised_rows[name] = noised.to(inbox[self.slots[name]].dtype)
        return Reply(noised_rows), no_key(after, ready)

    def count(self, turn: Turn) -> int:
        """Return how many clients a round of this study has, K."""
        nobody = replace(turn, client="")
        return len(sample(turn.roster, self.participation, nobody)) if turn.roster else 1


def with_client_noise(
    method: Method, dp: Clients, participation: float | int = 1.0, summed: bool = False
) -> Method:
    """Return the method whose clients' rows are private as wholes, and rules that know the noise.

    `summed` says whether the channel shows the server no more than sums of rows.
    """
    name = f"{method.name}+dp"
    if dp.trust == "sum" and not summed:
        why = "trust='sum' protects the sum alone; on this channel the server sees each row."
        remedy = "Set privacy.channel to masks, or take trust='nobody'."
        raise Incompatible(name, why, remedy=remedy)
    exchanges = list(method.exchanges)
    for i, exchange in enumerate(exchanges):
        if exchange.slots:
            slots = {n: _noised(n, s, dp, method, exchange) for n, s in exchange.slots.items()}
            check_scalars(name, exchange, frozenset())
            entries = {n: slot.to or n for n, slot in slots.items()}
            local = NoisedRows(exchange.local, dp, entries, participation)
            exchanges[i] = replace(exchange, local=local, slots=slots)
    return replace(method, exchanges=tuple(exchanges))


def _noised(label: str, slot: Slot, dp: Clients, method: Method, exchange: Exchange) -> Slot:
    """Return the slot with a rule that subtracts what is known of the noise."""
    name, rule = f"{method.name}+dp", slot.combine
    if label not in ("model", "buffers") or slot.sends != "difference":
        what = f"{label!r} ({', '.join(method.shares) or label})"
        why = f"in the exchange {exchange.name!r} a client sends {what}, not an update of the "
        raise Incompatible(name, f"{why}model that one bound C could hold for.")
    if rule is not None and dp.trust == "sum" and not isinstance(rule, Weighted):
        why = f"only the sum is private: weights of {type(rule).__name__} depend on single ones."
        remedy = "Take a mean with uniform weights, or trust='nobody', which allows every rule."
        raise Incompatible(name, why, remedy=remedy)
    if rule is not None and rule.sees == "products" and dp.noise:
        return replace(slot, combine=Denoised(rule, dp.deviation(1)))
    return slot


@dataclass(frozen=True)
class Denoised(Gram):
    """A rule of inner products on noised rows: the noise's part, s² P_b, is taken off the diagonal.

    Row i is u_i + s ξ_i with ξ_i ~ N(0, 1)^P, so that E <., .> = <u_i, u_j> + [i = j] s² P_b over a
    block of P_b columns.

    Attributes:
        inner: The rule.
        deviation: s.

    The other inner products are right on average, and norms would be too large. What is left of a
    squared norm is at least s² √(2 P_b), one standard deviation of the noise's own, below which
    nothing is known of it.
    """

    inner: Any
    deviation: float

    @property
    def blocks(self) -> Any:  # type: ignore[override]
        return self.inner.blocks

    @property
    def source(self) -> Any:
        return self.inner.source

    def all_needs(self) -> tuple[str, ...]:
        return tuple(self.inner.all_needs())

    def init(self, K: int, P: int, layout: Layout | None = None) -> RuleState:
        state = dict(self.inner.init(K, P, layout))
        bounds = state.get("blocks", [(0, P)])
        return {**state, "widths": [stop - start for start, stop in bounds]}

    def weights(
        self, gram: Tensor, table: Table, state: RuleState, generator: Generator | None = None
    ) -> tuple[Tensor, RuleState]:
        """Return the rule's weights for inner products as they would be without the noise."""
        widths = torch.tensor(state["widths"], dtype=torch.float64)
        widths = widths if gram.ndim == 3 else widths[0]
        cleaned, variance = gram.clone(), self.deviation**2
        diagonal = cleaned.diagonal(dim1=-2, dim2=-1)
        floor = variance * (2 * widths).sqrt()
        diagonal.copy_(torch.maximum(diagonal - (variance * widths)[..., None], floor[..., None]))
        weights, inner = self.inner.weights(cleaned, table, state, generator)
        return weights, {**inner, "widths": state["widths"]}

    def mix(
        self, gram: Tensor, table: Table, state: RuleState, generator: Generator | None
    ) -> tuple[Tensor, RuleState]:
        return self.inner.mix(gram, table, state, generator)  # type: ignore[no-any-return]
