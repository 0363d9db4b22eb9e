"""Clients of which some do a little of their work, and their steps timed apart from the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from unseen.backend.inprocess import InProcess
from unseen.client import Client
from unseen.exchange import Exchange, Inbox, Local, Memory, Reply, Turn
from unseen.study.estimate.cost import Work
from unseen.training import Training
from unseen.vector import Model


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
class Timed:
    """Adds the seconds of the local that takes the steps to those of its backend."""

    local: Local
    backend: Sampled

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        begun = self.backend.tick()
        found = self.local(model, inbox, client, memory, turn)
        self.backend.trained += self.backend.tick() - begun
        return found


def recipe_of(local: Any) -> Training | None:
    """How the innermost local trains, if it does."""
    while hasattr(local, "local"):
        local = local.local
    found: Training | None = getattr(local, "training", None)
    return found


def timed(local: Any, work: Work, backend: Sampled) -> Any:
    """The local with its innermost part timed where that trains, for so many steps whatever the
    method says."""
    if hasattr(local, "local"):
        return replace(local, local=timed(local.local, work, backend))
    if not hasattr(local, "training"):
        return local
    training = replace(local.training, epochs=None, steps=work.steps, drop_last=False)
    return Timed(replace(local, training=training), backend)


def shortened(client: Client, rows: int, name: str = "train") -> Client:
    """The client with so many rows of one split, spread over it so that classes are there, and
    without the other."""
    split = client.split(name)
    spread = torch.linspace(0, len(split) - 1, min(rows, len(split)), dtype=torch.float64)
    short = split.take(spread.round().long())
    if name == "train":
        return replace(client, train=short, validation=None)
    return replace(client, train=None, validation=short)
