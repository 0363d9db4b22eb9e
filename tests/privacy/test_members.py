"""Exact fits, ensembles, averages and stacks give the same under masks, encrypted and blind."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from support.alone import RECIPE, blueprint, completed
from support.sites import federation

from unseen import InProcess, UnseenError, method, play, start
from unseen.core.turn import Turn
from unseen.privacy import channel

EXPRESSIONS = {
    "glm": 6,
    "boost(trees=2, depth=2, bins=8)": 4,
    "forest(trees=2, depth=3, bins=8)": 3,
    "fedavg+tail+ensemble(members=2)": 3,
    "ppdg+ensemble(members=2)": 2,
    "fedavg+shift+exp": 2,
    "exp+intercepts": 3,
    "stack(members=['glm(steps=4)', 'fedavg'], groups=2)": 4,
    "portfolio(members=['fedavg', 'glm(steps=4)', 'boost(trees=2, depth=2, bins=8)'], ensemble=2, "
    "groups=2)": 4,
}
CHANNELS = [("masks", "clear"), ("ckks", "clear"), ("ckks", "blind")]


def final(expression: str, over: str = "clear", server: str = "clear") -> torch.Tensor:
    """The model at the end, as its sites have it."""
    clients, rounds = federation(4, classes=2), EXPRESSIONS[expression]
    names = sorted(clients)
    made, model = completed(
        method(expression, RECIPE), blueprint(clients, "mlp(widths=[4])", rounds=rounds)
    )
    backend = InProcess(model, clients)
    state = start(made, model, names, 0)
    kind = channel.read(over, server)
    if kind.hides:
        backend = channel.wrap(kind, made, backend, names)
        made = backend.played(made)
    state, _ = play(made, state, backend, names, made.rounds or rounds)
    if server == "blind":
        site, count = backend.sites[names[0]], made.rounds or rounds
        site.receive({}, backend.server.cargo(), Turn(0, count, count))
        return site.working.entries["model"]
    return state.inbox["model"]


@cache
def plain(expression: str) -> torch.Tensor:
    return final(expression)


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize(("over", "server"), CHANNELS)
def test_channels_carry_them(expression, over, server):
    if (over == "masks" or server == "blind") and ("ppdg" in expression or "exp" in expression):
        with pytest.raises(UnseenError, match="inner products"):
            final(expression, over, server)
        return
    found = final(expression, over, server)
    if over == "masks" and expression.startswith(("boost", "forest")):  # multiples of its step
        assert torch.equal(found, plain(expression))
    scale = float(plain(expression).abs().max())
    torch.testing.assert_close(found, plain(expression), rtol=0, atol=1e-5 * max(1.0, scale))


@pytest.mark.parametrize(("over", "server"), CHANNELS)
def test_a_bag_shows_every_model_and_is_refused(over, server):
    clients = federation(3)
    made, model = completed(method("bag"), blueprint(clients, "mlp(widths=[4])"))
    with pytest.raises(UnseenError):
        channel.wrap(channel.read(over, server), made, InProcess(model, clients), sorted(clients))
