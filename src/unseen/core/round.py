"""The whole server: `start` a state, `play` rounds of exchanges. No line here knows a method."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, get_args

import torch
from torch import Tensor

from unseen.core.client import Client, Memories
from unseen.core.entering import apply_sums, sum_by_place
from unseen.core.exchange import Disclosure, Exchange, Method, Outcome, Reply, State, Undecided
from unseen.core.replies import OnBadReply, sound, tabulate
from unseen.core.rows import Rows, RuleState
from unseen.core.schedule import round_share
from unseen.core.turn import Turn
from unseen.core.types import Inbox, Table
from unseen.core.vector import Model
from unseen.errors import Departed, UnseenError, choice, number


class Backend(Protocol):
    """Where clients run. What inherits from it carries no channel unless it says so.

    Attributes:
        model: The module that the clients here train.
        clients: Those that are here, by name; none where they are at sites.
        memories: What the clients here remember.
    """

    model: Model
    clients: Mapping[str, Client]
    memories: Memories

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        """Return one reply for each named client, in the order of the names."""

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> Rows:
        """Return one slot's stack of replies, as the server may use it."""

    def to_checkpoint(self) -> Memories:
        """Return what of the clients' memories belongs in a checkpoint."""
        return self.memories

    def carries_channel(self) -> bool:
        """Return whether rows travel by a channel of the backend's own, not in the clear."""
        return False

    def played(self, method: Method) -> Method:
        """Return the method as the server plays it."""
        return method

    def disclosed(self) -> Sequence[Disclosure]:
        """Return what left each client in the last exchange, where a channel changed it."""
        return ()

    def undecided(self) -> Sequence[Undecided]:
        """Return the pairs since the last call whose inner product might be 0."""
        return ()


#: Sees what the rules of an exchange saw and made of it, and changes nothing: (exchange, the inbox
#: as sent, the rows by slot, the rules' results by inbox entry, table, turn) -> what the `Outcome`
#: keeps. All of it lives until the next exchange. It reads updates in the clear: for simulation.
Watch = Callable[
    [Exchange, Inbox, Mapping[str, Rows], Mapping[str, Tensor], Table, Turn], Mapping[str, Any]
]


def start(method: Method, model: Model, clients: Sequence[str], seed: int) -> State:
    """Return the state before round 0: the inbox, and what each rule remembers.

    Args:
        method: What is going to be played.
        model: The model that round 0 starts from.
        clients: The roster, by name.
        seed: The job's seed.

    Raises:
        UnseenError: If the method plays with other clients, or has not been completed.
    """
    _check(method, clients)
    inbox: dict[str, Tensor] = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    layouts = {"model": model.layout, "buffers": model.buffer_layout}
    rules: dict[str, dict[str, RuleState]] = {}
    for exchange in method.exchanges:
        for name, slot in exchange.slots.items():
            to = slot.to or name
            memory = rules[exchange.memory(name)] = {"combine": {}, "apply": {}}
            if slot.start is not None:
                inbox[to] = slot.start(model)
            row, layout = slot.entry(inbox, name), layouts.get(to)
            if layout is not None and slot.part is not None:
                layout = layout.within(*slot.part)
            if slot.combine is not None:
                K = len(clients) if slot.view is None else slot.view.size(len(clients))
                if slot.part is None:
                    inbox[to] = slot.combine.entry(row, K)
                memory["combine"] = slot.combine.init(K, row.numel(), layout)
    return State(0, inbox, rules, seed)


def _check(method: Method, clients: Sequence[str]) -> None:
    """Refuse a method of one pooled client with several, or one that waits for its network."""
    if method.gather is not None and len(clients) > 1:
        raise UnseenError(
            f"{method.name} trains on all rows in one place; it has {len(clients)} clients here.",
            remedy="Play it with clients = method.gather(clients), which is one client.",
        )
    if method.sized is not None:
        raise UnseenError(
            f"{method.name} makes a network or rules of its own for the data, and this loop plays "
            "the model as it is.",
            remedy="Use unseen.Study, unseen.train, or an estimator such as FederatedClassifier.",
        )


