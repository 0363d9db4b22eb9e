"""Clients in this process, one after the other, each training in its row of one matrix."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from typing import cast

from torch import Tensor, float16

from unseen.core import (
    Backend,
    Client,
    DenseRows,
    Exchange,
    Inbox,
    Local,
    Memories,
    Memory,
    Method,
    Model,
    Reply,
    Rows,
    Turn,
)
from unseen.core.added_rows import Added, AddedRows, add, totals
from unseen.core.entering import apart
from unseen.core.joint import Ask, JointLocal, OneOf, Several
from unseen.core.parts import able
from unseen.core.replies import diverged, finished
from unseen.core.row_store import RowMatrix, keep_freed_memory
from unseen.core.vector import stack
from unseen.errors import UnseenError

#: The local, the model and the client of an ask.
Key = tuple[int, int, str]


@dataclass(frozen=True)
class Ready:
    """What is known of an exchange's answers before any client is asked.

    Attributes:
        answers: What answers instead of locals.
        trains: The clients whose model something is still asked of.
    """

    answers: Mapping[Key, Local]
    trains: Set[str]


class InProcess(Backend):
    """One module, bound in turn to each client's row of a [K, P] matrix.

    Note:
        Nothing is copied into state dicts. The replies' rows are views of the matrix, and live
        until the next exchange.

    Args:
        model: The module that all clients share.
        clients: The clients by name.
        memories: What they remember, from a checkpoint.
        memory_limit: The bytes that the matrix may take in memory; a larger one lies in a file, see
            `unseen.core.row_store.RowMatrix`.
    """

    def __init__(
        self,
        model: Model,
        clients: Mapping[str, Client],
        memories: Memories | None = None,
        memory_limit: int | None = None,
    ) -> None:
        keep_freed_memory()
        self.model = model
        self.clients: dict[str, Client] = {}
        for name, client in clients.items():
            check_types(model, client)
            splits = (s and s.to(model.device) for s in (client.train, client.validation))
            train, validation = splits
            self.clients[name] = replace(client, train=train, validation=validation)
        self.memories = memories if memories is not None else Memories()
        self.memory_limit = memory_limit
        self._hold(1)

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        trains = exchange.slots and not all(
            able(one, "sends_sums") for one in single(exchange.local)
        )
        places = range(len(clients)) if trains else [0] * len(clients)
        if len(self.matrix) < max(places, default=0) + 1:
            self._hold(len(clients))
        asks = cache(lambda: self._leaves(exchange, inbox, clients, turn))
        answers = self._ready(exchange, asks)
        left = [ask for ask in asks() if not is_given(ask, answers)] if answers else []
        ready = Ready(answers, {ask.turn.client for ask in left} if answers else {*clients})
        replies = []
        # The row of one alone may be wanted by whoever sends it on.
        sums = totals(exchange, inbox) if len(clients) > 1 else {}
        for name, k in zip(clients, places, strict=True):
            reply = self._one(exchange, inbox, name, turn, k, ready)
            replies.append(add(reply, sums, exchange, inbox))
            self._rows.let_go()
        return replies

    def _one(
        self, exchange: Exchange, inbox: Inbox, name: str, turn: Turn, k: int, ready: Ready
    ) -> Reply:
        """Return a client's reply, made in row k of the matrix, and keep what it remembers."""
        asked = self._asked(exchange, inbox, name, turn)
        bound = self._receive(exchange, inbox, k) if name in ready.trains else {}
        try:
            reply, memory = self._answer(asked, bound, ready.answers)
        except Exception as error:
            at = f"(at client {name!r}, exchange {turn.exchange!r}, round {turn.round})"
            error.add_note(at)
            raise
        if memory and diverged(reply):  # left out of the round, and of what the client remembers
            memory = asked.memory
        memory = apart(memory, inbox["model"], inbox["buffers"])
        self.memories.write(name, (turn.round, turn.order), memory)
        return reply

    def _asked(self, exchange: Exchange, inbox: Inbox, name: str, turn: Turn) -> Ask:
        memory = self.memories.before(name, (turn.round, turn.order))
        return Ask(exchange, self.model, inbox, memory, turn.at(name))

    def _leaves(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Ask]:
        """Return what is asked of every client by every single federation."""
        self._receive(exchange, inbox, 0)
        asks = (self._asked(exchange, inbox, name, turn) for name in clients)
        return [leaf for ask in asks for leaf in leaves(ask)]

    def _ready(self, exchange: Exchange, asks: Callable[[], list[Ask]]) -> dict[Key, Local]:
        """Return what gives answers that cost less for all clients at once.

        Args:
            exchange: The exchange.
            asks: Returns what is asked of every client by every single federation.
        """
        ready: dict[Key, Local] = {}
        if not any(isinstance(one, JointLocal) for one in single(exchange.local)):
            return ready
        alike: dict[tuple[int, int], list[Ask]] = {}
        for ask in asks():
            if isinstance(ask.exchange.local, JointLocal):
                alike.setdefault((id(ask.exchange.local), id(ask.model)), []).append(ask)
        for group in alike.values():
            first, *_ = group
            assert isinstance(first.exchange.local, JointLocal)
            here = [self.clients[ask.turn.client] for ask in group]
            memories, nobody = [ask.memory for ask in group], replace(first.turn, client="")
            answers = first.exchange.local.answers(first.model, first.inbox, here, memories, nobody)
            ready |= zip(map(key_of, group), (Given(*answer) for answer in answers), strict=True)
        return ready

    def _answer(
        self, ask: Ask, bound: Mapping[str, Tensor], ready: Mapping[Key, Local]
    ) -> tuple[Reply, Memory]:
        """Return the reply to what is asked, with differences taken, and what the client remembers.

        Args:
            ask: What is asked, by one federation or by several.
            bound: Slot -> the tensor that its model is bound to.
            ready: What answers instead of a local, since its answer is there already.
        """
        exchange, model, inbox, memory, turn = ask
        local = exchange.local
        if isinstance(local, OneOf):
            return self._answer(narrowed(ask, local), bound, ready)
        if isinstance(local, Several):
            answers = [
                self._answer(own, vectors(own.model), ready)
                for own in local.asked(model, inbox, memory, turn)
            ]
            reply, memory = local.answered(model, inbox, memory, turn, answers)
        else:
            local = ready.get(key_of(ask), local)
            reply, memory = local(model, inbox, self.clients[turn.client], memory, turn)
        return finished(reply, exchange, inbox, bound), memory

    def _hold(self, count: int) -> None:
        self._rows = RowMatrix(count, self.model.vector, self.memory_limit)
        self.matrix = self._rows.matrix
        self.buffers = stack(count, self.model.buffers)

    def _receive(self, exchange: Exchange, inbox: Inbox, k: int) -> dict[str, Tensor]:
        """Bind the model to row k of the matrix, as a client receives it, and return the row."""
        vector, buffers = self.matrix[k], self.buffers[k]
        for part in ((None, None),) if exchange.reads is None else exchange.reads:
            vector[slice(*part)].copy_(inbox["model"][slice(*part)])
        buffers.copy_(inbox["buffers"])
        self.model.bind(vector, buffers)
        return {"model": vector, "buffers": buffers}

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> Rows:
        rows = [reply.rows[slot] for reply in replies]
        if rows and isinstance(rows[0], Added):
            return AddedRows(cast("list[Added]", rows))
        return DenseRows(rows, reference, self.memory_limit)


