"""FedSAM against plain torch: two backward passes per batch, weights put aside and put back."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.quadratics import Point, quadratics
from support.sites import federation, images

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.losses import SquaredError
from unseen.core.optimiser import SGD
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.perturbation import Perturbed
from unseen.methods.local.batches import batches
from unseen.methods.local.scaffold import CONTROL

TURN = Turn(seed=0, round=0, rounds=2, exchange="train", client="site-a")


def literal(net, client, training, rho, turn, extra=0, statistics="both"):
    """Algorithm 1 of the paper on the module's own parameters, stepped by torch.optim.SGD."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=training.optimiser.momentum)
    start = [p.detach().clone() for p in net.parameters()]
    net.train()
    for index in batches(client.train, training, turn):
        x, y = client.train.x[index], client.train.y[index]
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        kept = [p.detach().clone() for p in net.parameters()]
        after_first = {n: b.clone() for n, b in net.named_buffers()}
        length = torch.cat([p.grad.flatten() for p in net.parameters()]).norm()
        with torch.no_grad():
            for p in net.parameters():
                p.add_(rho * p.grad / length)
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for p, weight, begun in zip(net.parameters(), kept, start, strict=True):
                p.copy_(weight)
                if extra:
                    p.grad.add_(extra * (p - begun))
            if statistics == "first":
                for name, buffer in net.named_buffers():
                    buffer.copy_(after_first[name])
        optimiser.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.parametrize("m", [0.0, 0.9])
@pytest.mark.parametrize(
    ("expression", "mu"), [("fedsam(rho=0.3)", 0), ("fedprox(mu=2.0)+fedsam(rho=0.3)", 2)]
)
def test_one_client_trains_as_the_algorithm_written_out(expression, mu, m):
    """The proximal term is added at w, unperturbed."""
    client = doubled(federation(1)["site-a"])
    training = Training(SGD(0.05, m), batch_size=8, epochs=2)
    net = build("mlp(widths=[8])", (6,), 3, keyed("net")).double()
    expected = literal(copy.deepcopy(net), client, training, 0.3, TURN, extra=mu)
    state = played(expression, net, {"site-a": client}, training, 1)
    torch.testing.assert_close(state.inbox["model"], expected, rtol=1e-10, atol=1e-12)
    plain = played("fedavg", net, {"site-a": client}, training, 1)
    assert (plain.inbox["model"] - expected).abs().max() > 1e-3


@pytest.mark.parametrize("statistics", ["first", "both"])
def test_the_statistics_of_batchnorm_are_those_of_the_passes_named(statistics: str):
    client = doubled(images(1)["site-a"])
    training = Training(SGD(0.05), batch_size=8)
    net = build("bn-cnn", (1, 8, 8), 3, keyed("net")).double()
    other = copy.deepcopy(net)
    expected = literal(other, client, training, 0.5, TURN, statistics=statistics)
    state = played(
        f"fedsam(rho=0.5, statistics='{statistics}')", net, {"site-a": client}, training, 1
    )
    torch.testing.assert_close(state.inbox["model"], expected, rtol=1e-9, atol=1e-11)
    buffers = [b.flatten() for b in other.buffers() if b.is_floating_point()]
    torch.testing.assert_close(state.inbox["buffers"], torch.cat(buffers), rtol=1e-9, atol=1e-11)


def test_on_a_quadratic_the_gradient_is_that_of_a_point_rho_further_up():
    """∇(a/2 w²) at w + ρ sign(w) is a (w + ρ sign w)."""
    client, model = quadratics((3.0,), (0.0,), (1,))["site-a"], Model(Point())
    model.vector.fill_(-0.7)
    gradient = Perturbed(Backprop(SquaredError()), rho=0.2)
    with gradient.open(model, {}, client, {}, TURN) as step:
        value = step(*client.train.batch(slice(None)))
    assert float(model.gradient) == pytest.approx(3 * (-0.7 - 0.2))
    assert float(value) == pytest.approx(1.5 * 0.49)
    assert float(model.vector) == -0.7
    model.vector.zero_()
    with gradient.open(model, {}, client, {}, TURN) as step:
        step(*client.train.batch(slice(None)))
    assert float(model.gradient) == 0


