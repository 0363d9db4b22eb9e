"""The privacy of whole clients: their rows leave clipped and noised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from unseen.core.client import Client
from unseen.core.exchange import Exchange, Local, Method, Reply, Slot, Turn
from unseen.core.parts import Wrapper
from unseen.core.round import sample
from unseen.core.rows import RuleState
from unseen.core.rule import Gram, Weighted
from unseen.core.types import Inbox, Memory, Table
from unseen.core.vector import Blocks, Layout, Model
from unseen.errors import Incompatible, choice
from unseen.privacy.dp.noise import check_noise, check_scalars, kept
from unseen.privacy.stream import keyed_memory, stream


@dataclass(frozen=True)
class Clients:
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

    clip: float
    noise: float
    delta: float
    trust: Literal["nobody", "sum"] = "nobody"
    seed: int | None = None

    def __post_init__(self) -> None:
        check_noise("clients", self.clip, self.noise, self.delta)
        choice("dp(trust)", self.trust, ("nobody", "sum"))

    def deviation(self, clients: int) -> float:
        """s, the noise's standard deviation in each coordinate of one client's row."""
        if not self.noise:
            return 0.0
        return self.noise * self.clip / (math.sqrt(clients) if self.trust == "sum" else 1.0)


@dataclass(frozen=True)
class NoisedRows(Wrapper):
    """Another local whose rows leave clipped, all together, and noised; see `Clients`.

    No scalar leaves.

    Attributes:
        slots: Slot -> the inbox entry that it writes; all of them are differences.
    """

    inner: Local
    dp: Clients
    slots: Mapping[str, str]
    participation: float | int = 1.0

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """The noised rows; the model stays as it was trained."""
        ready = keyed_memory(memory, inbox, turn, self.dp.seed)
        reply, after = self.inner(model, inbox, client, ready, turn)
        trained = {id(model.vector), id(model.buffers)}
        rows = {
            name: (row - inbox[to] if id(row) in trained else row).double()
            for name, to, row in ((n, to, reply.rows[n]) for n, to in self.slots.items())
        }
        length = math.sqrt(sum(float(row.square().sum()) for row in rows.values()))
        factor = min(1.0, self.dp.clip / length) if length else 1.0
        deviation = self.dp.deviation(self.count(turn))
        draws = stream(ready, f"rows of {turn.exchange}")
        sent = {}
        for name, row in rows.items():
            noised = row * factor
            if deviation:
                noised += (draws.normal(row.numel()) * deviation).to(row.device)
            sent[name] = noised.to(inbox[self.slots[name]].dtype)
        return Reply(sent), kept(after, ready)

    def count(self, turn: Turn) -> int:
        """Return how many clients a round of this study has, K."""
        nobody = replace(turn, client="")
        return len(sample(turn.roster, self.participation, nobody)) if turn.roster else 1


def with_client_noise(
    method: Method, dp: Clients, participation: float | int = 1.0, summed: bool = False
) -> Method:
    """The method whose clients' rows are private as wholes, and rules that know of the noise."""
    name = f"{method.name}+dp"
    if dp.trust == "sum" and not summed:
        raise Incompatible(
            f"{name}",
            "trust='sum' shares the noise among the clients, which protects "
            "their sum alone, and on this channel the server sees each row. Set privacy.channel "
            "to masks, or take trust='nobody'.",
        )
    exchanges = [
        _noised_exchange(method, exchange, dp, participation) if exchange.slots else exchange
        for exchange in method.exchanges
    ]
    return replace(method, exchanges=tuple(exchanges))


def _noised_exchange(
    method: Method, exchange: Exchange, dp: Clients, participation: float | int
) -> Exchange:
    name = f"{method.name}+dp"
    for slot_name, slot in exchange.slots.items():
        if slot_name not in ("model", "buffers") or slot.sends != "difference":
            what = ", ".join(method.shares) or slot_name
            raise Incompatible(
                f"{name}",
                f"in the exchange {exchange.name!r} a client sends {slot_name!r} "
                f"({what}), which is no update of the model that one bound C could hold for.",
            )
    check_scalars(name, exchange, frozenset())
    slots = {n: _knowing(slot, dp, name) for n, slot in exchange.slots.items()}
    entries = {n: slot.to or n for n, slot in exchange.slots.items()}
    local = NoisedRows(exchange.local, dp, entries, participation)
    return replace(exchange, local=local, slots=slots)


def _knowing(slot: Slot, dp: Clients, name: str) -> Slot:
    """The slot with a rule that takes the known noise off; refused if only the sum is private."""
    rule = slot.combine
    if rule is not None and dp.trust == "sum" and not isinstance(rule, Weighted):
        raise Incompatible(
            f"{name}",
            f"with trust='sum' only the sum of all updates is private, and the "
            f"weights of {type(rule).__name__} depend on single ones. Take a mean with uniform "
            "weights, or trust='nobody', after which every rule works on what is private already.",
        )
    if rule is not None and rule.sees == "products" and dp.noise:
        return replace(slot, combine=Denoised(rule, dp.deviation(1)))
    return slot


@dataclass(frozen=True)
class Denoised(Gram):
    """A rule of inner products on noised rows: the noise's part, s² P_b, is taken off the diagonal.

    Row i is u_i + s ξ_i with ξ_i ~ N(0, 1)^P, so that E <., .> = <u_i, u_j> + [i = j] s² P_b over a
    block of P_b columns: the other inner products are right on average, and norms would be too
    large. What is left of a squared norm is at least s² √(2 P_b), one standard deviation of the
    noise's own, below which nothing is known of it.

    Attributes:
        deviation: s.
    """

    inner: Any
    deviation: float

    @property
    def blocks(self) -> Blocks:  # type: ignore[override]
        """Those of the rule."""
        blocks: Blocks = self.inner.blocks
        return blocks

    @property
    def source(self) -> Weighted | None:
        source: Weighted | None = self.inner.source
        return source

    def all_needs(self) -> tuple[str, ...]:
        return tuple(self.inner.all_needs())

    def init(self, K: int, P: int, layout: Layout | None = None) -> RuleState:
        """Return the rule's own state, and how wide the blocks are."""
        state = dict(self.inner.init(K, P, layout))
        bounds = state.get("blocks", [(0, P)])
        return {**state, "widths": [stop - start for start, stop in bounds]}

    def weights(
        self,
        gram: Tensor,
        table: Table,
        state: RuleState,
        generator: torch.Generator | None = None,
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
        self, gram: Tensor, table: Table, state: RuleState, generator: torch.Generator | None
    ) -> tuple[Tensor, RuleState]:
        mixed: tuple[Tensor, RuleState] = self.inner.mix(gram, table, state, generator)
        return mixed
