"""FedSR against torch.distributions, in a net written out layer by layer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.alone import only, played
from support.sites import federation
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence

from unseen import Client, Model, Split, UnseenError, method
from unseen.core.turn import Turn, keyed
from unseen.data.networks.encoded import Encoded, with_encoder
from unseen.methods.fedsr import SimpleRepresentation
from unseen.methods.gradient import Backprop


def net() -> nn.Module:
    torch.manual_seed(1)
    whole = with_encoder(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
    with torch.no_grad():
        for p in whole.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return whole


def test_a_step_is_the_gradient_of_the_papers_objective() -> None:
    draws = keyed("fedsr")
    x, y = torch.randn(7, 6, generator=draws), torch.randint(3, (7,), generator=draws)
    model, other = Model(net(), shape=(6,)), net()
    model.module.train()
    client = Client("site-a", Split(x, y), None, 3)
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    gradient = SimpleRepresentation(Backprop(), length=0.3, information=0.2)
    turn = Turn(seed=0, round=0, rounds=1, exchange="train", client="site-a")
    torch.manual_seed(5)
    with gradient.open(model, inbox, client, {}, turn) as step:
        value = step(x, y)

    torch.manual_seed(5)
    body, layer = other[:2], other[2]
    total = torch.zeros(())
    for term in ("loss", "penalty"):  # each has its own draw
        raw = layer.encoder(body(x))
        p = Independent(Normal(raw[:, :5], F.softplus(raw[:, 5:])), 1)
        z = p.mean + p.stddev * torch.randn(7, 5)
        r = Independent(Normal(layer.mean[y], F.softplus(layer.spread)[y]), 1)
        if term == "loss":
            total = total + F.cross_entropy(layer.head(z), y)
        else:
            total = total + 0.3 * (z**2).sum(1).mean() + 0.2 * kl_divergence(p, r).mean()
    total.backward()
    expected = torch.cat([p.grad.flatten() for p in other.parameters()])
    order = [name for name, _ in other.named_parameters()]
    views = model.layout.views(model.gradient)
    found = torch.cat([views[name].flatten() for name in order])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(value, total.detach())


def test_the_net_begins_as_it_was_and_predicts_by_the_mean() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    x = torch.randn(4, 6)
    before = plain(x)
    coded = with_encoder(plain).eval()
    torch.testing.assert_close(coded(x), before)
    assert isinstance(with_encoder(nn.Linear(6, 3)), Encoded)
    coded.train()
    assert not torch.equal(coded(x), coded(x))


def test_terms_shorten_features_and_narrow_what_they_say() -> None:
    clients = federation(3)
    strong = played("fedsr(length=1.0)", clients, 4).model
    weak = played("fedsr(length=0.0)", clients, 4).model
    x = torch.cat([c.train.x for c in clients.values()])

    def length(model: Model) -> float:
        seen: list[torch.Tensor] = []
        layer = next(m for m in model.module.modules() if isinstance(m, Encoded))
        with layer.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
            model(x)
        return float(seen[0].detach().norm(dim=1).mean())

    assert length(strong) < 0.7 * length(weak)


def test_a_net_without_a_linear_layer_is_refused() -> None:
    with pytest.raises(UnseenError, match="last linear layer"):
        method("fedsr").adapt(only(nn.Conv2d(1, 1, 1)))


def test_one_logit_has_a_distribution_for_each_of_two_classes() -> None:
    clients = federation(3, classes=2)
    narrow = with_encoder(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1)))
    (encoded,) = (part for part in narrow.modules() if isinstance(part, Encoded))
    assert encoded.mean.shape == encoded.spread.shape == (2, 5)
    (x, y) = clients["site-a"].train.x, clients["site-a"].train.y
    assert set(y.tolist()) == {0, 1}
    model = Model(narrow, shape=(6,))
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    turn = Turn(seed=0, round=0, rounds=1, exchange="train", client="site-a")
    gradient = SimpleRepresentation(Backprop(), length=0.3, information=0.2)
    with gradient.open(model, inbox, clients["site-a"], {}, turn) as step:
        assert bool(torch.isfinite(step(x, y)))