def test_the_weights_come_back_bit_for_bit():
    client = federation(1)["site-a"]
    model = Model(build("mlp(widths=[8])", (6,), 3, keyed("net")))
    before = model.vector.clone()
    with Perturbed(Backprop(), rho=0.7).open(model, {}, client, {}, TURN) as step:
        for index in client.train.y.new_tensor(range(24)).split(8):
            step(*client.train.batch(index))
    assert torch.equal(model.vector, before)


@pytest.mark.parametrize("base", ["fedavg", "fedprox", "scaffold", "fedcurv", "ppdg", "fedsgd"])
@pytest.mark.parametrize("fraction", [1.0, 3])
def test_a_radius_of_0_is_the_base_bit_for_bit(base: str, fraction):
    training = Training(SGD(0.05, momentum=0.9), batch_size=8)
    net = build("mlp(widths=[12], dropout=0.2)", (6,), 3, keyed("net"))
    zero = "fedsam(rho=0)" if base == "fedavg" else f"{base}+fedsam(rho=0)"
    a, b = (played(e, net, federation(5), training, 3, fraction) for e in (zero, base))
    assert torch.equal(a.inbox["model"], b.inbox["model"])
    c = played(f"{base}+fedsam", net, federation(5), training, 3, fraction)
    assert not torch.equal(a.inbox["model"], c.inbox["model"])


def test_scaffolds_correction_stays_outside_of_the_perturbation():
    """∇L(w + ε) + c, with ε along ∇L(w) alone."""
    client = federation(1)["site-a"]
    model = Model(build("mlp(widths=[8])", (6,), 3, keyed("net")))
    c = torch.randn(model.vector.shape, generator=keyed("control"))
    batch, grads = client.train.batch(slice(0, 8)), []
    for expression, control in (("scaffold+fedsam", c), ("fedsam", c)):
        gradient = method(expression).exchanges[0].local
        gradient = getattr(gradient, "inner", gradient).gradient
        with gradient.open(model, {CONTROL: control}, client, {}, TURN) as step:
            step(*batch)
        grads.append(model.gradient.clone())
    torch.testing.assert_close(grads[0], grads[1] + c, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "expression", ["fedsam+ga", "fedsam+ppdg", "fedsam+csac+ga", "ppdg+ga+fedsam"]
)
def test_server_rules_do_not_feel_it(expression: str):
    without = expression.replace("+fedsam", "").replace("fedsam", "fedavg")
    assert method(expression).exchanges[0].slots == method(without).exchanges[0].slots


def test_what_it_cannot_perturb_is_refused():
    with pytest.raises(UnseenError, match=r"fedsam\+fedsam cannot be: fedsam perturbs .* already"):
        method("fedsam+fedsam")
    with pytest.raises(UnseenError, match=r"csac\+fedsam cannot be: .*twice per batch"):
        method("csac+fedsam")
    with pytest.raises(UnseenError, match=r"\+fedsam cannot be: .*over examples"):
        method("fedilc-intra-geo(by='example')+fedsam")
    with pytest.raises(UnseenError, match=r"Perturbed\(rho\)"):
        method("fedsam(rho=-1.0)")
    with pytest.raises(UnseenError, match="did you mean 'first'"):
        method("fedsam(statistics='frist')")


def doubled(client):
    return Client(client.name, Split(client.train.x.double(), client.train.y), None, client.classes)


def played(expression, net, clients, training, rounds, fraction=1.0):
    model, names = Model(copy.deepcopy(net)), sorted(clients)
    chosen = method(expression, training)
    state = start(chosen, model, names, 0)
    return play(chosen, state, InProcess(model, clients), names, rounds, fraction)[0]
