"""MOON's contrast against the paper's Equation 3, written with exponentials, and its memory."""

from __future__ import annotations

import math

import pytest
import torch
from support.alone import played
from support.sites import federation, images

from unseen import Client, Model, Split, UnseenError, method
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.moon import BUFFERS, OWN, ModelContrast

TURN = Turn(seed=0, round=1, rounds=2, exchange="train", client="site-a")


def net(m: int) -> torch.nn.Module:
    return build("mlp(widths=[7])", (5,), 3, keyed(f"moon/{m}")).double()


def representation(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Everything before the last linear layer."""
    layers = [m for m in module.modules() if not list(m.children())]
    for layer in layers[:-1]:
        x = layer(x)
    return x


def written_out(z, near, far, tau: float) -> torch.Tensor:
    """Mean over examples of −log(e^{sim/τ} / (e^{sim/τ} + e^{sim/τ}))."""
    total = torch.zeros((), dtype=torch.float64)
    for a, b, c in zip(z, near, far, strict=True):
        positive = torch.exp((a @ b) / (a.norm() * b.norm()) / tau)
        negative = torch.exp((a @ c) / (a.norm() * c.norm()) / tau)
        total = total - torch.log(positive / (positive + negative))
    return total / len(z)


@pytest.mark.parametrize("tau", [0.5, 1.0])
@pytest.mark.parametrize("mu", [0.1, 5.0])
def test_the_gradient_of_equation_3(mu, tau) -> None:
    own, received, last, other = (Model(net(m)) for m in (0, 1, 2, 0))
    draws = keyed("moon/data")
    x = torch.randn(9, 5, generator=draws, dtype=torch.float64)
    y = torch.randint(3, (9,), generator=draws)
    client = Client("site-a", Split(x, y), None, 3)
    inbox = {"model": received.vector, "buffers": received.buffers}
    memory = {OWN: last.vector, BUFFERS: last.buffers}
    with ModelContrast(Backprop(), mu, tau).open(own, inbox, client, memory, TURN) as step:
        value = step(x, y)
    with torch.no_grad():
        fixed = [representation(m.module, x) for m in (received, last)]
    plain = torch.nn.functional.cross_entropy(other(x), y)
    whole = plain + mu * written_out(representation(other.module, x), *fixed, tau)
    other.gradient.zero_()
    whole.backward()
    torch.testing.assert_close(value, whole.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(own.gradient, other.gradient, rtol=1e-7, atol=1e-10)


def test_the_first_round_is_fedavg_and_later_ones_are_not() -> None:
    clients = federation(3)
    one, other = (played(e, clients, 1).state.inbox["model"] for e in ("moon(mu=9)", "fedavg"))
    assert torch.equal(one, other)
    one, other = (played(e, clients, 2).state.inbox["model"] for e in ("moon(mu=9)", "fedavg"))
    assert not torch.equal(one, other)
    zero = played("moon(mu=0)", clients, 3).state.inbox["model"]
    assert torch.equal(zero, played("fedavg", clients, 3).state.inbox["model"])


def test_the_two_fixed_models_leave_the_statistics_of_batchnorm_alone() -> None:
    """They pass in evaluation mode: the net's own two passes are all that its statistics see."""
    clients = images(2)
    run = played("moon", clients, 3, net="bn-cnn")
    assert all(bool(v.isfinite().all()) for v in run.state.inbox.values())
    assert math.isfinite(float(run.outcomes[-1].table["loss"].sum()))


def test_refusals() -> None:
    with pytest.raises(UnseenError, match="no client has one of its own"):
        method("fedsgd+moon")
    with pytest.raises(UnseenError, match="already"):
        method("moon+moon")
    with pytest.raises(UnseenError, match="temperature"):
        method("moon(temperature=0)")
