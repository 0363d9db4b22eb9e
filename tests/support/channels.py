"""Federations behind channels, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from support.sites import federation
from unseen import InProcess, Model, Training, method, start
from unseen.core.apply import Add
from unseen.core.client import Client
from unseen.core.exchange import Exchange, Method, Outcome, Reply, Slot, State
from unseen.core.metrics.evaluation import plain
from unseen.core.round import play
from unseen.core.turn import Turn
from unseen.privacy import channel, ckks, kinds


def network(inputs: int = 6, classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes)
    )


def convolutions(classes: int = 3) -> nn.Module:
    """6,000 parameters: more than one ciphertext holds."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 16, 20), nn.ReLU(), nn.Linear(20, classes),
    )  # fmt: skip


def trained(
    expression: str,
    clients: Mapping[str, Client] | int,
    over: str = "clear",
    server: Any = "clear",
    rounds: int = 3,
    training: Training | None = None,
    module: Any = network,
    fraction: float | int = 1.0,
) -> tuple[State, list[Outcome], Any]:
    """The state, the outcomes and the backend after a few rounds behind a channel."""
    clients = federation(clients) if isinstance(clients, int) else clients
    made = method(expression, training or Training(batch_size=8))
    model = Model(module(), shape=tuple(next(iter(clients.values())).split("train").x.shape[1:]))
    state = start(made, model, sorted(clients), 0)
    backend: Any = InProcess(model, clients)
    kind = channel.read(over, server)
    if kind.hides:
        backend = channel.wrap(kind, made, backend, sorted(clients))
        made = backend.played(made)
    state, outcomes = play(made, state, backend, sorted(clients), rounds, fraction)
    return state, outcomes, backend


def difference(found: Tensor, expected: Tensor) -> float:
    """‖a − b‖ / ‖b‖."""
    return float((found - expected).norm() / expected.norm())


class Stack:
    """Rows [K, P] at K sites with encrypted messages, and no training: for one rule."""

    def __init__(self, rows: Tensor, rule: Any, gram: str = "exact", keys: Any = None) -> None:
        self.secret, self.public = keys or ckks.make_keys()
        self.names = [f"site-{k}" for k in range(len(rows))]
        slot = Slot(rule, apply=Add())
        self.exchange = Exchange("train", local=None, slots={"model": slot})  # type: ignore[arg-type]
        self.method = Method("stack", (self.exchange,), (), plain)
        width = channel.CKKS(gram).width
        self.server = ckks.Server({kinds.PUBLIC: self.public}, width)
        files = {kinds.SECRET: self.secret}
        self.sites = {n: ckks.Site(self.method, n, files, width) for n in self.names}
        self.turn = Turn(0, -1, 3, "train", roster=tuple(self.names))
        self.questions: list[dict[str, bytes]] = []
        self.begin(rows)

    def begin(self, rows: Tensor) -> None:
        """The next round, in which the sites hold these rows."""
        self.turn = replace(self.turn, round=self.turn.round + 1)
        self.server.begin(self.exchange, self.turn)
        self.messages = {
            name: self.sites[name].seal(
                self.exchange, Reply({"model": row}), {}, replace(self.turn, client=name)
            )["model"]
            for name, row in zip(self.names, rows, strict=True)
        }

    def ask(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        self.questions.append(dict(questions))
        return {name: self.sites[name].answer(q) for name, q in questions.items()}

    def rows(self) -> ckks.EncryptedRows:
        sealed = [self.server.opened(n, {"model": self.messages[n]})["model"] for n in self.names]
        return self.server.rows("model", sealed, self.ask)

    def combine(self, rule: Any, table: Any = None, layout: Any = None) -> Any:
        rows = self.rows()
        state = rule.init(*rows.shape, layout)
        return rule(rows, table or {}, state, torch.Generator().manual_seed(5))


def updates(K: int, P: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.03 * torch.randn(K, P, generator=generator)
