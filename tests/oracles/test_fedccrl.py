"""FedCCRL's losses against loops and scipy, its views against closed forms, its step by hand."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import entropy
from support.sites import images

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.losses import CrossEntropy, SquaredError
from unseen.core.optimiser import SGD
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.gradient.contrast import (
    CrossClient,
    jensen_shannon,
    probabilities,
    restyled,
    statistics,
    supervised_contrast,
)
from unseen.methods.images.augmix import AugMix
from unseen.methods.images.bank import Bank

NAMES = ["site-a", "site-b", "site-c"]
RECIPE = Training(SGD(0.05), batch_size=8)


def literal_contrast(z, y, temperature):
    """Khosla et al., Eq. 2, pair by pair."""
    total = 0.0
    for i in range(len(z)):
        others = [a for a in range(len(z)) if a != i]

        def similarity(a, i=i):
            return float(z[i] @ z[a] / z[i].norm() / z[a].norm()) / temperature

        below = sum(math.exp(similarity(a)) for a in others)
        positives = [p for p in others if y[p] == y[i]]
        if positives:
            logs = [math.log(math.exp(similarity(p)) / below) for p in positives]
            total += -sum(logs) / len(positives)
    return total / len(z)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize("labels", [[0, 1, 0, 2, 1, 0, 0], [3, 1, 0, 2, 1, 5, 0]])
def test_the_contrastive_loss_is_the_double_sum(labels, temperature):
    z = torch.randn(7, 5, generator=keyed("z"), dtype=torch.float64).requires_grad_()
    y = torch.tensor(labels)
    found = supervised_contrast(z, y, temperature)
    expected = literal_contrast(z.detach(), y, temperature)
    assert float(found.detach()) == pytest.approx(expected, rel=1e-10)
    found.backward()
    step = torch.randn(7, 5, generator=keyed("step"), dtype=torch.float64) * 1e-6
    slope = (
        literal_contrast((z + step).detach(), y, temperature)
        - literal_contrast((z - step).detach(), y, temperature)
    ) / 2
    assert float((z.grad * step).sum()) == pytest.approx(slope, rel=1e-4)


def test_contrast_by_hand():
    """Two classes, two equal views each, orthogonal: each anchor has one positive at 1/τ and two
    others at 0, so that the loss is log(1 + 2 e^{−1/τ})."""
    z, y = torch.eye(2, dtype=torch.float64).repeat(2, 1), torch.tensor([0, 1, 0, 1])
    assert float(supervised_contrast(z, y, 0.5)) == pytest.approx(math.log(1 + 2 * math.exp(-2)))


def test_the_divergence_is_scipys():
    p = torch.randn(3, 6, 4, generator=keyed("p"), dtype=torch.float64).softmax(-1)
    middle = p.mean(0)
    expected = np.mean([[entropy(p[v, n], middle[n]) for n in range(6)] for v in range(3)])
    assert float(jensen_shannon(list(p))) == pytest.approx(float(expected), rel=1e-10)
    assert float(jensen_shannon([p[0]] * 3)) == pytest.approx(0, abs=1e-12)
    apart = torch.eye(3, dtype=torch.float64)[:, None]
    assert float(jensen_shannon(list(apart))) == pytest.approx(math.log(3), rel=1e-6)


def test_one_logit_is_two_classes():
    z = torch.randn(5, 1, generator=keyed("logits"))
    torch.testing.assert_close(probabilities(z), torch.cat([torch.zeros_like(z), z], 1).softmax(1))


def test_a_restyled_image_has_the_interpolated_statistics():
    x, other = (torch.rand(6, 3, 5, 7, generator=keyed(n), dtype=torch.float64) for n in "xo")
    other = other * 2 + 1
    lam = torch.linspace(0, 1, 6, dtype=torch.float64)
    found = restyled(x, statistics(other).flatten(1), lam)
    for n in range(6):
        for c in range(3):
            for of in (torch.mean, torch.std):
                a, b = float(of(x[n, c])), float(of(other[n, c]))
                expected = (1 - float(lam[n])) * a + float(lam[n]) * b
                assert float(of(found[n, c])) == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(found[0], x[0])
    flat = torch.full((1, 3, 5, 7), 0.3)
    assert torch.isfinite(restyled(flat, statistics(x[:1].float()), torch.ones(1))).all()


def net():
    return build("mnist-cnn(channels=[3, 4], hidden=8)", (1, 8, 8), 3, keyed("net")).double()


def federation() -> dict[str, Client]:
    return {
        name: Client(name, Split((c.train.x * (1 + k)).double(), c.train.y), None, 3)
        for k, (name, c) in enumerate(images(3).items())
    }


@pytest.mark.parametrize("augment", [AugMix(), None])
@pytest.mark.parametrize("transfer", [True, False])
def test_a_step_descends_the_objective_as_printed(transfer, augment):
    clients, bank = federation(), Bank("fedccrl", statistics, 5)
    rows = [bank(None, {}, c, {}, Turn(0, 0, 2, "fedccrl", n))[0] for n, c in clients.items()]
    inbox = {"fedccrl": torch.stack([r.rows["fedccrl"] for r in rows])}
    turn = Turn(0, 1, 2, "train", "site-b", roster=tuple(NAMES))
    client, model = clients["site-b"], Model(net())
    x, y = client.train.batch(slice(0, 8))
    part = CrossClient(CrossEntropy(), bank, 0.3, 0.7, 0.2, 0.4, transfer, augment)
    with part.open(model, inbox, client, {}, turn) as step:
        value = step(x, y)
    generator = turn.generator("fedccrl")
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    pool = torch.cat([inbox["fedccrl"][k].view(5, 2) for k in (0, 2)])
    low, high = client.train.x.min(), client.train.x.max()
    views = [x]
    for _ in range(2 if transfer or augment else 0):
        view = x
        if transfer:
            style = pool[torch.randint(10, (8,), generator=generator)]
            lam = rng.beta(0.4, 0.4, 8)
            mixed = []
            for n in range(8):
                mean, deviation = x[n].mean(), (x[n].var() + 1e-6).sqrt()
                new = (1 - lam[n]) * mean + lam[n] * style[n, 0]
                scale = (1 - lam[n]) * deviation + lam[n] * style[n, 1]
                mixed.append((x[n] - mean) / deviation * scale + new)
            view = torch.stack(mixed).clamp(low, high)
        if augment:
            view = augment((view - low) / (high - low), generator) * (high - low) + low
        views.append(view)
    module = net()
    z = [module[:-1](v) for v in views]
    logits = [module.head(f) for f in z]
    loss = sum(F.cross_entropy(o, y) for o in logits) / len(views)
    if len(views) > 1:
        every, labels = torch.cat(z), torch.cat([y] * 3)
        unit = every / every.norm(dim=1, keepdim=True)
        similar = (unit @ unit.T / 0.2).exp()
        contrast = 0.0
        for i in range(24):
            positives = [p for p in range(24) if p != i and labels[p] == labels[i]]
            below = similar[i].sum() - similar[i, i]
            contrast = contrast - sum((similar[i, p] / below).log() for p in positives) / len(
                positives
            )
        p = [o.softmax(1) for o in logits]
        middle = sum(p) / 3
        js = sum((q * (q / middle).log()).sum(1).mean() for q in p) / 3
        loss = loss + 0.3 * contrast / 24 + 0.7 * js
    grads = torch.autograd.grad(loss, list(module.parameters()))
    assert float(value) == pytest.approx(float(loss.detach()), rel=1e-9)
    expected = torch.cat([g.flatten() for g in grads])
    torch.testing.assert_close(model.gradient, expected, rtol=1e-7, atol=1e-10)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())


def run(expression, rounds=2, fraction=1.0):
    clients, names = images(3), NAMES
    model = Model(build("bn-cnn", (1, 8, 8), 3, keyed("net")), shape=(1, 8, 8))
    chosen = method(expression, RECIPE)
    backend = InProcess(model, clients)
    return play(chosen, start(chosen, model, names, 0), backend, names, rounds, fraction)


@pytest.mark.parametrize("fraction", [1.0, 2])
def test_one_view_alone_is_the_base_bit_for_bit(fraction):
    base = run("fedavg", 2, fraction)[0]
    for options in ("contrast=0, consistency=0, ", ""):
        off = run(f"fedccrl({options}transfer=False, augment=False)", 2, fraction)[0]
        assert torch.equal(off.inbox["model"], base.inbox["model"])
        assert torch.equal(off.inbox["buffers"], base.inbox["buffers"])
    for options in ("augment=False", "transfer=False", "contrast=0, consistency=0"):
        on = run(f"fedccrl({options})", 2, fraction)[0]
        assert not torch.equal(on.inbox["model"], base.inbox["model"])
    prox = run("fedprox", 2, fraction)[0]
    off = run("fedccrl(transfer=False, augment=False)+fedprox", 2, fraction)[0]
    assert torch.equal(off.inbox["model"], prox.inbox["model"])


@pytest.mark.parametrize(("refresh", "rounds"), [(0, [0]), (1, [0, 1, 2, 3]), (3, [0, 3])])
def test_statistics_travel_as_often_as_is_said(refresh, rounds):
    state, outcomes = run(f"fedccrl(refresh={refresh}, bank=4)", 4, 2)
    found = [o.turn.round for o in outcomes if o.turn.exchange == "fedccrl"]
    assert found == rounds
    assert all(o.names == tuple(NAMES) for o in outcomes if o.turn.exchange == "fedccrl")
    assert state.inbox["fedccrl"].shape == (3, 4 * 2)
    often = "once" if not refresh else f"every {refresh} rounds"
    assert often in method(f"fedccrl(refresh={refresh})").shares[0]


def test_the_statistics_sent_are_those_of_the_clients_images():
    client = images(1, n=12)["site-a"]
    model = Model(build("bn-cnn", (1, 8, 8), 3, keyed("net")))
    reply, _ = Bank("fedccrl", statistics, 8)(
        model, {}, client, {}, Turn(0, 0, 1, "fedccrl", "site-a")
    )
    sent = {tuple(round(float(v), 5) for v in row) for row in reply.rows["fedccrl"].view(8, 2)}
    own = {
        (round(float(i.mean()), 5), round(float((i.var() + 1e-6).sqrt()), 5))
        for i in client.train.x
    }
    assert sent == own


def test_what_it_asks_for_and_refuses():
    chosen = method("fedccrl+ga")
    assert chosen.asks == ("images", "classes")
    pickle.loads(pickle.dumps(chosen))
    for options, message in [
        ("contrast=-1", r"fedccrl\(contrast\)"),
        ("temperature=0", r"fedccrl\(temperature\)"),
        ("beta=0", r"fedccrl\(beta\)"),
        ("severity=0", r"severity"),
        ("refresh=-1", r"fedccrl\(refresh\)"),
        ("bank=0", r"fedccrl\(bank\)"),
    ]:
        with pytest.raises(UnseenError, match=message):
            method(f"fedccrl({options})")
    with pytest.raises(UnseenError, match="for classes"):
        method("fedccrl", replace(RECIPE, loss=SquaredError()))
    for modifier in ("rsc", "fedsam", "fishr"):
        with pytest.raises(UnseenError, match=rf"fedccrl\+{modifier} cannot be: "):
            method(f"fedccrl+{modifier}")
