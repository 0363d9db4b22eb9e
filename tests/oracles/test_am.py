"""Amplitude mix against numpy, image by image; and banks of amplitudes between clients."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from support.sites import federation, images

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.optimiser import SGD
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.gradient.amplitude import AmplitudeMix
from unseen.methods.images.bank import Bank
from unseen.methods.images.frequency import Window

RECIPE = Training(SGD(0.05), batch_size=8)
TURN = Turn(seed=0, round=1, rounds=3, exchange="train", client="site-a")


@dataclass(frozen=True)
class Seen:
    """An innermost gradient that keeps what it is given."""

    batches: list

    def open(self, model, inbox, client, memory, turn):
        from contextlib import nullcontext

        def step(x, y):
            self.batches.append((x, y))
            return torch.zeros(())

        return nullcontext(step)


def model_of(shape=(1, 8, 8)) -> Model:
    return Model(build("bn-cnn", shape, 3, keyed("net")), shape=shape)


def run(expression, rounds=2, fraction=1.0, clients=None):
    clients = clients or images(3)
    model, names = model_of(), sorted(clients)
    chosen = method(expression, RECIPE)
    backend = InProcess(model, clients)
    return play(chosen, start(chosen, model, names, 0), backend, names, rounds, fraction)


def mixed_by_numpy(x, other, lam):
    """Each image by itself, with the whole transform, as in the paper's Eqs. 5-6."""
    out = []
    for image, amplitude, weight in zip(x, other, lam, strict=True):
        whole = np.fft.fft2(image)
        mix = (1 - weight) * np.abs(whole) + weight * amplitude
        out.append(np.real(np.fft.ifft2(mix * np.exp(1j * np.angle(whole)))))
    return np.stack(out)


@pytest.mark.parametrize("clip", [True, False])
def test_a_batch_is_mixed_with_a_permutation_of_itself(clip):
    x = torch.rand(16, 3, 6, 7, generator=keyed("x")).double()
    client = Client("site-a", Split(x, torch.zeros(16, dtype=torch.long)), None, 3)
    seen = Seen([])
    part = AmplitudeMix(seen, p=1.0, strength=0.8, clip=clip)
    with part.open(model_of(), {}, client, {}, TURN) as step:
        step(x, client.train.y)
        step(x, client.train.y)
    generator = TURN.generator("am")
    for found, y in seen.batches:
        assert torch.equal(y, client.train.y)
        torch.rand((), generator=generator)
        lam = 0.8 * torch.rand(16, generator=generator)
        order = torch.randperm(16, generator=generator)
        other = np.abs(np.fft.fft2(x.numpy()))[order.numpy()]
        expected = mixed_by_numpy(x.numpy(), other, lam.double().numpy())
        if clip:
            assert (expected < float(x.min())).any()
            expected = expected.clip(float(x.min()), float(x.max()))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)
    assert not torch.equal(seen.batches[0][0], seen.batches[1][0])


def test_a_share_p_of_the_batches_is_mixed():
    client, seen = images(1)["site-a"], Seen([])
    x, y = client.train.batch(slice(0, 4))
    with AmplitudeMix(seen, p=0.3).open(model_of(), {}, client, {}, TURN) as step:
        for _ in range(2000):
            step(x, y)
    changed = sum(not torch.equal(found, x) for found, _ in seen.batches) / 2000
    assert abs(changed - 0.3) < 4 * (0.3 * 0.7 / 2000) ** 0.5


@pytest.mark.parametrize("fraction", [1.0, 2])
@pytest.mark.parametrize(
    ("zero", "base"),
    [
        ("am(p=0)", "fedavg"),
        ("am(p=0, across=True)", "fedavg"),
        ("ppdg+ga+am(p=0)", "ppdg+ga"),
        ("fedsgd+am(p=0)", "fedsgd"),
        ("csac(acquisition=1)+am(p=0, across=True)", "csac(acquisition=1)"),
    ],
)
def test_probability_zero_is_the_base_bit_for_bit(zero, base, fraction):
    a, b = run(zero, 2, fraction)[0], run(base, 2, fraction)[0]
    assert torch.equal(a.inbox["model"], b.inbox["model"])
    assert torch.equal(a.inbox["buffers"], b.inbox["buffers"])
    assert not torch.equal(
        a.inbox["model"], run(zero.replace("p=0", "p=1"), 2, fraction)[0].inbox["model"]
    )


def test_the_bank_holds_amplitudes_of_everyones_images_and_nobody_draws_his_own():
    clients = images(3)
    state, outcomes = run("am(across=True, bank=6)", 2, fraction=1)
    assert [o.turn.exchange for o in outcomes] == ["am", "train", "train"]
    assert outcomes[0].names == tuple(sorted(clients))
    bank = Bank("am", Window(), 6)
    rows = state.inbox["am"].view(3, 6, 1, 8, 5)
    for row, name in zip(rows, sorted(clients), strict=True):
        every = Window()(clients[name].train.x)
        same = [[torch.allclose(a, b, atol=1e-6) for b in every] for a in row]
        assert all(map(any, same))
        assert len({line.index(True) for line in same}) == 6  # without replacement
    for k, name in enumerate(sorted(clients)):
        turn = replace(TURN, client=name, roster=tuple(sorted(clients)))
        pool = bank.others(state.inbox, turn)
        assert torch.equal(pool, torch.cat([rows[j] for j in range(3) if j != k]).flatten(1))
    everything = rows.reshape(18, -1)
    assert torch.equal(bank.others(state.inbox, replace(TURN, client="target")), everything)


