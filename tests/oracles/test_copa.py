"""COPA against a loop with one module per body and head, written out in float64."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.alone import only
from support.remote import Remote
from support.sites import federation, images
from torch import nn

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core import ONE_LABEL
from unseen.core.losses import CrossEntropy, SquaredError
from unseen.core.optimiser import SGD
from unseen.core.round import sample
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.copa import Collaboration, Ensemble, first_head
from unseen.methods.gradient.heads import Head
from unseen.methods.images.norms import Halves, Hybrid, assembled, halves, hybrid
from unseen.methods.local.batches import batches
from unseen.studies.execution.runtime import adapted

LR = 0.05


def squared(z, y):
    return F.mse_loss(z.squeeze(-1), y)


def logistic(z, y):
    return F.binary_cross_entropy_with_logits(z.squeeze(-1), y.double())


#: The number of outputs and the loss.
KINDS = {"classes": (3, F.cross_entropy), "numbers": (1, squared), "logit": (1, logistic)}


def data(kind: str, count: int = 3) -> dict[str, Client]:
    clients = {}
    for name, client in federation(count).items():
        splits = []
        for split in (client.train, client.validation):
            x, y = split.x.double(), split.y
            y = {"classes": y, "logit": (y > 0).long(), "numbers": x.sum(1).sin() + y}[kind]
            splits.append(Split(x, y))
        classes = {"classes": 3, "logit": 2, "numbers": None}[kind]
        clients[name] = Client(name, splits[0], splits[1], classes)
    return clients


def net(outputs: int) -> nn.Sequential:
    return build("mlp(widths=[7, 5])", (6,), outputs, keyed("copa")).double()


def setting(kind: str, **settings) -> tuple[Training, nn.Sequential, object]:
    outputs, loss = KINDS[kind]
    own = SquaredError() if kind == "numbers" else CrossEntropy()
    return Training(SGD(LR), batch_size=9, loss=own, **settings), net(outputs), loss


def run(expression, module, clients, training, rounds=3, fraction=1.0, backend=None):
    chosen, names = method(expression, training), sorted(clients)
    network = adapted(chosen, only(copy.deepcopy(module)))
    model = Model(copy.deepcopy(network))
    state = start(chosen, model, names, 0)
    engine = backend(network, clients) if backend else InProcess(model, clients)
    return play(chosen, state, engine, names, rounds, fraction)


def flat(*modules: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for m in modules for p in m.parameters()])


def literal(module, clients, training, loss, rounds, fraction, scale, mu=0.0):
    """Every client's own modules; the body of those present averaged by their examples."""
    names = sorted(clients)
    body = nn.Sequential(*list(module)[:-1])
    heads = {name: copy.deepcopy(module.head) for name in names}
    for r in range(rounds):
        present = sample(names, fraction, Turn(0, r, rounds))
        total = sum(len(clients[n].train) for n in present)
        trained, sent = {}, {}
        for name in present:
            own, head = copy.deepcopy(body), copy.deepcopy(heads[name])
            parameters = [*own.parameters(), *head.parameters()]
            received = [p.detach().clone() for p in parameters]
            optimiser = torch.optim.SGD(parameters, lr=LR)
            split = clients[name].train
            for index in batches(split, training, Turn(0, r, rounds, "train", name)):
                features, y = own(split.x[index]), split.y[index]
                c = 1 if scale == "sum" else 1 / len(names)
                # The head by its own loss alone, the body by those under all heads.
                value = loss(head(features.detach()), y)
                for other in names:
                    frozen = copy.deepcopy(head if other == name else heads[other])
                    value = value + c * loss(frozen.requires_grad_(False)(features), y)
                for p, before in zip(parameters, received, strict=True):
                    value = value + mu / 2 * (p - before).square().sum()
                optimiser.zero_grad()
                value.backward()
                optimiser.step()
            trained[name], sent[name] = own, head
        heads |= sent
        with torch.no_grad():
            for p, *parts in zip(
                body.parameters(), *(trained[n].parameters() for n in present), strict=True
            ):
                shares = [len(clients[n].train) / total for n in present]
                p.copy_(sum(q * w for q, w in zip(parts, shares, strict=True)))
    return body, heads


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("scale", "fraction"), [("sum", 2), ("mean", 1.0), ("mean", 2)])
def test_rounds_are_those_of_a_literal_loop_over_bodies_and_heads(kind, scale, fraction):
    clients, rounds = data(kind), 4
    training, module, loss = setting(kind, epochs=2)
    state, outcomes = run(f"copa(scale={scale!r})", module, clients, training, rounds, fraction)
    body, heads = literal(module, clients, training, loss, rounds, fraction, scale)
    P = flat(body).numel()
    torch.testing.assert_close(state.inbox["model"][:P], flat(body), rtol=1e-10, atol=1e-12)
    expected = torch.stack([flat(heads[name]) for name in sorted(clients)])
    torch.testing.assert_close(state.inbox["heads"], expected, rtol=1e-10, atol=1e-12)
    assert (expected - expected[0]).abs().max() > 1e-3
    assert len(outcomes) == rounds
    # The head in the model itself is the one that everybody started with.
    assert torch.equal(state.inbox["model"][P:], flat(module.head))


