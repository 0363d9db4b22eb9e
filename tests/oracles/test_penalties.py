"""Spectral decoupling and IRM against autograd of the papers' objectives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.alone import played
from support.sites import federation

from unseen import Client, Model, Split, Training, method
from unseen.core.losses import CrossEntropy, SquaredError
from unseen.core.optimiser import SGD
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.methods.gradient import Backprop
from unseen.methods.penalties import Decoupled, InvariantRisk

TURN = Turn(seed=0, round=1, rounds=4, exchange="train", client="site-a")
OUTPUTS = {"classes": 4, "logit": 1, "numbers": 1}


def data(kind: str, n: int = 10):
    draws = keyed(f"penalties/{kind}")
    x = torch.randn(n, 5, generator=draws, dtype=torch.float64)
    if kind == "numbers":
        return x, 3 + torch.randn(n, generator=draws, dtype=torch.float64)
    return x, torch.randint(max(2, OUTPUTS[kind]), (n,), generator=draws)


def net(kind: str) -> torch.nn.Module:
    return build("mlp(widths=[7])", (5,), OUTPUTS[kind], keyed("penalties/net")).double()


def plain(kind: str, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if kind == "numbers":
        return ((z[:, 0] - y) ** 2).mean()
    if kind == "logit":
        return F.binary_cross_entropy_with_logits(z[:, 0], y.double())
    return F.cross_entropy(z, y)


def dummy_slope(kind: str, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The derivative along a dummy classifier w = 1.0, by autograd, as IRMv1 is written."""
    w = torch.ones((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(plain(kind, w * z, y), w, create_graph=True)
    return slope


def check(gradient, kind: str, expected, turn: Turn = TURN) -> None:
    model, other, (x, y) = Model(net(kind)), net(kind), data(kind)
    client = Client("site-a", Split(x, y), None, None if kind == "numbers" else 4)
    with gradient.open(model, {}, client, {}, turn) as step:
        value = step(x, y)
    whole = expected(other(x), y)
    flat = torch.cat([g.flatten() for g in torch.autograd.grad(whole, list(other.parameters()))])
    torch.testing.assert_close(value, whole.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(model.gradient, flat, rtol=1e-8, atol=1e-11)


def loss(kind: str):
    return SquaredError() if kind == "numbers" else CrossEntropy()


@pytest.mark.parametrize("kind", ["classes", "logit"])
@pytest.mark.parametrize("lam", [0.0, 0.3, 10.0])
def test_spectral_decoupling(kind, lam) -> None:
    def objective(z, y):
        return plain(kind, z, y) + lam / 2 * sum((row @ row) for row in z) / len(z)

    check(Decoupled(Backprop(loss(kind)), lam), kind, objective)


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("lam", [0.0, 1.0, 100.0])
def test_irm(kind, lam) -> None:
    def square(z, y):
        return plain(kind, z, y) + lam * dummy_slope(kind, z, y) ** 2

    def halves(z, y):
        first, second = (dummy_slope(kind, z[i::2], y[i::2]) for i in (0, 1))
        return plain(kind, z, y) + lam * first * second

    inner = Backprop(loss(kind))
    check(InvariantRisk(inner, lam), kind, square)
    check(InvariantRisk(inner, lam, estimate="halves"), kind, halves)


def test_the_weight_is_at_most_one_until_the_warmup_ends() -> None:
    def objective(lam):
        return lambda z, y: plain("classes", z, y) + lam * dummy_slope("classes", z, y) ** 2

    for r, lam in ((0, 1.0), (1, 1.0), (2, 50.0)):
        gradient = InvariantRisk(Backprop(), 50.0, warmup=2)
        turn = Turn(seed=0, round=r, rounds=4, exchange="train", client="site-a")
        check(gradient, "classes", objective(lam), turn)


def test_a_federation_descends_the_pooled_objective_of_irm() -> None:
    clients = federation(4)
    training = Training(SGD(0.05))
    expression = "fedsgd+irm(lam=3)"
    run = played(expression, clients, 1, training=training)
    model = played("fedsgd", clients, 0).model
    total = torch.zeros(())
    for c in clients.values():
        w = torch.ones((), requires_grad=True)
        risk = F.cross_entropy(w * model(c.train.x), c.train.y)
        (slope,) = torch.autograd.grad(risk, w, create_graph=True)
        total = total + (risk + 3 * slope**2) / 4
    model.gradient.zero_()
    total.backward()
    expected = model.vector - 0.05 * model.gradient
    torch.testing.assert_close(run.state.inbox["model"], expected, rtol=1e-4, atol=2e-6)


def test_one_example_has_no_halves() -> None:
    model, (x, y) = Model(net("classes")), data("classes")
    client = Client("site-a", Split(x, y), None, 4)
    gradient = InvariantRisk(Backprop(), 9.0, estimate="halves")
    with gradient.open(model, {}, client, {}, TURN) as step:
        assert bool(step(x[:1], y[:1]).isfinite())


def test_zero_is_fedavg_and_numbers_are_refused_by_sd_alone() -> None:
    clients = federation(3)
    base = played("fedavg", clients).state.inbox["model"]
    for name in ("sd(lam=0)", "irm(lam=0, weights='examples')"):
        assert torch.equal(base, played(name, clients).state.inbox["model"])
    assert "classes" in method("sd").asks
    assert "classes" not in method("irm").asks