@dataclass(frozen=True)
class Given:
    """An answer that is there already, and looks at no model.

    Attributes:
        reply: Its reply.
        memory: What the client remembers after it; None: what it did before.
    """

    reply: Reply
    memory: Memory | None = None

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        return self.reply, memory if self.memory is None else self.memory


def is_given(ask: Ask, answers: Mapping[Key, Local]) -> bool:
    """Return whether the answer to an ask is there already."""
    return isinstance(answers.get(key_of(ask)), Given)


def key_of(ask: Ask) -> Key:
    """Return what tells an ask from the others of its exchange."""
    return id(ask.exchange.local), id(ask.model), ask.turn.client


def vectors(model: Model) -> dict[str, Tensor]:
    """Return slot -> the tensor that a model is bound to."""
    return {"model": model.vector, "buffers": model.buffers}


def narrowed(ask: Ask, local: OneOf) -> Ask:
    """Return the ask with the local that the inbox names."""
    return ask._replace(exchange=replace(ask.exchange, local=local.choice(ask.inbox)))


def leaves(ask: Ask) -> Iterator[Ask]:
    """Yield what is asked by single federations."""
    local = ask.exchange.local
    if isinstance(local, OneOf):
        yield from leaves(narrowed(ask, local))
    elif isinstance(local, Several):
        for own in local.asked(ask.model, ask.inbox, ask.memory, ask.turn):
            yield from leaves(own)
    else:
        yield ask


def locals_of(method: Method) -> Iterator[Local]:
    """Yield what clients do in the exchanges that send rows, of each of several federations."""
    for exchange in method.exchanges:
        if exchange.slots:
            yield from single(exchange.local)


def single(local: Local) -> Iterator[Local]:
    """Yield the local, or those that it stands for, down to those of single federations."""
    if isinstance(local, OneOf):
        for one in local.locals:
            yield from single(one)
    elif isinstance(local, Several):
        for method in local.methods:
            yield from locals_of(method)
    else:
        yield local


def check_types(model: Model, client: Client) -> None:
    """Refuse data of another floating type than the model's, which no layer takes."""
    expected = model.vector.dtype
    if model.layout.size == 0:  # sums over raw tables have no model
        return
    for split in filter(None, (client.train, client.validation)):
        for label, values in (("inputs", split.x), ("labels", split.y)):
            if values.dtype.is_floating_point and values.dtype not in (expected, float16):
                kind, own = (str(t).removeprefix("torch.") for t in (values.dtype, expected))
                fault = f"client {client.name!r} has {label} in {kind}; expected {own}."
                raise UnseenError(fault, remedy=f"Give it {label}.to(torch.{own}).")