class AfterRound(Protocol):
    """What looks at each round that was played, to show it, to keep it or to stop early."""

    def __call__(self, state: State, outcomes: Sequence[Outcome]) -> bool | None:
        """Return True to end the training.

        Args:
            state: The state after the round.
            outcomes: One for each exchange of the round.
        """
        ...


def play(
    method: Method,
    state: State,
    backend: Backend,
    clients: Sequence[str],
    rounds: int,
    fraction: float | int = 1.0,
    on_bad_reply: OnBadReply = "stop",
    after: AfterRound | None = None,
) -> tuple[State, list[Outcome]]:
    """Play the rounds from `state.round` to `rounds`; see `play_round`.

    Args:
        method: What is played.
        state: The state before the first round.
        backend: Where the clients run.
        clients: The roster, by name.
        rounds: The number of rounds in all, which schedules count by.
        fraction: The share of the roster that takes part in a round, or how many.
        on_bad_reply: What happens to a reply with a fault.
        after: Is called after each round; where it returns True no further round is played.
    """
    outcomes: list[Outcome] = []
    while state.round < rounds:
        state, new = play_round(method, state, backend, clients, rounds, fraction, on_bad_reply)
        outcomes += new
        if after is not None and after(state, new):
            break
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
    owned: set[str] | None = None,
) -> tuple[State, list[Outcome]]:
    """Play one round: every exchange of the method that is due, in order.

    Args:
        method: What is played.
        state: The state before the round.
        backend: Where the clients run.
        clients: The roster, by name.
        rounds: The number of rounds in all.
        fraction: The share of the roster that takes part (a float in (0, 1]) or how many (an
            integer).
        on_bad_reply: What happens to a reply with NaN, infinity or a wrong shape: it raises
            BadReply with the client's name ("stop"), or is left out and named in the outcome
            ("drop"). Clients that do not answer what a rule asks of them in the middle of an
            exchange are left out in any case, and the rules begin again with those who are there.
        watch: Who looks on.
        owned: The entries that nobody but this state has, see `apply_sums`; the state is then used
            up. None: it stays as it is.

    Returns:
        The state after the round, and one outcome per exchange.
    """
    choice("on_bad_reply", on_bad_reply, get_args(OnBadReply))
    roster = sorted(clients)
    whole = Turn(state.seed, state.round, rounds, roster=tuple(roster))
    sampled = sample(roster, fraction, whole)
    outcomes = []
    for order, exchange in enumerate(method.exchanges):
        if not due(exchange, state.round, rounds):
            continue
        turn = replace(whole, exchange=exchange.name, order=order)
        names = recipients(exchange, roster, sampled)
        replies = backend.map(exchange, state.inbox, names, turn)
        names, replies, dropped = sound(names, replies, exchange, state.inbox, on_bad_reply)
        while True:
            table = tabulate(names, replies, roster, turn)
            try:
                after = aggregate(exchange, state, backend, replies, table, turn, watch, owned)
                break
            except Departed as error:  # a question of the rules' was not answered
                here = {n: r for n, r in zip(names, replies, strict=True) if n not in error.names}
                if len(here) in (0, len(names)):
                    raise
                names, replies = list(here), list(here.values())
                silent = dict.fromkeys(error.names, "no answer within the exchange")
                dropped |= silent | error.faults
        state, weights, notes = after
        outcomes.append(Outcome(turn, tuple(names), table, weights, dropped, notes))
    return replace(state, round=state.round + 1), outcomes


