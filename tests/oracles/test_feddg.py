"""FedDG's episodic step against plain torch: first order as released, second order by autograd."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.sites import images
from torch.func import functional_call

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.optimiser import SGD
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.gradient import Backprop, Episodic
from unseen.methods.gradient.perturbation import Perturbed
from unseen.methods.images.bank import Bank
from unseen.methods.images.frequency import Window
from unseen.methods.local.batches import batches

NAMES = ["site-a", "site-b", "site-c"]
RECIPE = Training(SGD(0.05), batch_size=8)


def federation() -> dict[str, Client]:
    """Sites of brighter and brighter images, in float64."""
    return {
        name: Client(name, Split((c.train.x + 0.4 * k).double(), c.train.y), None, 3)
        for k, (name, c) in enumerate(images(3).items())
    }


def net(model="mnist-cnn(channels=[3, 4], hidden=8)"):
    return build(model, (1, 8, 8), 3, keyed("net")).double()


def run(expression, rounds=2, fraction=1.0):
    clients, model = federation(), Model(net(), shape=(1, 8, 8))
    chosen = method(expression, RECIPE)
    backend = InProcess(model, clients)
    return play(chosen, start(chosen, model, NAMES, 0), backend, NAMES, rounds, fraction)


def in_their_style(x, amplitude, lam, share):
    """Each image by itself on the whole, centred spectrum; amplitude [N, 1, H, W] likewise."""
    whole = np.fft.fft2(x)
    own, phase = np.fft.fftshift(np.abs(whole), axes=(-2, -1)), np.angle(whole)
    theirs, h, w = np.fft.fftshift(amplitude, axes=(-2, -1)), *x.shape[-2:]
    b = int(np.floor(min(h, w) * share))
    at = (..., slice(h // 2 - b, h // 2 + b + 1), slice(w // 2 - b, w // 2 + b + 1))
    weight = lam.reshape(-1, 1, 1, 1)
    own[at] = (own * (1 - weight) + theirs * weight)[at]
    return np.real(np.fft.ifft2(np.fft.ifftshift(own, axes=(-2, -1)) * np.exp(1j * phase)))


@pytest.mark.parametrize("scale", ["mean", "sum"])
@pytest.mark.parametrize("order", ["first", "second"])
@pytest.mark.parametrize("interpolation", ["continuous", "swap"])
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_rounds_are_those_of_a_literal_loop(share, interpolation, order, scale):
    eta, bank = 0.3, 5
    options = f"L={share}, interpolation='{interpolation}', order='{order}', bank={bank}"
    options += f", scale='{scale}'"
    state, _ = run(f"feddg({options}, inner_lr={eta}, weights='uniform')")
    clients = federation()
    drawn = {
        n: torch.randperm(len(c.train), generator=Turn(0, 0, 2, "feddg", n).generator("bank"))[
            :bank
        ]
        for n, c in clients.items()
    }
    names = [name for name, _ in net().named_parameters()]
    shapes = [p.shape for p in net().parameters()]
    sizes = [p.numel() for p in net().parameters()]

    def risk(vector, x, y):
        views = [v.view(s) for v, s in zip(vector.split(sizes), shapes, strict=True)]
        weights = dict(zip(names, views, strict=True))
        return F.cross_entropy(functional_call(net(), weights, (x,)), y)

    w = torch.cat([p.detach().flatten() for p in net().parameters()])
    for r in range(2):
        trained = []
        for name, client in clients.items():
            turn = Turn(0, r, 2, "train", name)
            generator, x_all = turn.generator("feddg"), client.train.x
            foreign = torch.cat([clients[n].train.x[drawn[n]] for n in NAMES if n != name])
            amplitudes, own = np.abs(np.fft.fft2(foreign.numpy())), w.clone()
            for index in batches(client.train, RECIPE, turn):
                x, y = client.train.batch(index)
                pick = torch.randint(len(foreign), (len(x),), generator=generator)
                lam = np.ones(len(x))
                if interpolation == "continuous":
                    lam = torch.rand(len(x), generator=generator).double().numpy()
                styled = in_their_style(x.numpy(), amplitudes[pick.numpy()], lam, share)
                styled = torch.from_numpy(styled).clamp(x_all.min(), x_all.max())
                own.requires_grad_()
                inner = risk(own, x, y)
                (g,) = torch.autograd.grad(inner, own, create_graph=True)
                step = g if order == "second" else g.detach()
                fast = own - eta * step.clamp(-100, 100)
                losses = torch.stack([inner, risk(fast, styled, y)])
                (total,) = torch.autograd.grad(getattr(losses, scale)(), own)
                own = (own - 0.05 * total).detach()
            trained.append(own)
        w = sum(trained) / 3
    torch.testing.assert_close(state.inbox["model"], w, rtol=1e-8, atol=1e-10)


def one_step(part, inbox, model, client, turn):
    with part.open(model, inbox, client, {}, turn) as step:
        return step(*client.train.batch(slice(0, 8)))


def inbox_of(clients, bank):
    rows = [bank(None, {}, c, {}, Turn(0, 0, 1, "feddg", n))[0] for n, c in clients.items()]
    return {"feddg": torch.stack([reply.rows["feddg"] for reply in rows])}


@pytest.mark.parametrize(("scale", "times"), [("mean", 1), ("sum", 2)])
def test_in_its_own_style_and_without_a_step_a_mean_is_the_gradient_and_a_sum_twice(scale, times):
    image = torch.rand(1, 1, 8, 8, generator=keyed("image")).double()
    client = Client("site-a", Split(image.repeat(8, 1, 1, 1), torch.arange(8) % 3), None, 3)
    bank, turn = Bank("feddg", Window(0.3), 4), Turn(0, 1, 2, "train", "site-a", roster=("site-a",))
    model, inbox = Model(net()), inbox_of({"site-a": client}, bank)
    part = Episodic(Backprop(), bank, inner_lr=0, scale=scale)
    value = one_step(part, inbox, model, client, turn)
    both = model.gradient.clone()
    once = one_step(Backprop(), inbox, model, client, turn)
    torch.testing.assert_close(both, times * model.gradient, rtol=1e-9, atol=1e-12)
    assert float(value) == pytest.approx(times * float(once))


@pytest.mark.parametrize("order", ["first", "second"])
def test_the_inner_step_is_clamped_and_the_weights_come_back_bit_for_bit(order):
    clients, bank = federation(), Bank("feddg", Window(0), 4)
    turn = Turn(0, 1, 2, "train", "site-a", roster=tuple(NAMES))
    model, inbox = Model(net()), inbox_of(clients, bank)
    before = model.vector.clone()
    bound = 0.02
    part = Episodic(Backprop(), bank, 0.5, bound, "swap", order)
    one_step(part, inbox, model, clients["site-a"], turn)
    assert torch.equal(model.vector, before)
    found = model.gradient.clone()
    x, y = clients["site-a"].train.batch(slice(0, 8))
    own = before.clone().requires_grad_()
    inner = F.cross_entropy(model.at(own, x), y)
    (g,) = torch.autograd.grad(inner, own, create_graph=True)
    assert (g.abs() > bound).any()
    assert (g.abs() < bound).any()
    pool = bank.others(inbox, turn)
    index = torch.randint(len(pool), (8,), generator=turn.generator("feddg"))
    shift = pool[index].view(8, 1, 1, 1) / 64 - x.mean((1, 2, 3), keepdim=True)
    every = clients["site-a"].train.x
    styled = (x + shift).clamp(every.min(), every.max())
    fast = own - 0.5 * (g if order == "second" else g.detach()).clamp(-bound, bound)
    outer = F.cross_entropy(model.at(fast, styled), y)
    (total,) = torch.autograd.grad((inner + outer) / 2, own)
    torch.testing.assert_close(found, total, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("order", ["first", "second"])
def test_statistics_of_batchnorm_are_those_of_the_first_pass(order):
    clients, bank = federation(), Bank("feddg", Window(0), 4)
    turn = Turn(0, 1, 2, "train", "site-a", roster=tuple(NAMES))
    buffers = []
    for part in (Episodic(Backprop(), bank, 0.1, order=order), Backprop()):
        model = Model(net("bn-cnn"))
        one_step(part, inbox_of(clients, bank), model, clients["site-a"], turn)
        buffers.append(model.buffers.clone())
    assert torch.equal(*buffers)


def test_a_sample_of_the_clients_still_sees_everybodys_style():
    state, outcomes = run("feddg(bank=3)+ga", 3, fraction=2)
    assert outcomes[0].names == tuple(NAMES)
    assert len(outcomes[1].names) == 2
    assert bool(state.inbox["feddg"].any(dim=1).all())
    assert state.inbox["feddg"].shape == (3, 3)  # DC of one channel, three images each


def test_options_and_compositions():
    for options, message in [
        ("L=0.6", r"feddg\(L\)"),
        ("interpolation='cut'", r"feddg\(interpolation\)"),
        ("order='third'", r"feddg\(order\)"),
        ("inner_lr=-1", r"feddg\(inner_lr\)"),
        ("bank=0", r"feddg\(bank\)"),
    ]:
        with pytest.raises(UnseenError, match=message):
            method(f"feddg({options})")
    for modifier in ("rsc", "fedsam"):
        method(f"feddg+{modifier}")
        with pytest.raises(UnseenError, match=rf"{modifier} cannot be: .*order='first'"):
            method(f"feddg(order='second')+{modifier}")
    chosen = method("feddg+fedprox+ga")
    assert chosen.asks == ("images",)
    assert "16 training images" in chosen.shares[0]
    pickle.loads(pickle.dumps(chosen))
    assert isinstance(method("feddg+fedsam").exchanges[1].local.gradient.inner, Perturbed)
