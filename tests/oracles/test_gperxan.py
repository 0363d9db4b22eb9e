"""gPerXAN against a loop with one module per client, and its layer against formulas."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.alone import only
from support.remote import Remote
from support.sites import images
from torch import nn

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core import ONE_LABEL
from unseen.core.exchange import Reply
from unseen.core.optimiser import SGD
from unseen.core.round import sample
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.gradient.gperxan import STATISTICS, WEIGHTS, OwnNorms
from unseen.methods.images.norms import Assembled, assembled
from unseen.methods.local.batches import batches
from unseen.studies.execution.runtime import adapted

LR = 0.05


def data(count: int = 3) -> dict[str, Client]:
    clients = {}
    for k, (name, client) in enumerate(images(count).items()):
        train, rest = (
            Split((1 + k) * s.x.double() + k, s.y) for s in (client.train, client.validation)
        )
        clients[name] = Client(name, train, rest, client.classes)
    return clients


def net() -> nn.Module:
    return build("bn-cnn", (1, 8, 8), 3, keyed("gperxan")).double()


def run(expression, module, clients, training, rounds=3, fraction=1.0, backend=None):
    """Plays on a network that is adapted already."""
    chosen, names = method(expression, training), sorted(clients)
    model = Model(copy.deepcopy(module))
    state = start(chosen, model, names, 0)
    engine = backend(module, clients) if backend else InProcess(model, clients)
    return play(chosen, state, engine, names, rounds, fraction)


def literal(module, clients, training, rounds, fraction, reg, personal):
    """state_dicts throughout; `personal(name)` says which tensors stay with the client."""
    names, server = sorted(clients), copy.deepcopy(module)
    own: dict[str, dict[str, torch.Tensor]] = {name: {} for name in names}
    for r in range(rounds):
        present = sample(names, fraction, Turn(0, r, rounds))
        replies = {}
        for name in present:
            client = copy.deepcopy(server)
            client.load_state_dict(server.state_dict() | own[name])
            guide = copy.deepcopy(server.head).requires_grad_(False)
            body = nn.Sequential(*list(client)[:-1]).train()
            optimiser = torch.optim.SGD(client.parameters(), lr=LR)
            split = clients[name].train
            for index in batches(split, training, Turn(0, r, rounds, "train", name)):
                features, y = body(split.x[index]), split.y[index]
                loss = F.cross_entropy(client.head(features), y)
                optimiser.zero_grad()
                (loss + reg * F.cross_entropy(guide(features), y)).backward()
                optimiser.step()
            replies[name] = {k: v.clone() for k, v in client.state_dict().items()}
            own[name] = {k: v for k, v in replies[name].items() if personal(k)}
        total = sum(len(clients[n].train) for n in present)
        server.load_state_dict(
            {
                k: sum(len(clients[n].train) / total * replies[n][k] for n in present)
                if v.is_floating_point()
                else v
                for k, v in server.state_dict().items()
            }
        )
    return server


def agree(state, server: nn.Module) -> None:
    weights = torch.cat([p.detach().flatten() for p in server.parameters()])
    buffers = [b.flatten() for b in server.buffers() if b.is_floating_point()]
    torch.testing.assert_close(state.inbox["model"], weights, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(state.inbox["buffers"], torch.cat(buffers), rtol=1e-9, atol=1e-11)


PERSONAL = {
    "batchnorm": lambda key: ".batch." in key,
    "released": lambda key: ".batch." in key or key.endswith("score_batch"),
}


@pytest.mark.parametrize("fraction", [1.0, 2])
@pytest.mark.parametrize("personal", PERSONAL)
@pytest.mark.parametrize("reg", [0.5, 0.0])
def test_rounds_are_those_of_a_literal_loop(reg, personal, fraction):
    clients, module = data(), assembled(net())
    training = Training(SGD(LR), batch_size=8)
    expression = f"gperxan(reg={reg}, personal={personal!r})"
    state, _ = run(expression, module, clients, training, 4, fraction)
    agree(state, literal(module, clients, training, 4, fraction, reg, PERSONAL[personal]))
    # What stays personal matters.
    other = literal(module, clients, training, 4, fraction, reg, lambda key: False)
    found = torch.cat([p.detach().flatten() for p in other.parameters()])
    assert (found - state.inbox["model"]).abs().max() > 1e-4


@pytest.mark.parametrize("fraction", [1.0, 2])
def test_without_instance_norm_and_guide_it_is_fedavg_with_local_batchnorm(fraction):
    """s_i → −∞ and λ = 0: the loop runs on the network as it was, with plain BatchNorm."""
    clients, plain = data(), net()
    training = Training(SGD(LR), batch_size=8)
    module = assembled(copy.deepcopy(plain))
    with torch.no_grad():
        for norm in (module.norm1, module.norm2):
            norm.score_instance.fill_(-1e9)
    state, _ = run("gperxan(reg=0)", module, clients, training, 4, fraction)
    server = literal(plain, clients, training, 4, fraction, 0.0, lambda key: "norm" in key)
    views = Model(copy.deepcopy(module)).layout.views(state.inbox["model"])
    for name, parameter in server.named_parameters():
        found = views[name.replace(".", ".batch.") if "norm" in name else name]
        torch.testing.assert_close(found, parameter.detach(), rtol=1e-9, atol=1e-11)
    buffers = [b.flatten() for b in server.buffers() if b.is_floating_point()]
    torch.testing.assert_close(state.inbox["buffers"], torch.cat(buffers), rtol=1e-9, atol=1e-11)


def test_the_layer_is_the_weighted_sum_of_both_norms():
    generator = keyed("layer")
    batch = nn.BatchNorm2d(3).double()
    layer = Assembled(batch)
    x = 2 * torch.randn(4, 3, 5, 2, generator=generator, dtype=torch.float64) - 1
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    e_b, e_i = layer.score_batch.exp(), layer.score_instance.exp()

    def normed(mean, var, weight, bias):
        z = (x - mean) / (var + 1e-5).sqrt()
        return z * weight[:, None, None] + bias[:, None, None]

    def moments(axes):
        return x.mean(axes, keepdim=True), x.var(axes, unbiased=False, keepdim=True)

    instance = normed(*moments((2, 3)), layer.instance_weight, layer.instance_bias)
    of_batch = normed(*moments((0, 2, 3)), batch.weight, batch.bias)
    expected = (e_b * of_batch + e_i * instance) / (e_b + e_i)
    torch.testing.assert_close(layer(x), expected, rtol=1e-10, atol=1e-12)
    layer.eval()
    running = batch.running_mean[:, None, None], batch.running_var[:, None, None]
    expected = (e_b * normed(*running, batch.weight, batch.bias) + e_i * instance) / (e_b + e_i)
    torch.testing.assert_close(layer(x), expected, rtol=1e-10, atol=1e-12)


def test_both_norms_start_alike():
    batch = nn.BatchNorm2d(2)
    with torch.no_grad():
        batch.weight.fill_(3.0)
        batch.bias.fill_(-1.0)
    layer = Assembled(batch)
    assert layer.instance_weight.tolist() == [3.0, 3.0]
    assert layer.instance_bias.tolist() == [-1.0, -1.0]
    assert layer.score_batch.item() == layer.score_instance.item() == 1.0
    bare = Assembled(nn.BatchNorm2d(2, affine=False))
    assert bare.instance_weight.tolist() == [1.0, 1.0]
    assert bare.instance_bias.tolist() == [0.0, 0.0]


def test_batchnorm_over_vectors_is_left_and_stays_personal():
    network = nn.Sequential(nn.BatchNorm1d(4), nn.Conv1d(4, 2, 1), nn.Flatten(), nn.Linear(6, 2))
    assert type(assembled(network)[0]) is nn.BatchNorm1d
    names = OwnNorms(still).names(Model(network))
    assert names == {"0.weight", "0.bias", "0.running_mean", "0.running_var"}
    assert method("gperxan").asks == ("batchnorm", ONE_LABEL)


def still(model, inbox, client, memory, turn):
    """A local that trains nothing."""
    return Reply(), memory


def test_an_added_part_finds_the_received_model_under_the_clients_own_norms():
    seen = {}

    def look(model, inbox, client, memory, turn):
        seen["inbox"], seen["model"] = inbox["model"], model.vector.clone()
        return Reply(), memory

    model, client, turn = Model(assembled(net())), data()["site-a"], Turn(0, 0, 1)
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    own = {
        WEIGHTS: torch.full((96,), 7.0, dtype=torch.float64),
        STATISTICS: torch.full((96,), 2.0, dtype=torch.float64),
    }
    OwnNorms(look)(model, inbox, client, own, turn)
    assert torch.equal(seen["inbox"], seen["model"])
    assert int((seen["inbox"] == 7.0).sum()) == 96
    assert not bool((inbox["model"] == 7.0).any())
    chosen = method("gperxan+ga")
    (exchange,) = chosen.exchanges
    assert isinstance(exchange.local, OwnNorms)
    assert type(exchange.local.inner).__name__ == "GapProbe"


@pytest.mark.parametrize("policy", ["average", "local", "batch"])
@pytest.mark.parametrize("expression", ["gperxan", "gperxan(personal='released')+ga"])
def test_sites_behind_bytes_give_the_same_bits(expression, policy):
    clients = images(3)
    training = Training(SGD(LR, momentum=0.9), batch_size=8, keep_optimiser=True, buffers=policy)
    network = build("bn-cnn", (1, 8, 8), 3, keyed("net")).to(memory_format=torch.channels_last)
    if policy == "batch":
        for layer in (network.norm1, network.norm2):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    module = adapted(method(expression), only(network))
    one, _ = run(expression, module, clients, training, 3, 2)
    two, _ = run(expression, module, clients, training, 3, 2, Remote)
    assert all(torch.equal(one.inbox[n], two.inbox[n]) for n in one.inbox)


def test_wrong_options_are_named():
    with pytest.raises(UnseenError, match=r"gperxan\(reg\)"):
        method("gperxan(reg=-0.5)")
    with pytest.raises(UnseenError, match="did you mean 'batchnorm'"):
        method("gperxan(personal='batchnorms')")