def sample(roster: Sequence[str], fraction: float | int, turn: Turn) -> list[str]:
    """Return who takes part in this round, in roster order; keyed by the round alone.

    Args:
        roster: All clients, sorted.
        fraction: The share of them, a float in (0, 1], or how many, an integer.
        turn: The round, of no exchange and no client.
    """
    K = len(roster)
    if isinstance(fraction, int):
        number("participation (a count)", fraction, 1, K, whole=True)
        count = fraction
    else:
        number("participation (a fraction)", fraction, 0, 1, open_low=True)
        count = K if fraction == 1 else max(1, round_share(fraction, K))
    if count == K:
        return list(roster)
    index = torch.randperm(K, generator=turn.generator("participation"))[:count]
    return [roster[i] for i in sorted(index.tolist())]


def recipients(exchange: Exchange, roster: list[str], sampled: list[str]) -> list[str]:
    """Return whom an exchange goes to, by name."""
    by_word = {"sampled": sampled, "all": roster}
    return by_word[exchange.who] if isinstance(exchange.who, str) else list(exchange.who)


def due(exchange: Exchange, round: int, rounds: int) -> bool:
    """Return whether the exchange runs in this round; an evaluation also runs in the last one."""
    first, every = exchange.rounds
    if not exchange.slots and round == rounds - 1:
        return True
    if exchange.until is not None and round >= exchange.until:
        return False
    first = first + rounds if first < 0 else first
    return round == first or (every > 0 and round in range(first, round + 1, every))


def aggregate(
    exchange: Exchange,
    state: State,
    backend: Backend,
    replies: Sequence[Reply],
    table: Table,
    turn: Turn,
    watch: Watch | None = None,
    owned: set[str] | None = None,
) -> tuple[State, Mapping[str, Tensor], Mapping[str, Any]]:
    """Run every slot's rule, and apply each entry's sum; rules see the inbox as it was sent.

    Args:
        exchange: The exchange.
        state: The state that the clients were sent.
        backend: Where the clients run.
        replies: Those that a rule may use.
        table: Their scalars.
        turn: Which exchange it is.
        watch: Who looks on.
        owned: See `play_round`.

    Returns:
        The new state, slot -> weights, and what the watch saw.
    """
    rules = {key: dict(memory) for key, memory in state.rules.items()}
    weights, vectors, stacks = dict[str, Tensor](), dict[str, Tensor](), dict[str, Rows]()
    for name, slot in exchange.row_slots.items():
        rows: Rows = backend.rows(name, replies, slot.entry(state.inbox, name))
        seen_by_rule = table if slot.view is None else slot.view.table(table)
        if slot.view is not None and 0 < len(seen_by_rule["client"]) < len(table["client"]):
            rows = rows.take(slot.view.present(table))
        if not len(seen_by_rule["client"]):  # all who are here stay out of this federation
            vectors[name] = torch.zeros(rows.shape[1], dtype=state.inbox["model"].dtype)
            weights[name] = torch.zeros(0, dtype=torch.float64)
            continue
        if watch is not None:
            stacks[name] = rows
        memory = rules[exchange.memory(name)]
        if slot.combine is None:
            weights[name] = weights[slot.like or ""]
            vectors[name] = rows.linear(weights[name])
            continue
        view = slot.view
        draws = turn.generator(f"rule/{name}") if view is None else view.draws(turn, name)
        vectors[name], memory["combine"], w = slot.combine(
            rows, seen_by_rule, memory["combine"], draws
        )
        if w is not None:
            weights[name] = w
    sums = sum_by_place(exchange, vectors)
    whole = {entry: vector for (entry, part), vector in sums.items() if part is None}
    notes = watch(exchange, state.inbox, stacks, whole, table, turn) if watch is not None else {}
    before = {name: rules[exchange.memory(name)]["apply"] for name in exchange.slots}
    entries, after = apply_sums(exchange, state.inbox, sums, before, table, owned)
    for name, applied in after.items():
        rules[exchange.memory(name)]["apply"] = applied
    views = {name: exchange.slots[name].view for name in weights}
    full = {n: w if (v := views[n]) is None else v.spread(w, table) for n, w in weights.items()}
    return replace(state, inbox=entries, rules=rules), full, notes
