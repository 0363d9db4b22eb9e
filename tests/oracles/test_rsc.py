"""RSC against a literal transcription of its Algorithm 1 on a net cut in two by hand."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from support.sites import federation, images
from torch import nn

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.losses import SquaredError
from unseen.core.optimiser import SGD
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.perturbation import Perturbed
from unseen.methods.rsc import SelfChallenging

RECIPE = Training(SGD(0.05), batch_size=8)
TURN = Turn(seed=0, round=1, rounds=3, exchange="train", client="site-a")
NETS = ["mnist-cnn(channels=[3, 7], hidden=8)", "bn-cnn(channels=[4, 7])"]


def net(expression: str) -> nn.Sequential:
    """A net in float64 that has been trained a little, so that gradients differ."""
    shape = (6,) if expression.startswith("mlp") else (1, 8, 8)
    module = build(expression, shape, 3, keyed("net")).double()
    client = site(expression)
    optimiser = torch.optim.SGD(module.parameters(), 0.3)
    for _ in range(5):
        optimiser.zero_grad()
        F.cross_entropy(module(client.train.x), client.train.y).backward()
        optimiser.step()
    for p in module.parameters():
        p.grad = None
    return module


def site(expression: str) -> Client:
    client = (federation if expression.startswith("mlp") else images)(1)["site-a"]
    return Client("site-a", Split(client.train.x.double(), client.train.y), None, 3)


def cut(module: nn.Sequential) -> tuple[nn.Sequential, nn.Sequential]:
    """The net up to its last pooling, or up to its head if it has none; and the rest."""
    names = [name for name, _ in module.named_children()]
    at = names.index("pool2") + 1 if "pool2" in names else len(names) - 1
    return module[:at], module[at:]


def literal_mask(module, x, y, pixels, drop, batch, score):
    """Algorithm 1, example by example; the mask has the shape of the features."""
    module = copy.deepcopy(module).eval()
    body, rest = cut(module)
    z = body(x).detach().requires_grad_()
    outputs = rest(z)
    sum(outputs[n, y[n]] for n in range(len(y))).backward()
    G, masks, changes = z.grad, [], []
    for n in range(len(y)):
        mask = torch.ones_like(z[n])
        if z.ndim == 4 and pixels:
            scores = {}
            for i in range(z.shape[2]):
                for j in range(z.shape[3]):
                    if score == "gradient":
                        scores[i, j] = float(G[n, :, i, j].mean())
                    else:
                        scores[i, j] = float(
                            sum(z[n, c, i, j].detach() * G[n, c].mean() for c in range(z.shape[1]))
                        )
        else:
            scores = {c: float(G[n, c].mean()) for c in range(z.shape[1])}
        ranked = sorted(scores.values(), reverse=True)
        threshold = ranked[math.ceil(len(ranked) * drop)]
        for at, value in scores.items():
            if value > threshold:
                mask[(slice(None), *at) if isinstance(at, tuple) else at] = 0
        before = outputs[n].softmax(0)[y[n]]
        after = rest((z[n] * mask)[None])[0].softmax(0)[y[n]]
        masks.append(mask)
        changes.append(max(float((before - after).detach()) - 1e-4, 0.0))
    threshold = sorted(changes, reverse=True)[round(len(y) * batch)]
    kept = [n for n in range(len(y)) if not changes[n] > threshold]
    for n in kept:
        masks[n] = torch.ones_like(masks[n])
    return torch.stack(masks), kept


@pytest.mark.parametrize("expression", [*NETS, "mlp(widths=[12])"])
@pytest.mark.parametrize("score", ["gradient", "activation"])
@pytest.mark.parametrize(("drop", "batch"), [(1 / 3, 1 / 3), (0.5, 0.7)])
def test_the_gradient_is_that_of_the_masked_features(expression, score, drop, batch):
    client, module = site(expression), net(expression)
    model, generator = Model(copy.deepcopy(module)), TURN.generator("rsc")
    model.module.train()
    part = SelfChallenging(Backprop(), drop, batch, score=score)
    kinds = set()
    with part.open(model, {}, client, {}, TURN) as step:
        for begin in (0, 4, 8, 0, 4, 8, 0, 4, 8):
            x, y = client.train.batch(slice(begin, begin + 12))
            value = step(x, y)
            pixels = float(torch.rand((), generator=generator)) < 0.5
            kinds.add(pixels)
            own = copy.deepcopy(module)
            mask, kept = literal_mask(own, x, y, pixels, drop, batch, score)
            assert 0 < len(kept) < len(y)
            body, rest = cut(own.train())
            loss = F.cross_entropy(rest(body(x) * mask), y)
            grads = torch.autograd.grad(loss, list(own.parameters()))
            torch.testing.assert_close(value, loss.detach())
            expected = torch.cat([g.flatten() for g in grads])
            torch.testing.assert_close(model.gradient, expected, rtol=1e-9, atol=1e-12)
            plain = torch.autograd.grad(
                F.cross_entropy(module.train()(x), y), list(module.parameters())
            )
            assert not torch.allclose(expected, torch.cat([g.flatten() for g in plain]))
    assert kinds == {True, False}


@pytest.mark.parametrize("expression", NETS)
def test_the_features_that_enter_the_head_really_are_zero(expression):
    client, model = site(expression), Model(net(expression))
    entered = []
    hook = model.module.flatten.register_forward_pre_hook(
        lambda layer, inputs: entered.append(inputs[0].detach()) if layer.training else None
    )
    clean = []
    other = model.module.pool2.register_forward_hook(
        lambda layer, inputs, output: clean.append(output.detach()) if layer.training else None
    )
    model.module.train()
    x, y = client.train.batch(slice(0, 12))
    generator, most = TURN.generator("rsc"), {True: 0, False: 0}
    with SelfChallenging(Backprop()).open(model, {}, client, {}, TURN) as step:
        for _ in range(12):
            step(x, y)
            pixels = float(torch.rand((), generator=generator)) < 0.5
            found, before = entered[-1], clean[-1]
            gone = (found == 0) & (before != 0)
            challenged = gone.flatten(1).any(1)
            assert 0 < int(challenged.sum()) <= 4  # a third of twelve
            assert torch.equal(found[~challenged], before[~challenged])
            axes = 1 if pixels else (2, 3)
            lost = gone.any(axes)
            assert not (lost & (found != 0).any(axes)).any()  # a whole pixel, or a whole channel
            most[pixels] = max(most[pixels], int(lost.flatten(1).sum(1).max()))
    hook.remove()
    other.remove()
    pixels_in_map, channels = clean[-1][0, 0].numel(), clean[-1].shape[1]
    assert 0 < most[True] <= math.ceil(pixels_in_map / 3)
    assert 0 < most[False] <= math.ceil(channels / 3)
    assert len(entered) == len(clean) == 12
    assert not any(part._forward_hooks for part in model.module.modules())


def test_what_finds_the_masks_leaves_statistics_and_mode_alone():
    client = site(NETS[1])
    buffers = []
    for part in (SelfChallenging(Backprop()), Backprop()):
        model = Model(net(NETS[1]))
        model.module.train()
        with part.open(model, {}, client, {}, TURN) as step:
            step(*client.train.batch(slice(0, 8)))
        assert all(layer.training for layer in model.module.modules())
        buffers.append(model.buffers.clone())
    assert torch.equal(*buffers)


def run(expression, rounds=2, fraction=1.0, kind="cnn"):
    clients = images(3) if kind == "cnn" else federation(3)
    shape = (1, 8, 8) if kind == "cnn" else (6,)
    name = "bn-cnn" if kind == "cnn" else "mlp(widths=[12], dropout=0.2)"
    model, names = Model(build(name, shape, 3, keyed("net")), shape=shape), sorted(clients)
    chosen = method(expression, RECIPE)
    backend = InProcess(model, clients)
    return play(chosen, start(chosen, model, names, 0), backend, names, rounds, fraction)[0]


@pytest.mark.parametrize("kind", ["cnn", "mlp"])
@pytest.mark.parametrize("fraction", [1.0, 2])
@pytest.mark.parametrize(
    ("zero", "base"),
    [
        ("rsc(drop=0)", "fedavg"),
        ("rsc(batch=0)", "fedavg"),
        ("ppdg+ga+rsc(drop=0)", "ppdg+ga"),
        ("fedilc-intra-geo+rsc(drop=0)", "fedilc-intra-geo"),
        ("fedsam+rsc(drop=0)", "fedsam"),
    ],
)
def test_nothing_dropped_is_the_base_bit_for_bit(zero, base, kind, fraction):
    a, b = run(zero, 2, fraction, kind), run(base, 2, fraction, kind)
    assert torch.equal(a.inbox["model"], b.inbox["model"])
    assert torch.equal(a.inbox["buffers"], b.inbox["buffers"])
    some = run(zero.split("(")[0], 2, fraction, kind)
    assert not torch.equal(a.inbox["model"], some.inbox["model"])


def test_a_named_layer_is_masked_and_a_wrong_name_answered():
    client, model = site(NETS[0]), Model(net(NETS[0]))
    x, y = client.train.batch(slice(0, 9))
    model.module.train()
    part = SelfChallenging(Backprop(), layer="relu3")
    kept = []
    hook = model.module.head.register_forward_pre_hook(
        lambda layer, inputs: kept.append(inputs[0].detach()) if layer.training else None
    )
    with part.open(model, {}, client, {}, TURN) as step:
        step(x, y)
    hook.remove()
    assert kept[0].shape == (9, 8)
    with (
        pytest.raises(UnseenError, match="did you mean 'relu3'"),
        SelfChallenging(Backprop(), layer="rellu3").open(model, {}, client, {}, TURN),
    ):
        pass


def test_one_logit_is_as_good_as_two():
    """For logits (0, z) and the single logit z the masks and the gradients of the body agree."""
    client = site(NETS[0])
    client = Client("site-a", Split(client.train.x, client.train.y % 2), None, 2)
    gradients = []
    for outputs in (1, 2):
        module = build(
            "mnist-cnn(channels=[3, 7], hidden=8)", (1, 8, 8), outputs, keyed("a")
        ).double()
        one = build("mnist-cnn(channels=[3, 7], hidden=8)", (1, 8, 8), 1, keyed("a")).double()
        for name, value in one.state_dict().items():
            if outputs == 1 or not name.startswith("head"):
                module.state_dict()[name].copy_(value)
            else:
                module.state_dict()[name].copy_(torch.cat([torch.zeros_like(value), value]))
        model = Model(module)
        model.module.train()
        # Of one logit, the slope of class 0 is −∂z; of two, it is ∂0 = 0: compare class 1 alone.
        x, y = client.train.batch(client.train.y.nonzero().flatten()[:6])
        with SelfChallenging(Backprop()).open(model, {}, client, {}, TURN) as step:
            step(x, y)
        gradients.append(model.layout.views(model.gradient)["conv1.weight"].clone())
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_where_it_stands_and_what_it_refuses():
    gradient = method("fedprox+am+fedsam+rsc").exchanges[0].local.gradient
    while not isinstance(gradient, SelfChallenging):
        gradient = gradient.inner
    assert isinstance(gradient.inner, Perturbed)  # both passes under one mask
    assert isinstance(gradient.inner.inner, Backprop)
    for expression, reason in [
        ("rsc+rsc", r"rsc\+rsc cannot be: "),
        ("fedccrl+rsc", r"fedccrl\+rsc cannot be: .*three views"),
        ("fedilc-intra-geo(by='example')+rsc", r"\+rsc cannot be: .*examples"),
        ("rsc(drop=1.2)", r"rsc\(drop\)"),
        ("rsc(batch=-1)", r"rsc\(batch\)"),
        ("rsc(score='cam')", r"rsc\(score\)"),
    ]:
        with pytest.raises(UnseenError, match=reason):
            method(expression)
    with pytest.raises(UnseenError, match=r"fedavg\+rsc cannot be: .*for classes"):
        method("fedavg+rsc", Training(loss=SquaredError()))
    assert method("rsc").asks == ("classes",)
    method("deepall+rsc")
    with (
        pytest.raises(UnseenError, match="masks for 8 examples"),
        SelfChallenging(Halves()).open(Model(net(NETS[0])), {}, site(NETS[0]), {}, TURN) as step,
    ):
        step(*site(NETS[0]).train.batch(slice(0, 8)))


class Halves:
    """An inner gradient that passes half of its batch."""

    def open(self, model, inbox, client, memory, turn):
        from contextlib import nullcontext

        model.module.train()
        return nullcontext(lambda x, y: model(x[:4]).sum())
