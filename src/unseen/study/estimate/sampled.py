"""Clients of which some do a little of their work, and their steps timed apart from the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from unseen.core.client import Client
from unseen.core.exchange import Exchange, Local, Reply, Turn
from unseen.core.parts import Wrapper, innermost, rewrapped
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model
from unseen.engine.inprocess import InProcess
from unseen.local.train import Train
from unseen.recipe import Training
from unseen.study.estimate.cost import Work


class Sampled(InProcess):
    """Clients of which some do a little of their work, and the others hand in what those made.

    The server meets as many rows as in the study, and what rules and memories take is there, but
    only the first `work.clients` of an exchange are worked for. busy: seconds of these;
    idle: of making the others' replies; trained: of steps alone.
    """

    def __init__(
        self,
        model: Model,
        clients: Mapping[str, Client],
        tick: Callable[[], float],
        memory_limit: int | None = None,
    ) -> None:
        self.whole, self.tick = clients, tick
        self.busy = self.idle = self.trained = 0.0
        self.work = Work(1, 1, 1)
        self.latest: list[tuple[Reply, Memory]] = []
        few = {name: shortened(client, 1) for name, client in clients.items()}
        super().__init__(model, few, memory_limit=memory_limit)

    def give(self, work: Work) -> None:
        """What is done next."""
        self.work, self.latest = work, []
        self.busy = self.idle = self.trained = 0.0
        device = self.model.device
        for name, client in self.whole.items():
            short = shortened(client, work.rows)
            self.clients[name] = replace(short, train=short.split("train").to(device))

    def _one(self, exchange: Exchange, inbox: Inbox, name: str, turn: Turn, k: int) -> Reply:
        begun, label = self.tick(), (turn.round, turn.order)
        if len(self.latest) < self.work.clients:
            reply = super()._one(exchange, inbox, name, turn, k)
            kept = self.memories.before(name, (turn.round, turn.order + 1))
            self.latest.append((reply, kept))
            self.busy += self.tick() - begun
            return reply
        reply, memory = self.latest[k % self.work.clients]
        rows = {slot: row.clone() for slot, row in reply.rows.items()}
        if "model" in rows:
            # Another direction of the same length: equal rows would be a special case to rules.
            rows["model"] = self.matrix[k].copy_(rows["model"].roll(k))
        self.memories.write(name, label, {key: value.clone() for key, value in memory.items()})
        self.idle += self.tick() - begun
        return Reply(rows, reply.scalars)


@dataclass(frozen=True)
class Timed(Wrapper):
    """Adds the seconds of the local that takes the steps to those of its backend."""

    inner: Local
    backend: Sampled

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        begun = self.backend.tick()
        found = self.inner(model, inbox, client, memory, turn)
        self.backend.trained += self.backend.tick() - begun
        return found


def recipe_of(local: Local) -> Training | None:
    """How the innermost local trains, if it does."""
    trains = innermost(local)
    return trains.training if isinstance(trains, Train) else None


def timed(local: Local, work: Work, backend: Sampled) -> Local:
    """The local with its innermost part timed where that trains, for so many steps whatever the
    method says."""

    def inside(local: Local) -> Local:
        if not isinstance(local, Train):
            return local
        training = replace(local.training, epochs=None, steps=work.steps, drop_last=False)
        return Timed(replace(local, training=training), backend)

    return rewrapped(local, inside)


def shortened(client: Client, rows: int, name: str = "train") -> Client:
    """The client with so many rows of one split, spread over it so that classes are there, and
    without the other."""
    split = client.split(name)
    spread = torch.linspace(0, len(split) - 1, min(rows, len(split)), dtype=torch.float64)
    short = split.take(spread.round().long())
    if name == "train":
        return replace(client, train=short, validation=None)
    return replace(client, train=None, validation=short)
