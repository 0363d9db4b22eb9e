"""A client whose numbers stop being finite in one round remembers nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.alone import blueprint, completed
from support.sites import federation, images

from unseen import Training, method, play, start
from unseen.core import Exchange, Reply, Split, Turn
from unseen.core.optimiser import SGD
from unseen.engine.inprocess import InProcess

PLAIN = Training(SGD(0.05), batch_size=8)


class Diverging(InProcess):
    """Data of one client that no training withstands, in round 1 alone."""

    def map(
        self, exchange: Exchange, inbox: Any, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        name = min(self.clients)
        own = self.clients[name]
        if turn.round == 1:
            wrong = Split(own.train.x * 1e30, own.train.y)
            self.clients[name] = replace(own, train=wrong)
        try:
            return super().map(exchange, inbox, clients, turn)
        finally:
            self.clients[name] = own


@pytest.mark.parametrize(
    "expression, training",
    [
        ("fedavg+intercepts", PLAIN),
        ("moon", PLAIN),
        ("scaffold", PLAIN),
        ("feddyn", PLAIN),
        ("fedcurv", PLAIN),
        ("fedavg+compress", PLAIN),
        ("fedavg", Training(SGD(0.05, momentum=0.9), batch_size=8, keep_optimiser=True)),
        ("fedavg", Training(SGD(0.05), batch_size=8, buffers="local")),
        ("fedbn", PLAIN),
        ("gperxan", PLAIN),
        ("csac(local='latest')", PLAIN),
    ],
)
def test_one_bad_round_costs_a_client_that_round_alone(expression: str, training: Training) -> None:
    of_images = training.buffers == "local" or expression.startswith(("fedbn", "gperxan", "csac"))
    clients = images(4) if of_images else federation(4)
    plan, names = blueprint(clients, "bn-cnn" if of_images else "mlp"), sorted(clients)
    chosen, model = completed(method(expression, training), plan)
    backend, state = Diverging(model, clients), start(chosen, model, names, 0)
    state, _ = play(chosen, state, backend, names, 1, on_bad_reply="drop")
    before = dict(backend.memories.before(names[0], (1, 0)))
    state, outcomes = play(chosen, state, backend, names, 2, on_bad_reply="drop")
    assert {name for outcome in outcomes for name in outcome.dropped} == {names[0]}
    after = backend.memories.before(names[0], (2, 0))
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    state, outcomes = play(chosen, state, backend, names, 4, on_bad_reply="drop")
    assert not any(outcome.dropped for outcome in outcomes)
    assert all(bool(torch.isfinite(entry).all()) for entry in state.inbox.values())
