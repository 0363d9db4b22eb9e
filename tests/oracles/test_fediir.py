"""FedIIR against autograd with create_graph and a loop written out, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.remote import Remote
from support.sites import federation, images
from torch import nn

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.apply import MovingAverage
from unseen.core.losses import CrossEntropy, SquaredError
from unseen.core.optimiser import SGD
from unseen.core.round import sample
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.fediir import HeadGradient, Invariance
from unseen.methods.gradient import Backprop
from unseen.methods.local.batches import batches

LR = 0.05
TURN = Turn(seed=0, round=0, rounds=3, exchange="train", client="site-a")


def squared(z, y):
    return F.mse_loss(z.squeeze(-1), y)


def logistic(z, y):
    return F.binary_cross_entropy_with_logits(z.squeeze(-1), y.double())


def data(count: int = 3) -> dict[str, Client]:
    clients = {}
    for name, client in federation(count).items():
        train, rest = (Split(s.x.double(), s.y) for s in (client.train, client.validation))
        clients[name] = Client(name, train, rest, client.classes)
    return clients


def net(outputs: int = 3) -> nn.Sequential:
    return build("mlp(widths=[7, 5])", (6,), outputs, keyed("fediir")).double()


def head_gradient(module, x, y, loss=F.cross_entropy, graph=False):
    parameters = list(module.head.parameters())
    found = torch.autograd.grad(loss(module(x), y), parameters, create_graph=graph)
    return torch.cat([g.flatten() for g in found])


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def run(expression, module, clients, training, rounds=3, fraction=1.0, backend=None):
    chosen, names = method(expression, training), sorted(clients)
    model = Model(copy.deepcopy(module))
    state = start(chosen, model, names, 0)
    engine = backend(module, clients) if backend else InProcess(model, clients)
    return play(chosen, state, engine, names, rounds, fraction)


CASES = [
    (3, CrossEntropy(), F.cross_entropy),
    (3, CrossEntropy(smoothing=0.2), lambda z, y: F.cross_entropy(z, y, label_smoothing=0.2)),
    (1, CrossEntropy(), logistic),
    (1, SquaredError(), squared),
]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("outputs", "own", "loss"), CASES)
def test_the_heads_gradient_over_a_split_is_autograds(outputs, own, loss, bias):
    client, module = data()["site-b"], net(outputs)
    if not bias:
        module.head = nn.Linear(5, outputs, bias=False).double()
    x, y = client.train.x, client.train.y
    y = {1: y > 0, 3: y}[outputs].to(torch.float64 if isinstance(own, SquaredError) else torch.long)
    expected = head_gradient(module, x, y, loss)
    for size in (len(y), 8, 1):
        measure = HeadGradient(own, size).open(Model(module), {}, client, {}, TURN)
        torch.testing.assert_close(measure(x, y), expected, rtol=1e-10, atol=1e-13)
    model = Model(module)
    assert torch.equal(HeadGradient(own).zeros(model), torch.zeros_like(expected))
    assert len(x) % 8 == 7
    measure = HeadGradient(own, 8, drop_last=True).open(model, {}, client, {}, TURN)
    whole = slice(0, len(x) - 7)
    expected = head_gradient(module, x[whole], y[whole], loss)
    torch.testing.assert_close(measure(x, y), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("model_name", ["mlp(widths=[7, 5])", "bn-cnn"])
@pytest.mark.parametrize(("outputs", "own", "loss"), CASES)
def test_the_penaltys_gradient_is_that_of_double_backward(outputs, own, loss, model_name):
    client = images(1)["site-a"]
    x, y = client.train.x.double(), client.train.y
    y = {1: y > 0, 3: y}[outputs].to(torch.float64 if isinstance(own, SquaredError) else torch.long)
    module = build(model_name, (1, 8, 8), outputs, keyed("penalty")).double()
    mean = 0.1 * torch.randn(sum(p.numel() for p in module.head.parameters())).double()
    reference = copy.deepcopy(module)
    parameters, value = list(reference.parameters()), loss(reference(x), y)
    grads = torch.autograd.grad(value, list(reference.head.parameters()), create_graph=True)
    gap = torch.cat([g.flatten() for g in grads]) - mean
    total = value + 3.0 * gap.square().sum()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(total, parameters)])
    plain = torch.autograd.grad(loss(reference(x), y), parameters)
    assert (expected - torch.cat([g.flatten() for g in plain])).abs().max() > 1e-3

    model = Model(module)
    gradient = Backprop(Invariance(own, 3.0))
    with gradient.open(model, {"head-gradient": mean}, client, {}, TURN) as step:
        found = step(x, y)
    torch.testing.assert_close(found, total.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model.gradient, expected, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("weights", ["examples", "uniform"])
@pytest.mark.parametrize("fraction", [1.0, 2])
def test_rounds_are_those_of_a_literal_loop(fraction, weights):
    clients, rounds, gamma, ema = data(), 4, 0.8, 0.7
    training = Training(SGD(LR), epochs=2, batch_size=9)
    expression = f"fediir(gamma={gamma}, ema={ema}, weights={weights!r})"
    state, _ = run(expression, net(), clients, training, rounds, fraction)

    module = net()
    mean = torch.zeros(18, dtype=torch.float64)
    for r in range(rounds):
        present = sample(sorted(clients), fraction, Turn(0, r, rounds))
        sizes = {n: len(clients[n].train) if weights == "examples" else 1 for n in present}
        share = {n: size / sum(sizes.values()) for n, size in sizes.items()}
        fresh = sum(
            share[n] * head_gradient(module, clients[n].train.x, clients[n].train.y)
            for n in present
        )
        mean = ema * mean + (1 - ema) * fresh
        trained = []
        for name in present:
            own, split = copy.deepcopy(module), clients[name].train
            optimiser = torch.optim.SGD(own.parameters(), lr=LR)
            for index in batches(split, training, Turn(0, r, rounds, "train", name)):
                x, y = split.x[index], split.y[index]
                gap = head_gradient(own, x, y, graph=True) - mean
                optimiser.zero_grad()
                (F.cross_entropy(own(x), y) + gamma * gap.square().sum()).backward()
                optimiser.step()
            trained.append(own)
        with torch.no_grad():
            for p, *parts in zip(
                module.parameters(), *(t.parameters() for t in trained), strict=True
            ):
                p.copy_(sum(share[n] * q for n, q in zip(present, parts, strict=True)))
    torch.testing.assert_close(state.inbox["model"], flat(module), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(state.inbox["head-gradient"], mean, rtol=1e-10, atol=1e-13)
    plain, _ = run(f"fedavg(weights={weights!r})", net(), clients, training, rounds, fraction)
    assert (plain.inbox["model"] - state.inbox["model"]).abs().max() > 1e-4


def test_whole_batches_weigh_alike_as_in_the_released_code():
    """Σ over all clients' batches of the head's gradient, over the number of batches."""
    clients = {}
    for name, client in data().items():
        whole = slice(0, len(client.train) // 8 * 8)
        train = Split(client.train.x[whole], client.train.y[whole])
        clients[name] = Client(name, train, None, 3)
    training = Training(SGD(LR), batch_size=8)
    state, _ = run("fediir(ema=0.0)", net(), clients, training, 1)
    each = [
        head_gradient(net(), x, y)
        for c in clients.values()
        for x, y in zip(c.train.x.split(8), c.train.y.split(8), strict=True)
    ]
    found = state.inbox["head-gradient"]
    torch.testing.assert_close(found, torch.stack(each).mean(0), rtol=1e-10, atol=1e-13)


def test_the_moving_average_is_that_of_a_loop_and_starts_at_zero():
    values = torch.randn(6, 4, generator=keyed("ema"), dtype=torch.float64)
    state, expected = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for value in values:
        before = state
        state, _ = MovingAverage(0.95)(state, value, {}, {})
        assert state is not before
        expected = 0.95 * expected + 0.05 * value
    torch.testing.assert_close(state, expected, rtol=1e-12, atol=1e-15)
    closed = sum(0.05 * 0.95 ** (5 - t) * value for t, value in enumerate(values))
    torch.testing.assert_close(state, closed, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("fraction", [1.0, 2])
def test_gamma_zero_is_fedavg_bit_for_bit(fraction):
    clients = images(3)
    training = Training(SGD(LR, momentum=0.9), batch_size=8, keep_optimiser=True)
    module = build("bn-cnn", (1, 8, 8), 3, keyed("net")).to(memory_format=torch.channels_last)
    one, _ = run("fediir(gamma=0)", module, clients, training, 3, fraction)
    two, _ = run("fedavg", module, clients, training, 3, fraction)
    assert torch.equal(one.inbox["model"], two.inbox["model"])
    assert torch.equal(one.inbox["buffers"], two.inbox["buffers"])


def test_a_short_last_batch_of_one_meets_no_batchnorm():
    client = images(1, n=21)["site-a"]
    training = Training(SGD(LR), batch_size=8, drop_last=True)
    assert len(client.train) == 17
    module = build("bn-cnn", (1, 8, 8), 3, keyed("net"))
    state, _ = run("fediir", module, {"site-a": client}, training, 2)
    assert bool(state.inbox["model"].isfinite().all())


@pytest.mark.parametrize("expression", ["fediir", "fediir+ga", "fediir+ppdg"])
def test_sites_behind_bytes_give_the_same_bits(expression):
    clients, training = images(3), Training(SGD(LR), batch_size=8)
    module = build("bn-cnn", (1, 8, 8), 3, keyed("net"))
    one, _ = run(expression, module, clients, training, 3, 2)
    two, _ = run(expression, module, clients, training, 3, 2, Remote)
    assert all(torch.equal(one.inbox[n], two.inbox[n]) for n in one.inbox)


def test_wrong_options_are_named():
    with pytest.raises(UnseenError, match=r"fediir\(gamma\)"):
        method("fediir(gamma=-1.0)")
    with pytest.raises(UnseenError, match="decay"):
        method("fediir(ema=1.5)")