def test_an_absent_row_is_not_drawn_and_a_lone_client_takes_its_own():
    bank, turn = Bank("am", Window(0), 2), replace(TURN, roster=("site-a", "site-b", "site-c"))
    rows = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]])
    assert bank.others({"am": rows}, turn).tolist() == [[3.0], [4.0]]
    assert rows.tolist() == [[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]]
    assert bank.others({"am": rows[:1]}, replace(turn, roster=("site-a",))).tolist() == [[1], [2]]
    with pytest.raises(UnseenError, match="no client's reply"):
        bank.others({"am": torch.zeros(3, 2)}, turn)
    drawn = bank.draw(torch.arange(3.0)[:, None], 3000, keyed("draw")).flatten()
    assert torch.bincount(drawn.long()).sub(1000).abs().max() < 4 * (3000 * 2 / 9) ** 0.5


def test_a_bank_larger_than_the_client_repeats_its_images():
    client = images(1, n=9)["site-a"]  # five to train on
    reply, _ = Bank("am", Window(), 12)(model_of(), {}, client, {}, TURN)
    rows = reply.rows["am"].view(12, -1)
    counts = rows.unique(dim=0, return_counts=True)[1]
    assert sorted(counts.tolist()) == [2, 2, 2, 3, 3]


def test_across_clients_the_amplitude_is_that_of_the_bank():
    clients, seen = images(2), Seen([])
    bank = Bank("am", Window(), 4)
    rows = [bank(model_of(), {}, clients[n], {}, replace(TURN, client=n))[0] for n in clients]
    inbox = {"am": torch.stack([r.rows["am"] for r in rows])}
    turn = replace(TURN, roster=("site-a", "site-b"))
    part = AmplitudeMix(seen, p=1.0, clip=False, bank=bank)
    x, y = clients["site-a"].train.batch(slice(0, 8))
    with part.open(model_of(), inbox, clients["site-a"], {}, turn) as step:
        step(x, y)
    generator = turn.generator("am")
    torch.rand((), generator=generator)
    lam = torch.rand(8, generator=generator)
    index = torch.randint(4, (8,), generator=generator)
    other = inbox["am"][1].view(4, 1, 8, 5)[index]
    expected = (1 - lam.view(-1, 1, 1, 1)) * Window()(x) + lam.view(-1, 1, 1, 1) * other
    torch.testing.assert_close(Window()(seen.batches[0][0]), expected, rtol=1e-4, atol=1e-4)


def test_uint8_images_stay_between_black_and_white():
    clients = {
        name: replace(c, train=replace(c.train, x=(c.train.x / 1.6 * 255).to(torch.uint8)))
        for name, c in images(3).items()
    }
    seen = Seen([])
    client = clients["site-a"]
    with AmplitudeMix(seen, p=1.0).open(model_of(), {}, client, {}, TURN) as step:
        step(*client.train.batch(slice(None)))
    low, high = seen.batches[0][0].aminmax()
    assert (float(low), float(high) <= 1.0) == (0.0, True)


def test_what_cannot_be_is_refused_with_the_reason():
    for expression, reason in [
        ("deepall+am(across=True)", r"deepall\+am cannot be: .*pools the data"),
        ("am+am", r"am\+am cannot be: "),
        ("harmofl(window='all')+am", r"cannot be: .*whole amplitude"),
        ("am(p=1.5)", r"am\(p\)"),
        ("am(across=True, bank=0)", r"am\(bank\)"),
    ]:
        with pytest.raises(UnseenError, match=reason):
            method(expression)
    method("deepall+am")
    method("harmofl(window='low')+am")
    clients = federation(2)
    model = Model(build("mlp(widths=[4])", (6,), 3, keyed("net")), shape=(6,))
    with pytest.raises(UnseenError, match="the shape of one image must be known"):
        start(method("am(across=True)"), model, sorted(clients), 0)
    chosen = method("am(p=1)", RECIPE)
    with pytest.raises(UnseenError, match="amplitudes are taken of images"):
        play(
            chosen,
            start(chosen, model, sorted(clients), 0),
            InProcess(model, clients),
            ["site-a"],
            1,
        )


def test_what_is_shared_is_said_and_all_of_it_pickles():
    assert method("am").shares == ()
    chosen = method("fedprox+am(across=True, bank=5)+ga")
    assert any("5 training images" in s for s in chosen.shares)
    assert chosen.asks == ("images",)
    again = pickle.loads(pickle.dumps(chosen))
    assert again.exchanges[0].local == chosen.exchanges[0].local
    assert again.exchanges[1].local == chosen.exchanges[1].local