def test_a_proximal_term_holds_a_client_near_the_received_body_and_its_own_head():
    clients = data("classes")
    training, module, loss = setting("classes")
    state, _ = run("copa+fedprox(mu=0.4)", module, clients, training, 3, 2)
    body, heads = literal(module, clients, training, loss, 3, 2, "mean", mu=0.4)
    P = flat(body).numel()
    torch.testing.assert_close(state.inbox["model"][:P], flat(body), rtol=1e-10, atol=1e-12)
    expected = torch.stack([flat(heads[name]) for name in sorted(clients)])
    torch.testing.assert_close(state.inbox["heads"], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_one_client_alone_is_local_training(kind):
    clients = data(kind, count=1)
    training, module, loss = setting(kind, epochs=2)
    own = copy.deepcopy(module)
    optimiser = torch.optim.SGD(own.parameters(), lr=LR)
    split = clients["site-a"].train
    for r in range(3):
        for index in batches(split, training, Turn(0, r, 3, "train", "site-a")):
            optimiser.zero_grad()
            loss(own(split.x[index]), split.y[index]).backward()
            optimiser.step()
    state, _ = run("copa", module, clients, training, 3)
    found = torch.cat([state.inbox["model"][: -flat(own.head).numel()], state.inbox["heads"][0]])
    torch.testing.assert_close(found, flat(own), rtol=1e-12, atol=1e-14)
    # The ensemble of one predicts as it does.
    model = Model(copy.deepcopy(module))
    model.bind(state.inbox["model"].clone(), state.inbox["buffers"].clone())
    z, own_z = method("copa", training).predict(model, state.inbox, split.x), own(split.x)
    if kind == "classes":
        own_z = own_z.log_softmax(-1)
    torch.testing.assert_close(z, own_z, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "expression", ["copa", "copa+ga", "copa+ppdg", "copa+fedprox", "copa+fednova", "copa+fedsam"]
)
def test_the_models_update_is_exactly_zero_at_the_head(expression):
    clients, names = data("classes"), ["site-a", "site-b", "site-c"]
    training, module, _ = setting("classes")
    chosen, model = method(expression, training), Model(module)
    backend = InProcess(model, clients)
    state, _ = play(chosen, start(chosen, model, names, 0), backend, names, 2)
    (exchange,) = chosen.exchanges
    turn = Turn(0, 2, 4, exchange.name, roster=tuple(names))
    replies = backend.map(exchange, state.inbox, names, turn)
    part = Head.of(model).part
    assert part == slice(model.layout.size - 5 * 3 - 3, model.layout.size)
    for k, reply in enumerate(replies):
        assert torch.equal(reply.rows["model"][part], torch.zeros(18, dtype=torch.float64))
        assert (reply.rows["model"][: part.start].abs() > 0).any()
        assert reply.rows["heads"].shape == (18,)
        assert not torch.equal(reply.rows["heads"], state.inbox["heads"][k])


def test_whoever_stays_away_keeps_the_head_last_sent():
    clients, names = data("classes", count=5), [f"site-{c}" for c in "abcde"]
    training, module, _ = setting("classes")
    chosen, model = method("copa", training), Model(copy.deepcopy(module))
    backend = InProcess(model, clients)
    state = start(chosen, model, names, 3)
    first = flat(module.head)
    assert torch.equal(state.inbox["heads"], first.expand(5, -1))
    never = set(names)
    for r in range(4):
        before = state.inbox["heads"]
        state, outcomes = play(chosen, state, backend, names, r + 1, 2)
        present = outcomes[0].names
        never -= set(present)
        assert len(present) == 2
        for k, name in enumerate(names):
            stayed = torch.equal(before[k], state.inbox["heads"][k])
            assert stayed == (name not in present)
            assert name not in never or torch.equal(state.inbox["heads"][k], first)


@pytest.mark.parametrize("fraction", [1.0, 2])
@pytest.mark.parametrize(
    "expression", ["copa", "copa+ga", "copa(scale='mean')+ppdg", "copa(norm='hybrid')"]
)
def test_sites_behind_bytes_give_the_same_bits(expression, fraction):
    clients = images(3)
    training = Training(SGD(LR, momentum=0.9), batch_size=8, keep_optimiser=True)
    module = build("bn-cnn", (1, 8, 8), 3, keyed("net")).to(memory_format=torch.channels_last)
    one, outcomes = run(expression, module, clients, training, 3, fraction)
    two, others = run(expression, module, clients, training, 3, fraction, Remote)
    assert all(torch.equal(one.inbox[n], two.inbox[n]) for n in one.inbox)
    for o, p in zip(outcomes, others, strict=True):
        assert all(torch.equal(o.table[n], p.table[n]) for n in o.table)


def test_a_gap_is_of_the_bodies_under_the_clients_own_head():
    clients = data("classes")
    training, module, loss = setting("classes")
    _, outcomes = run("copa(scale='sum')+ga(on='train')", module, clients, training, 2)
    own = {name: literal_one(module, clients, training, loss, name) for name in sorted(clients)}
    average = copy.deepcopy(own["site-a"][0])
    with torch.no_grad():
        for p, *parts in zip(
            average.parameters(), *(body.parameters() for body, _ in own.values()), strict=True
        ):
            p.copy_(sum(parts) / 3)  # GA starts from uniform weights
        for k, (name, (body, head)) in enumerate(own.items()):
            x, y = clients[name].train.x, clients[name].train.y
            gap = float(loss(head(average(x)), y) - loss(head(body(x)), y))
            assert float(outcomes[1].table["gap"][k]) == pytest.approx(gap, abs=1e-9)
            assert abs(gap) > 1e-5


def literal_one(module, clients, training, loss, name):
    """What the first round makes of one client's body and head."""
    own = copy.deepcopy(module)
    frozen = [copy.deepcopy(module.head).requires_grad_(False) for _ in range(len(clients) - 1)]
    body, split = nn.Sequential(*list(own)[:-1]), clients[name].train
    optimiser = torch.optim.SGD(own.parameters(), lr=LR)
    for index in batches(split, training, Turn(0, 0, 2, "train", name)):
        features, y = body(split.x[index]), split.y[index]
        optimiser.zero_grad()
        sum(loss(head(features), y) for head in (own.head, *frozen)).backward()
        optimiser.step()
    return body, own.head


# --- prediction -----------------------------------------------------------------------------


def ensemble(kind: str, of: str = "probabilities"):
    outputs = KINDS[kind][0]
    model = Model(net(outputs))
    generator = keyed("heads")
    heads = torch.randn(4, 5 * outputs + outputs, generator=generator, dtype=torch.float64)
    x = torch.randn(11, 6, generator=generator, dtype=torch.float64)
    features = nn.Sequential(*list(model.module)[:-1])(x).detach()
    W, b = heads[:, : 5 * outputs].view(4, outputs, 5), heads[:, 5 * outputs :]
    each = torch.stack([features @ W[j].T + b[j] for j in range(4)])
    training = setting(kind)[0]
    predict = method(f"copa(ensemble={of!r})", training).predict
    return predict(model, {"heads": heads}, x).detach(), each


def test_probabilities_are_the_mean_of_the_heads_probabilities():
    z, each = ensemble("classes")
    expected = torch.stack([e.softmax(-1) for e in each]).mean(0)
    torch.testing.assert_close(z.softmax(-1), expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(z.exp(), expected, rtol=1e-12, atol=1e-14)
    z, each = ensemble("logit")
    torch.testing.assert_close(z.sigmoid(), each.sigmoid().mean(0), rtol=1e-12, atol=1e-14)


def test_logits_and_numbers_are_the_mean_of_the_heads_outputs():
    z, each = ensemble("classes", "logits")
    torch.testing.assert_close(z, each.mean(0), rtol=1e-12, atol=1e-14)
    assert not torch.allclose(z.softmax(-1), each.softmax(-1).mean(0))
    z, each = ensemble("numbers")
    torch.testing.assert_close(z, each.mean(0), rtol=1e-12, atol=1e-14)


def test_probabilities_of_certain_heads_stay_finite():
    model = Model(build("logistic", (1,), 1, keyed("x")).double())
    heads = torch.tensor([[900.0, 0.0], [-900.0, 0.0]], dtype=torch.float64)
    z = Ensemble()(model, {"heads": heads}, torch.ones(1, 1, dtype=torch.float64))
    assert float(z) == pytest.approx(0.0, abs=1e-9)


def test_evaluation_predicts_with_the_ensemble():
    clients = data("classes")
    training, module, _ = setting("classes")
    state, _ = run("copa", module, clients, training, 2)
    model = Model(copy.deepcopy(module))
    model.bind(state.inbox["model"].clone(), state.inbox["buffers"].clone())
    x = clients["site-a"].validation.x
    z = method("copa", training).predict(model, state.inbox, x)
    assert not torch.allclose(z, model(x).log_softmax(-1))


# --- normalisation --------------------------------------------------------------------------


def normalised(x, axes):
    mean = x.mean(axes, keepdim=True)
    return (x - mean) / (x.var(axes, unbiased=False, keepdim=True) + 1e-5).sqrt()


def layer():
    batch = nn.BatchNorm2d(4).double()
    with torch.no_grad():
        batch.weight.copy_(torch.tensor([0.5, -1.0, 2.0, 1.5]))
        batch.bias.copy_(torch.tensor([0.1, 0.2, -0.3, 0.0]))
    return batch, torch.randn(5, 4, 3, 2, generator=keyed("norms"), dtype=torch.float64) * 3 + 1


def affine(batch, x):
    return x * batch.weight[:, None, None] + batch.bias[:, None, None]


def test_hybrid_is_the_gated_mix_under_one_affine_map():
    batch, x = layer()
    mixed = Hybrid(batch)
    gate = torch.tensor([-2.0, 0.0, 1.0, 50.0], dtype=torch.float64)
    mixed.gate.data.copy_(gate)
    rho = (1 / (1 + (-gate).exp()))[:, None, None]
    expected = rho * normalised(x, (0, 2, 3)) + (1 - rho) * normalised(x, (2, 3))
    torch.testing.assert_close(mixed(x), affine(batch, expected), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(batch.running_mean, 0.1 * x.mean((0, 2, 3)))
    mixed.eval()
    mean, var = batch.running_mean[:, None, None], batch.running_var[:, None, None]
    expected = rho * (x - mean) / (var + 1e-5).sqrt() + (1 - rho) * normalised(x, (2, 3))
    torch.testing.assert_close(mixed(x), affine(batch, expected), rtol=1e-10, atol=1e-12)


def test_halves_are_instance_and_batch_normalisation_side_by_side():
    batch, x = layer()
    expected = torch.cat([normalised(x, (2, 3))[:, :2], normalised(x, (0, 2, 3))[:, 2:]], 1)
    torch.testing.assert_close(Halves(batch)(x), affine(batch, expected), rtol=1e-10, atol=1e-12)


def test_batchnorm_over_images_is_replaced_and_over_vectors_left():
    shared = nn.BatchNorm2d(2)
    network = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 2, 1), shared), shared, nn.Flatten(), nn.BatchNorm1d(8)
    )
    changed = hybrid(network)
    assert type(changed[0][1]) is Hybrid and changed[0][1] is changed[1]
    assert type(changed[3]) is nn.BatchNorm1d
    assert hybrid(changed)[0][1].batch is shared
    assert type(halves(nn.BatchNorm2d(3))) is Halves
    assert halves(assembled(nn.BatchNorm2d(3, affine=False))).batch.num_features == 3


