"""StableFDG's highlighter, pixel by pixel in numpy as its released code reads, and in training."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.alone import played
from support.sites import federation, images
from torch import nn

from unseen import Client, Model, Split, UnseenError, method
from unseen.core.turn import Turn, keyed
from unseen.gradient import Backprop, SelfChallenging
from unseen.gradient.class_pairs import ClassPairs, highlighted, highlighter, next_of_class

TURN = Turn(0, 1, 3, "train", "site-b", roster=("site-a", "site-b", "site-c"))


def pooling_net(pooled: bool = True) -> nn.Sequential:
    """Two convolutions and a head on the mean of their maps, or on all of their pixels."""
    torch.manual_seed(3)
    end = (nn.AdaptiveAvgPool2d(1), nn.Flatten()) if pooled else (nn.Flatten(),)
    maps = nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 5, 3), nn.ReLU()
    return nn.Sequential(*maps, *end, nn.Linear(5 if pooled else 5 * 16, 3))


def moved(net: nn.Module) -> nn.Module:
    """The net with other weights everywhere, so that no term is 0."""
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.add_(0.2 * torch.randn(p.shape, generator=keyed(f"moved/{i}")))
    return net


def written_out(z: np.ndarray, f: np.ndarray, labels: list[int] | None, layer: nn.Module):
    """The outputs of the head [N, o], for maps z [N, C, H, W] and features f [N, d]."""
    w = {n: p.detach().double().numpy() for n, p in layer.named_parameters()}
    count, C = z.shape[:2]
    pixels = z.reshape(count, C, -1)
    P = pixels.shape[2]
    q, k = np.zeros((count, P, len(w["query.bias"]))), np.zeros((count, P, len(w["key.bias"])))
    for n in range(count):
        for p in range(P):
            raw = w["query.weight"] @ pixels[n, :, p] + w["query.bias"]
            q[n, p] = raw / np.sqrt((raw**2).sum())
            raw = w["key.weight"] @ pixels[n, :, p] + w["key.bias"]
            k[n, p] = raw / np.sqrt((raw**2).sum())
    outputs = []
    for n in range(count):
        partner = n
        if labels is not None:
            same = [i for i in range(count) if labels[i] == labels[n]]
            partner = same[(same.index(n) + 1) % len(same)]
        logits = np.zeros((P, P))  # queries by keys
        for r in range(P):
            for p in range(P):
                logits[r, p] = ((q[partner, r] + q[n, r]) / 2) @ k[n, p]
        score = np.exp(logits.mean(0))
        attention = score / score.sum()
        attended = sum(attention[p] * pixels[n, :, p] for p in range(P))
        outputs.append(w["head.weight"] @ np.concatenate([f[n], attended]) + w["head.bias"])
    return np.stack(outputs)


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_outputs_are_those_of_the_equations(pooled: bool, training: bool) -> None:
    net = moved(highlighted(pooling_net(pooled), (1, 8, 8), 4)).double().train(training)
    x = torch.rand(7, 1, 8, 8, generator=keyed("x"), dtype=torch.float64)
    labels = [0, 1, 0, 0, 2, 1, 0]
    layer = net[-1]
    if training:
        layer.partners = next_of_class(torch.tensor(labels))
    found = net(x).detach().numpy()
    z = net[:4](x)
    f = z.mean((2, 3)) if pooled else z.flatten(1)
    z, f = z.detach().numpy(), f.detach().numpy()
    np.testing.assert_allclose(found, written_out(z, f, labels if training else None, layer), 1e-10)


def test_a_network_begins_as_it_was() -> None:
    plain = pooling_net()
    x = torch.rand(4, 1, 8, 8)
    before = plain(x)
    after = highlighted(plain, (1, 8, 8), 30)
    torch.testing.assert_close(after(x), before)
    assert after[-1].head.in_features == 2 * 5  # twice as wide as the maps are deep
    assert after[-1].query.weight.shape == (30, 5)


def test_copies_keep_no_maps_and_read_their_own() -> None:
    net = moved(highlighted(pooling_net(), (1, 8, 8), 4)).eval()
    x = torch.rand(4, 1, 8, 8)
    expected = net(x)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(other(x), expected)
        with torch.no_grad():
            net[2].weight.mul_(2)
        assert torch.equal(other(x), expected)
        with torch.no_grad():
            net[2].weight.div_(2)
    assert net[-1].source.maps.numel() == 0


def test_a_step_is_the_gradient_through_both_examples_of_a_pair() -> None:
    net = moved(highlighted(pooling_net(), (1, 8, 8), 4))
    other = copy.deepcopy(net).train()
    x = torch.rand(6, 1, 8, 8, generator=keyed("x"))
    y = torch.tensor([0, 1, 0, 2, 1, 0])
    model = Model(net, shape=(1, 8, 8))
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    client = Client("site-b", Split(x, y), None, 3)
    with ClassPairs(Backprop(), 4).open(model, inbox, client, {}, TURN) as step:
        value = step(x, y)
    assert highlighter(model).partners is None
    z = other[:4](x)
    layer = other[-1]
    q = F.normalize(layer.query(z.flatten(2).mT), dim=2)
    k = F.normalize(layer.key(z.flatten(2).mT), dim=2)
    circle = torch.tensor([2, 4, 5, 3, 1, 0])
    logits = torch.einsum("nrd,npd->nrp", (q[circle] + q) / 2, k).mean(1)
    attended = torch.einsum("np,ncp->nc", logits.softmax(1), z.flatten(2))
    loss = F.cross_entropy(layer.head(torch.cat([z.mean((2, 3)), attended], 1)), y)
    torch.testing.assert_close(value, loss.detach())
    names, tensors = zip(*other.named_parameters(), strict=True)
    views = model.layout.views(model.gradient)
    for name, g in zip(names, torch.autograd.grad(loss, tensors), strict=True):
        torch.testing.assert_close(views[name], g, rtol=1e-4, atol=1e-6)


def test_maps_are_read_behind_what_changes_them() -> None:
    """Under RSC's masks the highlighter has the masked maps, as the pooling has."""
    net = moved(highlighted(pooling_net(), (1, 8, 8), 4))
    with torch.no_grad():  # what the pooling gives has no part
        net[-1].head.weight[:, :5].zero_()
    x, y = torch.rand(6, 1, 8, 8, generator=keyed("x")), torch.tensor([0, 1, 0, 2, 1, 0])
    model = Model(net, shape=(1, 8, 8))
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    client, losses = Client("site-b", Split(x, y), None, 3), []
    for inner in (Backprop(), SelfChallenging(Backprop(), drop=0.6, batch=1.0)):
        with ClassPairs(inner, 4).open(model, inbox, client, {}, TURN) as step:
            losses.append(float(step(x, y)))
    assert losses[0] != losses[1]


def test_the_method_is_its_styles_where_the_highlighter_cannot_matter() -> None:
    clients = images(3)
    run = {m: played(m, clients, 2, net="bn-cnn") for m in ("stablefdg", "stablefdg-style")}
    first = played("stablefdg", clients, 0, net="bn-cnn").model
    x = next(iter(clients.values())).train.x
    assert run["stablefdg"].model.vector.numel() > run["stablefdg-style"].model.vector.numel()
    assert [e.name for e in run["stablefdg"].method.exchanges] == ["styles", "train"]
    plain = played("fedavg(weights='uniform')", clients, 0, net="bn-cnn").model
    torch.testing.assert_close(first(x), plain(x))
    trained = played("stablefdg(share=0, p=0)", clients, 3, net="bn-cnn").model
    layer = highlighter(trained)
    assert float(layer.head.weight[:, -32:].detach().abs().max()) > 1e-3
    assert float((layer.query.weight - highlighter(first).query.weight).detach().abs().max()) > 0


def test_networks_without_maps_are_refused() -> None:
    with pytest.raises(UnseenError, match="none of more than one pixel"):
        played("stablefdg", federation(3), 1)
    assert {"images", "convolutions", "classes"} <= set(method("stablefdg").asks)
