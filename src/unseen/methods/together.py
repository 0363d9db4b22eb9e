"""Several federations in one: their networks in one vector, their rows in one message.

Each has its part of the model's vector, its own rules, entries, memories and draws, as if it were
alone. Exchanges that are due in the same rounds become one. `ensemble` and `stack` are made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Literal, NamedTuple, Self

from torch import Tensor, nn

from unseen.core import Client, Exchange, Inbox, Memory, Method, Model, Reply, Slot, Turn
from unseen.core.exchange import SHARED, Blueprint, Local
from unseen.core.joint import Ask, Several
from unseen.core.metrics.evaluation import plain
from unseen.core.replies import finished
from unseen.core.turn import View, other_seed
from unseen.errors import Incompatible
from unseen.methods.base import incompatible
from unseen.methods.mixture_replies import as_in, nothing, summary, unharmed


@dataclass(frozen=True)
class Federation:
    """One of several federations.

    Attributes:
        method: What it plays.
        module: Where its network lies in the whole one, such as `members.2`.
        seed: Which other seed it draws by; 0 is the job's own.
        fold: (g, G): the clients at places g, g + G, ... of the roster stay out of it.
        begin: The round of all that is its first.
        reads: Its name of an entry that it reads and others write -> the entry.
        spared: Whether a client whose training diverges changes nothing, and does not end the run:
            what is tried, and what trains at the rate that was best when tried.
        rounds: How many rounds it takes, once that is known.
        sends: Scalars of its clients that others than its own rules read.
    """

    method: Method
    module: str
    seed: int = 0
    fold: tuple[int, int] | None = None
    begin: int = 0
    reads: Mapping[str, str] = field(default_factory=dict)
    spared: bool = False
    rounds: int | None = None
    sends: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What the names of its slots, scalars and memories end with."""
        return f"@{self.module}"

    @property
    def ends(self) -> tuple[str, ...]:
        """How the names of the entries end that it reads."""
        return self.key, *self.reads.values()

    def has(self, place: int) -> bool:
        """Return whether the client at a place of the roster takes part; −1 is not on it."""
        return self.fold is None or place < 0 or place % self.fold[1] != self.fold[0]

    def roster(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of its own clients."""
        return tuple(name for place, name in enumerate(names) if self.has(place))

    def view(self, exchange: Exchange, slot: Slot) -> View:
        """Return what a rule of one of its exchanges sees."""
        inner = slot.view or View("", exchange.name)
        return replace(
            inner,
            key=inner.key + self.key,
            seed=inner.seed + self.seed,
            rounds=self.rounds if inner.rounds is None else inner.rounds,
            folds=(*([self.fold] if self.fold is not None else []), *inner.folds),
            begin=inner.begin + self.begin,
        )

    def network(self, blueprint: Blueprint) -> nn.Module:
        """Return its network, with the first weights of its seed."""
        first = blueprint.network if self.seed == 0 else blueprint.another(self.seed)
        if self.method.adapt is None:
            return first
        own = replace(
            self.among(blueprint),
            network=first,
            another=lambda m: blueprint.another(self.seed + m),
        )
        return self.method.adapt(own)

    def among(self, blueprint: Blueprint) -> Blueprint:
        """Return the blueprint with the number of its own clients."""
        whole = tuple(map(str, range(blueprint.clients)))
        return replace(blueprint, clients=len(self.roster(whole)))

    def sized(self, model: Model, blueprint: Blueprint) -> Federation:
        """Return it with its method completed for its network and the study."""
        method = self.method.completed(model.part(self.module), self.among(blueprint))
        return replace(self, method=method, rounds=method.rounds or blueprint.rounds)

    def slots(self, exchange: Exchange, model: Model | None) -> dict[str, Slot]:
        """Return the slots of one of its exchanges as they are in the whole one."""
        key, slots = self.key, {}
        own = model.places(self.module) if model is not None else dict.fromkeys(SHARED, (0, 0))
        for name, slot in exchange.slots.items():
            to = slot.to or name
            begin, end = own.get(to, (0, 0))
            inner = slot.part or (0, end - begin)
            slots[name + key] = replace(
                slot,
                to=to if to in own else to + key,
                part=(begin + inner[0], begin + inner[1]) if to in own else slot.part,
                like=slot.like and slot.like + key,
                follows=slot.follows and slot.follows + key,
                start=slot.start and partial(started, slot.start, self.module),
                sends="value",
                memory=slot.memory and slot.memory + key,
                view=self.view(exchange, slot),
            )
        return slots

    def received(self, inbox: Inbox, model: Model) -> dict[str, Tensor]:
        """Return its part of the inbox, under the names that it knows."""
        own = {short: inbox[name] for name, short in suffixed(self.key, tuple(inbox))}
        own |= {n: inbox[n][slice(*part)] for n, part in model.places(self.module).items()}
        return own | {name: inbox[entry] for name, entry in self.reads.items()}


@lru_cache(1024)
def suffixed(key: str, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the names that end with a key, each with what is before it."""
    return tuple((name, name.removesuffix(key)) for name in names if name.endswith(key))


def started(start: Callable[[Model], Tensor], module: str, model: Model) -> Tensor:
    """Return an entry before round 0, made of one federation's model."""
    return start(model.part(module))


@dataclass(frozen=True)
class Together(Several):
    """The locals of several federations at one client, one after the other.

    Attributes:
        federations: Those that take part in the exchange.
        exchanges: Their exchanges, in the same order.
    """

    federations: tuple[Federation, ...]
    exchanges: tuple[Exchange, ...]

    @property
    def methods(self) -> tuple[Method, ...]:
        return tuple(federation.method for federation in self.federations)

    def changed(self, change: Callable[[Local], Local]) -> Self:
        own = (replace(exchange, local=change(exchange.local)) for exchange in self.exchanges)
        return replace(self, exchanges=tuple(own))

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        answers = []
        for exchange, own, received, before, theirs in self.asked(model, inbox, memory, turn):
            reply, after = exchange.local(own, received, client, before, theirs)
            bound = {"model": own.vector, "buffers": own.buffers}
            answers.append((finished(reply, exchange, received, bound), after))
        return self.answered(model, inbox, memory, turn, answers)

    def asked(self, model: Model, inbox: Inbox, memory: Memory, turn: Turn) -> list[Ask]:
        asks, names = [], tuple(memory)
        for federation, exchange in zip(self.federations, self.exchanges, strict=True):
            if not federation.has(turn.index):
                continue
            key = federation.key
            before = {short: memory[name] for name, short in suffixed(key, names)}
            theirs = replace(
                turn,
                seed=other_seed(turn.seed, federation.seed),
                round=turn.round - federation.begin,
                rounds=federation.rounds or turn.rounds,
                exchange=exchange.name,
                roster=federation.roster(turn.roster),
            )
            own, received = model.part(federation.module), federation.received(inbox, model)
            asks.append(Ask(exchange, own, received, before, theirs))
        return asks

    def answered(
        self, model: Model, inbox: Inbox, memory: Memory, turn: Turn,
        answers: Sequence[tuple[Reply, Memory]],
    ) -> tuple[Reply, Memory]:  # fmt: skip
        rows: dict[str, Tensor] = {}
        scalars: dict[str, float | Tensor] = {}
        memories: dict[str, Tensor] = dict(memory)
        replies, left = list[Reply](), iter(answers)
        for federation, exchange in zip(self.federations, self.exchanges, strict=True):
            key, needed = federation.key, (*needs(exchange), *federation.sends)
            if not federation.has(turn.index):
                received, own = federation.received(inbox, model), model.part(federation.module)
                rows |= {name + key: row for name, row in nothing(exchange, received, own).items()}
                scalars |= {name + key: as_in(answers, name) for name in needed}
                continue
            reply, after = next(left)
            reply = unharmed(reply, exchange) if federation.spared else reply
            replies.append(reply)
            rows |= {name + key: row for name, row in reply.rows.items()}
            scalars |= {name + key: reply.scalars[name] for name in needed if name in reply.scalars}
            memories = {n: v for n, v in memories.items() if not n.endswith(key)}
            memories |= {name + key: value for name, value in after.items()}
        return Reply(rows, {**summary(replies), **scalars}), memories


def needs(exchange: Exchange) -> tuple[str, ...]:
    """Return the names of the scalars that an exchange's rules and steps read."""
    names = [
        name + (slot.view.key if slot.view is not None else "")
        for slot in exchange.slots.values()
        for name in (
            *(slot.combine.all_needs() if slot.combine is not None else ()),
            *getattr(slot.apply, "needs", ()),
        )
    ]
    return tuple(dict.fromkeys(names))


def together(federations: Sequence[Federation], model: Model | None = None) -> tuple[Exchange, ...]:
    """Return the exchanges of all federations; those due in the same rounds are one.

    Args:
        federations: Completed for their networks.
        model: The whole model; without it the exchanges show which rules there are, and no more.
    """
    merged: dict[Due, list[tuple[Federation, Exchange]]] = {}
    for federation in federations:
        for i, exchange in enumerate(federation.method.exchanges):
            until = exchange.until if exchange.until is not None else federation.rounds
            until = until if until is None else federation.begin + until
            first, every = exchange.rounds
            rounds = (federation.begin + first, every)
            due = Due(i, exchange.name, rounds, exchange.who, until)
            merged.setdefault(due, []).append((federation, exchange))
    exchanges: list[Exchange] = []
    for n, (due, pairs) in enumerate(merged.items()):
        slots: dict[str, Slot] = {}
        for federation, exchange in pairs:
            slots |= federation.slots(exchange, model)
        local = Together(*zip(*pairs, strict=True))
        name = f"{due.name}.{n}" if due.name in {e.name for e in exchanges} else due.name
        reads = None if model is None else spans(pairs, model)
        keys = tuple(end for federation, _ in pairs for end in federation.ends)
        exchanges.append(Exchange(name, local, slots, due.rounds, due.who, due.until, reads, keys))
    return tuple(exchanges)


def spans(
    pairs: Sequence[tuple[Federation, Exchange]], model: Model
) -> tuple[tuple[int, int], ...]:
    """Return which parts of the model's vector these exchanges read, neighbours as one."""
    own: list[tuple[int, int]] = []
    for federation, exchange in pairs:
        begin, end = model.layout.span(federation.module)
        reads = ((0, end - begin),) if exchange.reads is None else exchange.reads
        own += [(begin + first, begin + last) for first, last in reads]
    parts: list[tuple[int, int]] = []
    for begin, end in sorted(own):
        if parts and parts[-1][1] == begin:
            parts[-1] = (parts[-1][0], end)
        else:
            parts.append((begin, end))
    return tuple(parts)


class Due(NamedTuple):
    """When an exchange runs, and for whom; those of which all is the same become one."""

    order: int
    name: str
    rounds: tuple[int, int]
    who: Literal["sampled", "all"] | tuple[str, ...]
    until: int | None


def check_repeats(method: Method, modifier: str) -> None:
    """Refuse a modifier of rounds or seeds on a method that ends by itself."""
    if method.rounds is not None:
        raise incompatible(
            method,
            modifier,
            "ends by itself: it has no last rounds to average, and other seeds change nothing.",
            "Put it on a method that trains by rounds, or mix methods with stack.",
        )


def check_member(method: Method, name: str) -> None:
    """Refuse a method that cannot be one of several in a model."""
    if method.gather is not None:
        raise Incompatible(
            name, f"{method.name} pools the data, so it is not one of several federations."
        )
    if method.predict is not plain:
        raise Incompatible(
            name,
            f"{method.name} predicts with more than its network, and a mixture is of networks.",
        )
