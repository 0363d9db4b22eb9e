"""Local training and rounds against plain torch: the same bits where that is possible."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.alone import played
from support.sites import federation, images

from unseen import Client, Model, Split, Training, method, play, start
from unseen.core.client import pooled
from unseen.core.losses import CrossEntropy, SquaredError
from unseen.core.optimiser import SGD, Adam
from unseen.core.schedule import Cosine, Exponential, Step
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.gradient import Backprop
from unseen.methods.local.batches import batches
from unseen.methods.local.train import Train

OPTIMISERS = {
    "sgd": (SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (
        SGD(0.05, momentum=0.9, weight_decay=5e-4),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=5e-4),
    ),
    "adam": (Adam(0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    "adam-decay": (
        Adam(0.003, beta1=0.8, beta2=0.99, eps=1e-6, weight_decay=1e-2),
        lambda p: torch.optim.Adam(p, lr=0.003, betas=(0.8, 0.99), eps=1e-6, weight_decay=1e-2),
    ),
}
TURN = Turn(seed=0, round=0, rounds=1, exchange="train", client="site-a")


def nets():
    mlp = build("mlp(widths=[16, 8])", (6,), 3, keyed("net"))
    cnn = build("bn-cnn", (1, 8, 8), 3, keyed("net"))
    return {
        "mlp": (mlp, federation(1)["site-a"]),
        "batchnorm": (cnn, images(1)["site-a"]),
        "channels-last": (
            copy.deepcopy(cnn).to(memory_format=torch.channels_last),
            images(1)["site-a"],
        ),
    }


@pytest.mark.parametrize("which", OPTIMISERS)
@pytest.mark.parametrize("kind", ["mlp", "batchnorm", "channels-last"])
def test_flat_training_is_a_plain_torch_loop_bit_for_bit(kind: str, which: str):
    net, client = nets()[kind]
    flat, make = OPTIMISERS[which]
    recipe = Training(flat, epochs=4, batch_size=10)

    plain = copy.deepcopy(net).train()
    optimiser = make(plain.parameters())
    for index in batches(client.split("train"), recipe, TURN):
        x, y = client.split("train").batch(index)
        if kind == "channels-last":
            x = x.contiguous(memory_format=torch.channels_last)
        optimiser.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimiser.step()

    model = Model(net)
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    Train(Backprop(), recipe)(model, inbox, client, {}, TURN)
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, model.layout.views(model.vector)[name]), name
    for name, buffer in plain.named_buffers():
        if buffer.is_floating_point():
            assert torch.equal(buffer, model.buffer_layout.views(model.buffers)[name]), name


def test_fedavg_of_one_client_is_plain_sgd():
    net, client = nets()["mlp"]
    recipe = Training(SGD(0.1, momentum=0.9), batch_size=10, keep_optimiser=True)
    model = Model(copy.deepcopy(net))
    chosen = method("fedavg", recipe)
    state, _ = play(
        chosen,
        start(chosen, model, ["site-a"], 0),
        InProcess(model, {"site-a": client}),
        ["site-a"],
        5,
    )
    plain = copy.deepcopy(net).train()
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for r in range(5):
        for index in batches(client.split("train"), recipe, Turn(0, r, 5, "train", "site-a")):
            x, y = client.split("train").batch(index)
            optimiser.zero_grad()
            F.cross_entropy(plain(x), y).backward()
            optimiser.step()
    expected = torch.cat([p.detach().flatten() for p in plain.parameters()])
    torch.testing.assert_close(state.inbox["model"], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("expression", ["fedavg", 'fedsgd(weights="examples")'])
def test_one_full_batch_step_is_the_step_of_pooled_data(expression: str):
    clients = federation(4)
    net = build("mlp(widths=[16])", (6,), 3, keyed("net"))
    recipe = Training(SGD(0.2), epochs=None, steps=1, batch_size=1000)
    model, names = Model(copy.deepcopy(net)), sorted(clients)
    chosen = method(expression, recipe)
    state, _ = play(chosen, start(chosen, model, names, 0), InProcess(model, clients), names, 1)
    everything = pooled(clients).split("train")
    F.cross_entropy(net(everything.x), everything.y).backward()
    expected = torch.cat([(p - 0.2 * p.grad).detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(state.inbox["model"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("server", ["sgd", "momentum", "adam"])
def test_a_server_optimiser_is_torchs_on_minus_the_mean_update(server: str):
    from unseen.core.apply import Descend

    flat, make = OPTIMISERS[server]
    clients, names = federation(3), ["site-a", "site-b", "site-c"]
    net = build("logistic", (6,), 3, keyed("net"))
    recipe = Training(SGD(0.05), batch_size=8, server=Descend(flat))
    model = Model(copy.deepcopy(net))
    chosen = method('fedavg(weights="uniform")', recipe)
    state, backend = start(chosen, model, names, 0), InProcess(model, clients)
    parameter = torch.nn.Parameter(state.inbox["model"].clone())
    optimiser = make([parameter])
    for r in range(4):
        plain = method('fedavg(weights="uniform")', Training(SGD(0.05), batch_size=8))
        moved, _ = play(plain, state, backend, names, r + 1)
        parameter.grad = state.inbox["model"] - moved.inbox["model"]
        optimiser.step()
        state, _ = play(chosen, state, backend, names, r + 1)
        torch.testing.assert_close(state.inbox["model"], parameter.detach(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_fedprox_weighs_the_clients_as_fedavg_does(weights: str) -> None:
    clients = {"site-a": federation(3)["site-a"], "small": federation(3)["site-b"]}
    split = clients["small"].split("train")
    clients["small"] = Client("small", Split(split.x[:5], split.y[:5]), None, 3)
    near = played(f"fedprox(mu=0, weights='{weights}')", clients, 2)
    plain = played(f"fedavg(weights='{weights}')", clients, 2)
    assert torch.equal(near.state.inbox["model"], plain.state.inbox["model"])
    other = {"uniform": "examples", "examples": "uniform"}[weights]
    third = played(f"fedprox(mu=0, weights='{other}')", clients, 2)
    assert not torch.equal(near.state.inbox["model"], third.state.inbox["model"])


def test_the_proximal_gradient_is_that_of_the_penalised_loss():
    net, client = nets()["mlp"]
    recipe = Training(SGD(0.1), epochs=2, batch_size=10)
    start_at = torch.cat([p.detach().flatten() for p in net.parameters()])
    plain = copy.deepcopy(net).train()
    for index in batches(client.split("train"), recipe, TURN):
        x, y = client.split("train").batch(index)
        plain.zero_grad()
        w = torch.cat([p.flatten() for p in plain.parameters()])
        (F.cross_entropy(plain(x), y) + 0.25 * (w - start_at).square().sum()).backward()
        with torch.no_grad():
            for p in plain.parameters():
                p -= 0.1 * p.grad
    model = Model(net)
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    local = method("fedprox(mu=0.5)", recipe).exchanges[0].local
    local(model, inbox, client, {}, TURN)
    expected = torch.cat([p.detach().flatten() for p in plain.parameters()])
    torch.testing.assert_close(model.vector, expected, rtol=1e-5, atol=1e-6)


def test_schedules_are_torchs():
    rounds, base = 20, 0.5
    for ours, theirs in [
        (Step(at=0.6, factor=0.1), lambda o: torch.optim.lr_scheduler.StepLR(o, 12, 0.1)),
        (Exponential(0.96), lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.96)),
        (Cosine(), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, rounds)),
    ]:
        optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
        scheduler = theirs(optimiser)
        for r in range(rounds):
            assert base * ours(r, rounds) == pytest.approx(optimiser.param_groups[0]["lr"])
            optimiser.step()
            scheduler.step()


def test_steps_cross_passes_and_stop_where_they_should():
    split = Split(torch.zeros(10, 1), torch.zeros(10, dtype=torch.long))
    sizes = [len(i) for i in batches(split, Training(epochs=None, steps=5, batch_size=4), TURN)]
    assert sizes == [4, 4, 2, 4, 4]
    sizes = [len(i) for i in batches(split, Training(batch_size=4, drop_last=True), TURN)]
    assert sizes == [4, 4]
    seen = torch.cat(list(batches(split, Training(epochs=3, batch_size=4), TURN)))
    assert seen.bincount().tolist() == [3] * 10


def test_balanced_cross_entropy_is_sklearns_class_weights():
    from sklearn.utils.class_weight import compute_class_weight

    y = torch.tensor([0] * 12 + [1] * 3 + [2] * 5)
    client = Client("a", Split(torch.randn(20, 4, generator=keyed("x")), y), None, 3)
    net = build("logistic", (4,), 3, keyed("net"))
    model = Model(net)
    loss = CrossEntropy(balanced=True).open(model, {}, client, {}, TURN)
    weights = compute_class_weight("balanced", classes=y.unique().numpy(), y=y.numpy())
    x, labels = client.split("train").batch(slice(None))
    expected = F.cross_entropy(net(x), labels, torch.tensor(weights, dtype=torch.float32))
    torch.testing.assert_close(loss(model, x, labels), expected)


def test_one_logit_is_the_two_class_cross_entropy():
    z = torch.randn(9, generator=keyed("z"))
    y = torch.randint(2, (9,), generator=keyed("y"))
    from unseen.core.losses import cross_entropy

    two = torch.stack([torch.zeros(9), z], dim=1)
    for smoothing in (0.0, 0.2):
        expected = F.cross_entropy(two, y, label_smoothing=smoothing)
        torch.testing.assert_close(cross_entropy(z[:, None], y, smoothing), expected)
    weights = torch.tensor([0.5, 3.0])
    torch.testing.assert_close(
        cross_entropy(z[:, None], y, weights=weights), F.cross_entropy(two, y, weights)
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("weights", [None, [0.5, 3.0], [2.0, 0.0]])
def test_one_logit_weighs_and_smooths_as_two_do(smoothing: float, weights: list[float] | None):
    from unseen.core.losses import cross_entropy

    z = torch.randn(9, generator=keyed("z"), dtype=torch.float64).requires_grad_()
    y = torch.randint(2, (9,), generator=keyed("y"))
    w = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    two = torch.stack([torch.zeros_like(z), z], dim=1)
    expected = F.cross_entropy(two, y, w, label_smoothing=smoothing)
    found = cross_entropy(z[:, None], y, smoothing, w)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    slopes = [torch.autograd.grad(loss, z)[0] for loss in (found, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_balanced_and_smoothed_is_the_documented_sum(outputs: int, smoothing: float):
    """Σ_i Σ_c w_c q_ic log p_ic, one after the other, in float64; balanced weights are exact."""
    y = torch.tensor([0] * 7 + [1] * 3)
    x = torch.randn(10, 4, generator=keyed("x"), dtype=torch.float64)
    client = Client("a", Split(x, y), None, 2)
    net = build("logistic", (4,), outputs, keyed("net")).double()
    model = Model(net)
    loss = CrossEntropy(smoothing, balanced=True).open(model, {}, client, {}, TURN)
    z = net(x)
    z = z if outputs == 2 else torch.cat([torch.zeros_like(z), z], 1)
    p, w = z.softmax(1), [10 / (2 * 7), 10 / (2 * 3)]
    total = 0.0
    for i, label in enumerate(y.tolist()):
        for c in (0, 1):
            q = (1 - smoothing) * (c == label) + smoothing / 2
            total -= w[c] * q * float(p[i, c].log())
    expected = total / sum(w[label] for label in y.tolist())
    found = loss(model, x, y)
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(expected, rel=1e-13)


def test_balanced_weights_of_a_float32_model_are_the_same_bits_as_before():
    from unseen.core.losses import balance

    for counts in ([12, 3, 5], [1, 70, 929], [10_007, 13, 0]):
        y = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
        client = Client("a", Split(torch.zeros(len(y), 1), y), None, 3)
        n = torch.tensor(counts).float()
        divided = torch.where(n > 0, sum(counts) / (3 * n.clamp(min=1)), 0)
        assert torch.equal(balance(client).float(), divided)


def test_regression_learns_a_line():
    generator = keyed("line")
    clients = {}
    for k in range(3):
        x = torch.randn(60, 2, generator=generator)
        y = x @ torch.tensor([1.5, -2.0]) + 0.5
        clients[f"site-{k}"] = Client(f"site-{k}", Split(x, y), None, None)
    model = Model(build("logistic", (2,), 1, keyed("net")))
    chosen = method("fedavg", Training(SGD(0.1), batch_size=20, loss=SquaredError()))
    names = sorted(clients)
    state, _ = play(chosen, start(chosen, model, names, 0), InProcess(model, clients), names, 40)
    torch.testing.assert_close(
        state.inbox["model"], torch.tensor([1.5, -2.0, 0.5]), rtol=1e-3, atol=1e-3
    )


def test_local_statistics_stay_local_and_their_average_goes_out():
    clients, names = images(3), ["site-a", "site-b", "site-c"]
    net = build("bn-cnn", (1, 8, 8), 3, keyed("net"))
    model = Model(net)
    chosen = method("fedavg", Training(SGD(0.1), batch_size=7, buffers="local"))
    backend = InProcess(model, clients)
    state, _ = play(chosen, start(chosen, model, names, 0), backend, names, 2)
    own = [backend.memories.before(n, (9, 0))["buffers"] for n in names]
    assert not torch.equal(own[0], own[1])
    sizes = torch.tensor([len(clients[n].train) for n in names], dtype=torch.float32)
    expected = sum(w * b for w, b in zip(sizes / sizes.sum(), own, strict=True))
    torch.testing.assert_close(state.inbox["buffers"], expected, rtol=1e-5, atol=1e-5)
