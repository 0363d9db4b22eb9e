"""HarmoFL against a literal loop in plain torch and numpy, and its limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.alone import only
from support.sites import images

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.exchange import Exchange
from unseen.core.metrics.evaluation import Evaluate
from unseen.core.optimiser import SGD
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.amplitude import Normalised
from unseen.methods.images.frequency import Window
from unseen.methods.local.batches import batches
from unseen.methods.local.train import GapProbe, Train

RECIPE = Training(SGD(0.05), batch_size=8)


def federation(dtype=torch.float64) -> dict[str, Client]:
    """Sites whose images are darker and of less contrast from one to the next."""
    made = {}
    for k, (name, client) in enumerate(images(3).items()):
        splits = [
            Split((s.x * (1 - 0.3 * k) + 0.2 * k).to(dtype), s.y)
            for s in (client.train, client.validation)
        ]
        made[name] = Client(name, *splits, 3)
    return made


def net(dtype=torch.float64):
    return build("mnist-cnn(channels=[3, 4], hidden=8)", (1, 8, 8), 3, keyed("net")).to(dtype)


def run(expression, rounds=2, fraction=1.0, recipe=RECIPE):
    clients, model = federation(), Model(net(), shape=(1, 8, 8))
    chosen, names = method(expression, recipe), sorted(clients)
    backend = InProcess(model, clients)
    begun = start(chosen, model, names, 0)
    return chosen, *play(chosen, begun, backend, names, rounds, fraction)


def normalised(x: np.ndarray, amplitude: np.ndarray, share: float | None) -> np.ndarray:
    """Each image with the given amplitudes in a window of the whole, centred spectrum."""
    whole = np.fft.fft2(x, axes=(-2, -1))
    own, phase = np.fft.fftshift(np.abs(whole), axes=(-2, -1)), np.angle(whole)
    h, w = x.shape[-2:]
    b = max(h, w) if share is None else int(np.floor(min(h, w) * share))
    rows = slice(max(h // 2 - b, 0), h // 2 + b + 1)
    columns = slice(max(w // 2 - b, 0), w // 2 + b + 1)
    own[..., rows, columns] = np.fft.fftshift(amplitude, axes=(-2, -1))[..., rows, columns]
    return np.real(np.fft.ifft2(np.fft.ifftshift(own, axes=(-2, -1)) * np.exp(1j * phase)))


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.6])
@pytest.mark.parametrize(("window", "share"), [("dc", 0.0), ("low", 0.2), ("all", None)])
def test_rounds_are_those_of_a_literal_loop(window, share, momentum):
    recipe = replace(RECIPE, epochs=2)
    low = ", L=0.2" * (window == "low")
    options = f"window='{window}'{low}, momentum={momentum}"
    _, state, outcomes = run(f"harmofl({options})", 2, recipe=recipe)
    assert [o.turn.exchange for o in outcomes] == ["amplitude", "train", "train"]
    clients = federation()
    own = {}
    for name, client in clients.items():
        running = None
        for index in batches(client.train, recipe, Turn(0, 0, 2, "amplitude", name)):
            mean = np.abs(np.fft.fft2(client.train.x[index].numpy())).mean(0)
            first = running is None
            running = mean if first else (1 - momentum) * running + momentum * mean
            if momentum == 0:
                break
        own[name] = running
    amplitude = sum(own.values()) / 3
    x = torch.cat([p.detach().flatten() for p in net().parameters()])
    for r in range(2):
        trained = []
        for name, client in clients.items():
            module = net()
            torch.nn.utils.vector_to_parameters(x.clone(), module.parameters())
            weights = list(module.parameters())
            for index in batches(client.train, recipe, Turn(0, r, 2, "train", name)):
                seen = normalised(client.train.x[index].numpy(), amplitude, share)
                batch, y = torch.from_numpy(seen), client.train.y[index]
                grads = torch.autograd.grad(F.cross_entropy(module(batch), y), weights)
                norm = torch.sqrt(sum(g.square().sum() for g in grads))
                with torch.no_grad():
                    deltas = [0.05 * g / norm for g in grads]
                    for w, d in zip(weights, deltas, strict=True):
                        w.add_(d)
                grads = torch.autograd.grad(F.cross_entropy(module(batch), y), weights)
                with torch.no_grad():
                    for w, d, g in zip(weights, deltas, grads, strict=True):
                        w.sub_(d).sub_(0.05 * g)
            trained.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
        x = sum(trained) / 3
    torch.testing.assert_close(state.inbox["model"], x, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("fraction", [1.0, 2])
def test_without_perturbation_and_normalisation_it_is_the_uniform_mean(fraction):
    a = run("harmofl(alpha=0, window='none')", 2, fraction)[1]
    b = run("fedavg(weights='uniform')", 2, fraction)[1]
    assert torch.equal(a.inbox["model"], b.inbox["model"])
    assert not torch.equal(a.inbox["model"], run("harmofl(alpha=0)", 2)[1].inbox["model"])
    sam = run("fedsam(rho=0.05)+ga(step=0)", 2, fraction)[1]
    same = run("harmofl(window='none')", 2, fraction)[1]
    assert torch.equal(same.inbox["model"], sam.inbox["model"])


def test_the_target_is_normalised_with_the_sources_amplitude():
    chosen, state, _ = run("harmofl(window='low', L=0.2)")
    stranger = Client(
        "target",
        None,
        Split(torch.rand(20, 1, 8, 8, generator=keyed("t")).double() * 3, torch.arange(20) % 3),
        3,
    )
    evaluate = Exchange("test", Evaluate("validation", predict=chosen.predict), who=("target",))
    judge = InProcess(Model(net(), shape=(1, 8, 8)), {"target": stranger})
    (reply,) = judge.map(evaluate, state.inbox, ["target"], Turn(0, 1, 2, "test"))
    amplitude = np.zeros((1, 8, 8))
    rows, columns = Window(0.2).index((8, 8))
    held = state.inbox["amplitude"].view(1, len(rows), len(columns))
    for i, u in enumerate(rows.flatten().tolist()):
        for j, v in enumerate(columns.tolist()):
            amplitude[0, u, v] = amplitude[0, -u % 8, -v % 8] = float(held[0, i, j])
    seen = torch.from_numpy(normalised(stranger.validation.x.numpy(), amplitude, 0.2))
    module = net()
    torch.nn.utils.vector_to_parameters(state.inbox["model"], module.parameters())
    expected = F.cross_entropy(module(seen), stranger.validation.y).detach()
    assert reply.scalars["loss"] == pytest.approx(float(expected), rel=1e-9)
    plain = F.cross_entropy(module(stranger.validation.x), stranger.validation.y).detach()
    assert abs(float(plain - expected)) > 1e-4


def test_gaps_are_of_the_normalised_network_and_ga_sets_the_weights():
    chosen, state, outcomes = run("harmofl+ga", 3)
    local = chosen.exchanges[1].local
    assert isinstance(local, Normalised)
    assert isinstance(local.inner, GapProbe)
    first, second = [o for o in outcomes if o.turn.exchange == "train"][:2]
    assert torch.equal(first.weights["model"], torch.full((3,), 1 / 3, dtype=torch.float64))
    assert not torch.equal(second.weights["model"], first.weights["model"])
    assert all(o.table["gap_known"].all() for o in outcomes[2:])
    # The gap of a client is of the outputs that `predict` gives.
    clients = federation()
    model = Model(net(), shape=(1, 8, 8))
    memory = {"gap.own": torch.tensor(0.0)}
    still = replace(
        local,
        inner=replace(local.inner, inner=Train(Backprop(), replace(RECIPE, optimiser=SGD(1e-9)))),
    )
    reply, _ = still(
        model, state.inbox, clients["site-a"], memory, Turn(0, 3, 4, "train", "site-a")
    )
    outputs = chosen.predict(Model(net(), shape=(1, 8, 8)), state.inbox, clients["site-a"].train.x)
    expected = F.cross_entropy(outputs, clients["site-a"].train.y)
    assert reply.scalars["gap"] == pytest.approx(float(expected.detach()), rel=1e-9)


def test_the_hook_ends_with_the_exchange_and_layouts_in_memory_stay():
    clients, model = federation(), Model(net(), shape=(1, 8, 8))
    inbox = {"amplitude": torch.ones(1).double()}
    part = Normalised(Train(Backprop(), RECIPE), Window(0))
    part(model, inbox, clients["site-a"], {}, Turn(0, 0, 1, "train", "site-a"))
    assert not model.module._forward_pre_hooks
    x = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last)
    changed = part.change(torch.ones(3), x)
    assert changed.stride() == x.stride()
    torch.testing.assert_close(changed.mean((2, 3)), torch.full((2, 3), 1 / 64))


def test_wrong_options_are_named():
    for options, message in [
        ("window='full'", r"harmofl\(window\)"),
        ("L=0.7", r"harmofl\(L\)"),
        ("L=0.3", r"harmofl\(L\) has an effect only with window='low'; found L=0.3"),
        ("window='all', L=0.3", r"harmofl\(L\) has an effect only with window='low'"),
        ("momentum=2", r"harmofl\(momentum\)"),
        ("alpha=-1", r"harmofl\(alpha\)"),
    ]:
        with pytest.raises(UnseenError, match=message):
            method(f"harmofl({options})")
    with pytest.raises(UnseenError, match=r"harmofl\+fedsam cannot be"):
        method("harmofl+fedsam")
    assert method("harmofl").asks == ("images",)
    assert method("harmofl(window='none')").asks == ()


def test_the_released_policy_of_batchnorm_is_each_batch_by_itself():
    plan = only(
        torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    )
    assert method("harmofl").adapt is None
    changed = method("harmofl(norm='batch')").adapt(plan)
    assert not changed[1].state_dict()
    changed.eval()
    x = torch.randn(5, 3, 8, 8)
    found, maps = changed(x).view(5, 4, -1), changed[0](x).view(5, 4, -1)
    mean, variance = maps.mean((0, 2), keepdim=True), maps.var((0, 2), keepdim=True, correction=0)
    torch.testing.assert_close(found, (maps - mean) / (variance + 1e-5).sqrt())
    assert "batchnorm" in method("harmofl(norm='batch', window='none')").asks
