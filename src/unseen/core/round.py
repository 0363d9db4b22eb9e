"""The whole server: `start` a state, `play` rounds of exchanges. No line here knows a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from unseen.core.client import Client, Memories
from unseen.core.disclosure import Disclosure, Undecided
from unseen.core.exchange import Exchange, Method, Outcome, Reply, Slot, State, Turn
from unseen.core.replies import OnBadReply, sound, tabulate
from unseen.core.rows import Rows, RuleState
from unseen.core.share import round_share
from unseen.core.types import Inbox, Table
from unseen.core.vector import Model
from unseen.errors import Departed, number


class Backend(Protocol):
    """Where clients run. What inherits from it carries no channel unless it says so.

    model: the module that the clients here train. clients: those that are here, by name; none
    where they are at sites. memories: what the clients here keep.
    """

    model: Model
    clients: Mapping[str, Client]
    memories: Memories

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        """One reply for each named client, in the order of the names."""
        ...

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> Rows:
        """One slot's stack of replies, as the server may use it."""
        ...

    def to_checkpoint(self) -> Memories:
        """What of the clients' memories belongs into a checkpoint."""
        return self.memories

    def carries_channel(self) -> bool:
        """Whether rows travel by a channel of the backend's own, and not in the clear."""
        return False

    def played(self, method: Method) -> Method:
        """The method as the server plays it."""
        return method

    def disclosed(self) -> Sequence[Disclosure]:
        """What left each client since the last exchange began, where a channel changed it."""
        return ()

    def undecided(self) -> Sequence[Undecided]:
        """Pairs whose inner product could not be told from 0, since the last call."""
        return ()


class Watch(Protocol):
    """Sees what the rules of an exchange saw and made of it; it changes nothing.

    It reads updates in the clear, so it is for simulation. Its answer stands in the `Outcome`.
    """

    def __call__(
        self,
        exchange: Exchange,
        inbox: Inbox,
        rows: Mapping[str, Rows],
        vectors: Mapping[str, Tensor],
        table: Table,
        turn: Turn,
    ) -> Mapping[str, Any]:
        """inbox: what the clients received; rows: by slot; vectors: the rules' results, by inbox
        entry. All of it lives until the next exchange."""
        ...


def start(method: Method, model: Model, clients: Sequence[str], seed: int) -> State:
    """The state before round 0: the inbox, and what each rule remembers."""
    inbox: dict[str, Tensor] = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    layouts = {"model": model.layout, "buffers": model.buffer_layout}
    rules: dict[str, dict[str, Any]] = {}
    state: RuleState
    for exchange in method.exchanges:
        for name, slot in exchange.slots.items():
            to = slot.to or name
            row = slot.start(model) if slot.start is not None else inbox[to]
            inbox[to], state = row, {}
            if slot.combine is not None:
                inbox[to] = slot.combine.entry(row, len(clients))
                state = slot.combine.init(len(clients), row.numel(), layouts.get(to))
            rules[f"{exchange.name}/{name}"] = {"combine": state, "apply": {}}
    return State(0, inbox, rules, seed)


def play(
    method: Method,
    state: State,
    backend: Backend,
    clients: Sequence[str],
    rounds: int,
    fraction: float | int = 1.0,
    on_bad_reply: OnBadReply = "stop",
) -> tuple[State, list[Outcome]]:
    """Play the rounds from `state.round` to `rounds`; see `play_round`."""
    outcomes: list[Outcome] = []
    while state.round < rounds:
        state, new = play_round(method, state, backend, clients, rounds, fraction, on_bad_reply)
        outcomes += new
    return state, outcomes


def play_round(
    method: Method,
    state: State,
    backend: Backend,
    clients: Sequence[str],
    rounds: int,
    fraction: float | int = 1.0,
    on_bad_reply: OnBadReply = "stop",
    watch: Watch | None = None,
) -> tuple[State, list[Outcome]]:
    """One round: every exchange of the method that is due, in order.

    clients: the roster, by name. fraction: the share of the roster that takes part (a float in
    (0, 1]) or how many (an integer). A reply with NaN, infinity or a wrong shape raises BadReply
    with the client's name, or is left out and named in the outcome (`"drop"`). Clients that do not
    answer what a rule asks of them in the middle of an exchange are left out in any case, and the
    rules begin again with those who are there.
    """
    roster = sorted(clients)
    sampled = sample(roster, fraction, Turn(state.seed, state.round, rounds))
    outcomes = []
    for order, exchange in enumerate(method.exchanges):
        if not due(exchange, state.round, rounds):
            continue
        turn = Turn(
            state.seed, state.round, rounds, exchange.name, order=order, roster=tuple(roster)
        )
        names = recipients(exchange, roster, sampled)
        replies = backend.map(exchange, state.inbox, names, turn)
        names, replies, dropped = sound(names, replies, exchange, state.inbox, on_bad_reply)
        while True:
            table = tabulate(names, replies, roster, turn)
            try:
                after = aggregate(exchange, state, backend, replies, table, turn, watch)
                break
            except Departed as gone:  # a question of the rules' was not answered
                names, replies = without(names, replies, gone)
                dropped |= dict.fromkeys(gone.names, "no answer within the exchange")
        state, weights, seen = after
        outcomes.append(Outcome(turn, tuple(names), table, weights, dropped, seen))
    return replace(state, round=state.round + 1), outcomes