def test_the_network_is_the_studys_unless_asked_otherwise():
    assert method("copa").adapt is None and method("copa").asks == (ONE_LABEL,)
    for norm, kind in (("hybrid", Hybrid), ("half", Halves)):
        chosen = method(f"copa(norm={norm!r})")
        net = adapted(chosen, only(build("bn-cnn", (1, 8, 8), 3, keyed("net"))))
        assert type(net.norm1) is type(net.norm2) is kind
        assert chosen.asks == ("batchnorm", ONE_LABEL)


# --- refusals -------------------------------------------------------------------------------


class Doubled(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return 2 * self.head(x)


def test_a_net_whose_outputs_are_not_the_heads_is_refused():
    clients, training = federation(2), Training(SGD(LR), batch_size=8)
    with pytest.raises(UnseenError, match="'head'.*outputs \\[N, o\\] are the model's"):
        run("copa", Doubled(), clients, training, 1)
    frozen = build("mlp(widths=[4])", (6,), 3, keyed("net"))
    frozen.head.bias.requires_grad_(False)
    with pytest.raises(UnseenError, match="as a whole: it has 15 .* of which 12"):
        run("copa", frozen, clients, training, 1)
    frozen.head.requires_grad_(False)
    with pytest.raises(UnseenError, match="'head'"):
        run("copa", frozen, clients, training, 1)


def test_a_head_may_be_named_or_be_the_whole_net():
    model = Model(build("logistic", (2,), 3, keyed("x")))
    assert Head.of(model).name == "head"
    assert Head.of(Model(nn.Linear(2, 3))).part == slice(0, 9)
    assert torch.equal(first_head("head", model), model.vector)
    with pytest.raises(UnseenError, match="linear layers: head"):
        first_head("tail", model)


def test_wrong_options_are_named():
    for wrong, right in (("scale='sums'", "sum"), ("norm='halves'", "half")):
        with pytest.raises(UnseenError, match=f"did you mean '{right}'"):
            method(f"copa({wrong})")
    with pytest.raises(UnseenError, match=r"copa\(ensemble\)|ensemble"):
        method("copa(ensemble='probability')")
    with pytest.raises(UnseenError, match=r"copa\(scale\)"):
        Collaboration(CrossEntropy(), "total")