def without(
    names: Sequence[str], replies: Sequence[Reply], gone: Departed
) -> tuple[list[str], list[Reply]]:
    """The clients that are left, and their replies."""
    kept = [i for i, name in enumerate(names) if name not in gone.names]
    if not kept or len(kept) == len(names):
        raise gone
    return [names[i] for i in kept], [replies[i] for i in kept]


def sample(roster: Sequence[str], fraction: float | int, turn: Turn) -> list[str]:
    """Who takes part in this round, in roster order; keyed by the round alone."""
    K = len(roster)
    if isinstance(fraction, int):
        number("participation (a count)", fraction, 1, K, whole=True)
        count = fraction
    else:
        number("participation (a fraction)", fraction, 0, 1, open_low=True)
        count = max(1, round_share(fraction, K))
    chosen = torch.randperm(K, generator=turn.generator("participation"))[:count]
    return [roster[i] for i in sorted(chosen.tolist())]


def recipients(exchange: Exchange, roster: list[str], sampled: list[str]) -> list[str]:
    """Whom an exchange goes to, by name."""
    if isinstance(exchange.who, tuple):
        return list(exchange.who)
    return sampled if exchange.who == "sampled" else roster


def due(exchange: Exchange, round: int, rounds: int) -> bool:
    """Whether the exchange runs in this round; an evaluation also runs in the last one."""
    first, every = exchange.rounds
    if not exchange.slots and round == rounds - 1:
        return True
    return round == first or (every > 0 and round > first and (round - first) % every == 0)


def aggregate(
    exchange: Exchange,
    state: State,
    backend: Backend,
    replies: Sequence[Reply],
    table: Table,
    turn: Turn,
    watch: Watch | None = None,
) -> tuple[State, Mapping[str, Tensor], Mapping[str, Any]]:
    """Every slot's rule, and how each entry's sum enters the inbox; rules see the inbox as sent."""
    rules = dict(state.rules)
    weights: dict[str, Tensor] = {}
    vectors: dict[str, Tensor] = {}
    stacks: dict[str, Rows] = {}
    for name, slot in exchange.slots.items():
        key, to = f"{exchange.name}/{name}", slot.to or name
        rows = backend.rows(name, replies, state.inbox[to])
        vector, memory, w = combined(
            slot, rows, table, rules[key]["combine"], turn.generator(f"rule/{name}"), weights
        )
        if watch is not None:
            stacks[name] = rows
        if w is not None:
            weights[name] = w
        vectors[name] = vector
        rules[key] = {**rules[key], "combine": memory}
    sums = sum_by_entry(exchange, vectors)
    seen = watch(exchange, state.inbox, stacks, sums, table, turn) if watch is not None else {}
    before = {name: rules[f"{exchange.name}/{name}"]["apply"] for name in exchange.slots}
    entries, after = apply_sums(exchange, state.inbox, sums, before, table)
    for name, memory in after.items():
        key = f"{exchange.name}/{name}"
        rules[key] = {**rules[key], "apply": memory}
    return replace(state, inbox=entries, rules=rules), weights, seen


def sum_by_entry(exchange: Exchange, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return inbox entry -> the sum of what its slots made, for slot -> vector [P]."""
    sums: dict[str, Tensor] = {}
    for name, slot in exchange.slots.items():
        to = slot.to or name
        sums[to] = sums[to] + vectors[name] if to in sums else vectors[name]
    return sums


def apply_sums(
    exchange: Exchange,
    inbox: Inbox,
    sums: Mapping[str, Tensor],
    states: Mapping[str, Mapping[str, Any]],
    table: Table,
) -> tuple[dict[str, Tensor], dict[str, Mapping[str, Any]]]:
    """Return the inbox once an exchange's sums have entered it, and what the steps remember.

    The server does it at the end of a round; behind a blind server every site does.

    Args:
        exchange: The exchange whose rules made the sums.
        inbox: The inbox as it was sent out.
        sums: Inbox entry -> the sum of what its slots made [P].
        states: Slot -> what its step remembers; of slots without a state nothing.
        table: The scalars of those present.
    """
    entries, after, ahead = dict(inbox), dict(states), dict(sums)
    for name, slot in exchange.slots.items():
        to = slot.to or name
        if to not in ahead:
            continue  # the first slot of this entry has applied them all
        vector = ahead.pop(to)
        if slot.apply is None:
            entries[to] = vector
        else:
            entries[to], after[name] = slot.apply(entries[to], vector, after.get(name, {}), table)
    return entries, after


def combined(
    slot: Slot,
    rows: Rows,
    table: Table,
    state: Mapping[str, Any],
    generator: torch.Generator,
    weights: Mapping[str, Tensor],
) -> tuple[Tensor, Mapping[str, Any], Tensor | None]:
    """One slot's vector: by its own rule, or with another slot's weights."""
    if slot.combine is None:
        shared = weights[slot.like or ""]
        return rows.linear(shared), state, shared
    return slot.combine(rows, table, state, generator)
