"""FedILC against loops over single examples, exact double backprop and the printed figures.

Where the package uses algebra, these tests differentiate one example at a time; where it sends two
messages, they differentiate the server's loss through all data at once. Everything is in float64.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from support import literal
from support.remote import Remote
from support.sites import images
from torch import nn

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.client import pooled
from unseen.core.losses import CrossEntropy, SquaredError
from unseen.core.optimiser import SGD, Adam
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.combine import WeightedGeometricMean
from unseen.methods.combine.geometric import LogSums, RunningLogSums
from unseen.methods.gradient import Backprop, Environments
from unseen.methods.gradient.fishr import HeadCovariance
from unseen.methods.gradient.proximal import Proximal
from unseen.methods.local.train import FullGradient, Measure
from unseen.studies.results import fairness

TURN = Turn(seed=0, round=0, rounds=1, exchange="train", client="site-a")
ZEROS = ("skip", "paper", "released")
STEP = Training(SGD(1.0), batch_size=8)


def data(count: int, classes: int = 3, n: int = 24, seed: int = 0) -> dict[str, Client]:
    """Clients in float64 whose inputs hold exact zeros, as blank pixels do."""
    clients = {}
    for k in range(count):
        generator = keyed(f"fedilc/{seed}/{k}")
        size = n + 5 * k
        y = torch.randint(classes, (size,), generator=generator)
        x = torch.randn(size, 6, generator=generator, dtype=torch.float64) + 0.4 * k
        x[:, 0] = 0.0
        x[torch.rand(size, 6, generator=generator) < 0.2] = 0.0
        meta = {"environment": torch.arange(size) % 3}
        name = f"site-{chr(ord('a') + k)}"
        clients[name] = Client(name, Split(x, y, meta), None, classes)
    return clients


def net(outputs: int = 3, widths: str = "[7, 5]") -> nn.Module:
    built = build(f"mlp(widths={widths})", (6,), outputs, keyed("fedilc")).double()
    with torch.no_grad():  # a dead unit, and zeros in its row of every gradient
        built.fc1.bias[0] = -100.0
    return built


def cross_entropy(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if z.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(z[:, 0], y.to(z.dtype))
    return F.cross_entropy(z, y)


def gradient(module: nn.Module, split: Split, index=slice(None), graph=False, parameters=None):
    """∇ of the mean loss over the given rows as one vector, by plain autograd."""
    parameters = parameters if parameters is not None else list(module.parameters())
    loss = cross_entropy(module(split.x[index]), split.y[index])
    found = torch.autograd.grad(loss, parameters, create_graph=graph)
    return torch.cat([g.flatten() for g in found])


def covariance(module: nn.Module, split: Split, full: bool) -> torch.Tensor:
    """The head's variance or covariance from one autograd call per example, differentiable."""
    head = list(module.head.parameters())
    each = torch.stack(
        [gradient(module, split, slice(i, i + 1), True, head) for i in range(len(split))]
    )
    centred = each - each.mean(0)
    return centred.T @ centred / len(each) if full else centred.square().mean(0)


def local(part, module: nn.Module, client: Client) -> torch.Tensor:
    """The gradient that a full-gradient client sends, without its sign."""
    model = Model(copy.deepcopy(module))
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    reply, _ = FullGradient(part)(model, inbox, client, {}, TURN)
    return -reply.rows["model"]


def one_round(expression: str, module: nn.Module, clients, training: Training = STEP, rounds=1):
    model = Model(copy.deepcopy(module))
    chosen, names = method(expression, training), sorted(clients)
    state = start(chosen, model, names, 0)
    return play(chosen, state, InProcess(model, clients), names, rounds)


def moved(expression: str, module: nn.Module, clients) -> torch.Tensor:
    """The gradient by which a server with SGD of rate 1 stepped."""
    before = torch.cat([p.detach().flatten() for p in module.parameters()])
    return before - one_round(expression, module, clients)[0].inbox["model"]


class Halves(nn.Module):
    """[N, 2, 3] -> [2N, 3]."""

    def forward(self, x):
        return x.flatten(0, 1)


# --- the head's variance --------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_the_heads_covariance_is_that_of_single_examples(kind, outputs):
    client = data(1, classes=max(outputs, 2))["site-a"]
    module = net(outputs)
    model = Model(copy.deepcopy(module))
    reply, _ = Measure("variance", HeadCovariance(CrossEntropy(), kind))(
        model, {}, client, {}, TURN
    )
    expected = covariance(module, client.train, kind == "full").detach()
    layers = 5 * outputs
    if kind == "diagonal":  # ours lies row by row with the bias last, autograd's bias at the end
        found = reply.rows["variance"].view(outputs, 6)
        found = torch.cat([found[:, :5].flatten(), found[:, 5]])
    else:
        order = torch.arange(6 * outputs).view(outputs, 6)
        order = torch.cat([order[:, :5].flatten(), order[:, 5]])
        found = reply.rows["variance"].view(6 * outputs, 6 * outputs)[order][:, order]
    assert expected[:layers].abs().max() > 1e-4
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def test_the_variance_of_a_regression_head_is_that_of_single_examples():
    """g_n = 2 (w x_n + b − y_n) (x_n, 1), variances as numpy's."""
    generator = keyed("regression")
    x = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(30, generator=generator, dtype=torch.float64)
    module = build("logistic", (4,), 1, keyed("net")).double()
    client = Client("site-a", Split(x, y), None, None)
    reply, _ = Measure("variance", HeadCovariance(SquaredError()))(
        Model(module), {}, client, {}, TURN
    )
    residual = 2 * (module(x)[:, 0] - y).detach()[:, None]
    each = residual * torch.cat([x, torch.ones(30, 1, dtype=torch.float64)], 1)
    expected = torch.from_numpy(each.numpy().var(axis=0))
    torch.testing.assert_close(reply.rows["variance"], expected, rtol=1e-12, atol=1e-15)


def test_a_full_covariance_of_a_large_head_is_refused():
    big = net(widths="[7, 400]")
    with pytest.raises(UnseenError, match=r"1,203 weights and biases.*covariance='diagonal'"):
        one_round('fishr(covariance="full")', big, data(2))
    one_round("fishr", big, data(2))


def test_the_head_may_be_named_and_must_be_linear():
    clients, module = data(2), net()
    by_name = one_round('fishr(head="head")', module, clients)[0].inbox
    assert torch.equal(by_name["model"], one_round("fishr", module, clients)[0].inbox["model"])
    assert one_round('fishr(head="fc2")', module, clients)[0].inbox["variance"].shape == (5 * 8,)
    with pytest.raises(UnseenError, match=r"found 'relu1'.*fc1, fc2, head"):
        one_round('fishr(head="relu1")', module, clients)


# --- the two exchanges against the server's loss ----------------------------------------------


def pooled_fishr(module: nn.Module, clients, scale: str, full: bool) -> torch.Tensor:
    """∇ of Algorithm 1's Fishr loss through everybody's data, C̄ differentiated too."""
    each = [covariance(module, client.train, full) for client in clients.values()]
    mean = sum(each) / len(each)
    loss = sum((c - mean).square().sum() for c in each)
    loss = loss / len(each) if scale == "paper" else loss
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("scale", ["paper", "released"])
@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_fishr_between_clients_is_exact_double_backprop_through_pooled_data(count, scale, kind):
    clients, module, lam = data(count), net(), 15.0
    penalty = lam * pooled_fishr(module, clients, scale, kind == "full")
    mean = sum(gradient(module, c.train) for c in clients.values()) / count
    found = moved(f"fishr(lam={lam}, scale='{scale}', covariance='{kind}')", module, clients)
    assert penalty.norm() > 0.02 * mean.norm()
    assert (penalty[: module.fc1.weight.numel()] != 0).any()  # it reaches the first layer
    torch.testing.assert_close(found - mean, penalty, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("outputs", [1, 3])
def test_inter_geo_adds_fishr_to_the_geometric_mean_of_the_gradients(outputs):
    clients, module = data(4, classes=max(outputs, 2)), net(outputs)
    rows = torch.stack([gradient(module, c.train) for c in clients.values()]).numpy()
    mean = torch.tensor([literal.geometric(column, [0.25] * 4) for column in rows.T])
    expected = mean + 7.0 * pooled_fishr(module, clients, "paper", full=False)
    found = moved("fedilc-inter(lam=7.0)", module, clients)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)
    added = moved("geometric+fishr(lam=7.0)", module, clients)
    assert torch.equal(found, added)


def test_the_penalty_is_averaged_uniformly_whatever_the_weights_of_the_gradients():
    clients, module = data(3), net()
    sizes = torch.tensor([float(len(c.train)) for c in clients.values()], dtype=torch.float64)
    mean = sum(
        w * gradient(module, c.train)
        for w, c in zip(sizes / sizes.sum(), clients.values(), strict=True)
    )
    expected = mean + 3.0 * pooled_fishr(module, clients, "paper", full=False)
    found = moved("fedsgd(weights='examples')+fishr(lam=3.0)", module, clients)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


def test_the_servers_adam_steps_once_on_the_sum():
    """Gradients and penalty meet before the optimiser, with the weight decay coupled."""
    clients, module = data(3), net()
    adam = Training(Adam(0.01, weight_decay=0.1))
    plain = copy.deepcopy(module)
    optimiser = torch.optim.Adam(plain.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(3):
        total = sum(gradient(plain, c.train) for c in clients.values()) / 3
        total = total + 5.0 * pooled_fishr(plain, clients, "released", full=False)
        sizes = [p.numel() for p in plain.parameters()]
        for p, g in zip(plain.parameters(), total.split(sizes), strict=True):
            p.grad = g.view_as(p)
        optimiser.step()
    state, _ = one_round("fishr(lam=5.0, scale='released')", module, clients, adam, rounds=3)
    expected = torch.cat([p.detach().flatten() for p in plain.parameters()])
    torch.testing.assert_close(state.inbox["model"], expected, rtol=1e-7, atol=1e-9)


def test_warm_up_is_the_base_method_and_then_it_is_not():
    clients, module = data(3), net()
    for rounds, equal in ((1, True), (2, True), (3, False)):
        warm, outcomes = one_round("fishr(lam=15.0, warmup=2)", module, clients, rounds=rounds)
        base, _ = one_round("fedsgd", module, clients, rounds=rounds)
        assert torch.equal(warm.inbox["model"], base.inbox["model"]) == equal
    assert [o.turn.round for o in outcomes if o.turn.exchange == "variance"] == [2]
    assert [
        float(o.table["penalty"].sum()) > 0 for o in outcomes if o.turn.exchange == "train"
    ] == [
        False,
        False,
        True,
    ]


def test_the_statistics_of_batchnorm_are_those_of_the_gradient_alone():
    clients, module = images(3), build("bn-cnn", (1, 8, 8), 3, keyed("net"))
    with_fishr, _ = one_round("fishr(lam=15.0)", module, clients)
    base, _ = one_round("fedsgd", module, clients)
    assert torch.equal(with_fishr.inbox["buffers"], base.inbox["buffers"])
    assert not torch.equal(with_fishr.inbox["model"], base.inbox["model"])


def test_dropout_draws_alike_in_both_exchanges_so_that_the_deviations_cancel():
    """With one client C̄ = C: the penalty and its gradient are 0 only if both saw one network."""
    module = build("mlp(widths=[20], dropout=0.5)", (6,), 3, keyed("net")).double()
    _, outcomes = one_round("fishr(lam=1000.0)", module, data(1), rounds=2)
    assert [float(o.table["penalty"]) for o in outcomes if o.turn.exchange == "train"] == [0.0, 0.0]


# --- environments inside a client -------------------------------------------------------------


def looped(module: nn.Module, split: Split, parts, zeros="skip", agreement=0.0) -> torch.Tensor:
    """The weighted geometric mean over environments, one autograd call and one coordinate each."""
    rows = torch.stack([gradient(module, split, index) for index in parts])
    share = [1 / len(rows)] * len(rows)
    return torch.tensor(
        [literal.geometric(column, share, zeros, agreement) for column in rows.numpy().T]
    )


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("zeros", ZEROS)
def test_examples_by_algebra_are_a_loop_over_examples(zeros, outputs):
    """Biases, inputs of both signs, blank inputs and dead units, under all three rules."""
    client, module = data(1, classes=max(outputs, 2))["site-a"], net(outputs)
    part = Environments(Backprop(), "example", zeros=zeros)
    singles = [slice(i, i + 1) for i in range(len(client.train))]
    expected = looped(module, client.train, singles, zeros)
    found = local(part, module, client)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-16)
    if zeros == "paper":
        assert (expected == 0).sum() > (expected != 0).sum() > 0  # ReLUs leave few coordinates


def test_examples_in_chunks_are_the_algebra_and_work_for_convolutions():
    client, module = data(1)["site-a"], net()
    for zeros in ZEROS:
        algebra = local(Environments(Backprop(), "example", zeros=zeros), module, client)
        chunks = local(Environments(Backprop(), "example", zeros=zeros, chunk=5), module, client)
        torch.testing.assert_close(chunks, algebra, rtol=1e-9, atol=1e-15)
    generator = keyed("images")
    split = Split(
        torch.rand(11, 1, 8, 8, generator=generator, dtype=torch.float64),
        torch.randint(3, (11,), generator=generator),
    )
    cnn = build("mnist-cnn(channels=[2, 3], hidden=4)", (1, 8, 8), 3, keyed("net")).double()
    client = Client("site-a", split, None, 3)
    found = local(Environments(Backprop(), "example", chunk=4), cnn, client)
    expected = looped(cnn, split, [slice(i, i + 1) for i in range(11)])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-15)
    with pytest.raises(UnseenError, match=r"'weight' of the layer 'conv1' \(Conv2d\).*chunk=16"):
        local(Environments(Backprop(), "example"), cnn, client)
    bn = build("bn-cnn", (1, 8, 8), 3, keyed("net")).double()
    with pytest.raises(UnseenError, match=r"'norm1' \(BatchNorm2d\).*batch"):
        local(Environments(Backprop(), "example", chunk=4), bn, client)


def test_many_examples_are_summed_in_pieces_without_losing_any():
    """More than one piece of the float32 sums, against the float64 formula on δ aᵀ itself."""
    from unseen.methods.gradient.per_example import outer_log_sums

    generator = keyed("pieces")
    delta = torch.randn(3000, 4, generator=generator)
    a = torch.randn(3000, 6, generator=generator).relu()
    rows = (delta.double()[:, :, None] * a.double()[:, None, :]).flatten(1)
    expected = WeightedGeometricMean()(rows, {}, {"prior": {}})[0]
    found = WeightedGeometricMean().mean(outer_log_sums(delta, a).sums())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("agreement", [0.0, 0.5])
def test_batches_one_after_the_other_are_the_rule_on_their_stack(zeros, agreement):
    client, module = data(1, n=27)["site-a"], net()
    part = Environments(Backprop(), "batch", "geometric", zeros, agreement, batch_size=8)
    order = torch.randperm(27, generator=TURN.generator("environments"))
    parts = order.split(8)
    assert [len(p) for p in parts] == [8, 8, 8, 3]  # the short one weighs as much as the others
    rows = torch.stack([gradient(module, client.train, index) for index in parts])
    stacked = WeightedGeometricMean(zeros, agreement)(rows, {}, {"prior": {}})[0]
    found = local(part, module, client)
    torch.testing.assert_close(found, stacked, rtol=1e-10, atol=1e-16)
    torch.testing.assert_close(
        found, looped(module, client.train, parts, zeros, agreement), rtol=1e-10, atol=1e-16
    )


def test_named_environments_are_those_of_the_data():
    client, module = data(1)["site-a"], net()
    codes = client.train.meta["environment"]
    parts = [codes == c for c in range(3)]
    for rule in ("geometric", "mean"):
        found = local(Environments(Backprop(), "environment", rule), module, client)
        rows = torch.stack([gradient(module, client.train, p) for p in parts])
        expected = looped(module, client.train, parts) if rule == "geometric" else rows.mean(0)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-16)
    nameless = Client("site-b", Split(client.train.x, client.train.y), None, 3)
    with pytest.raises(UnseenError, match=r"'site-b' names no environments.*by='batch'"):
        local(Environments(Backprop(), "environment"), module, nameless)


def test_intra_arith_with_equal_batches_is_fishr():
    clients, module = {"site-a": data(1, n=32)["site-a"], "site-b": data(2, n=27)["site-b"]}, net()
    for rounds in (1, 4):
        arith = one_round("fedilc-intra-arith(lam=15.0)", module, clients, rounds=rounds)[0]
        whole = one_round("fishr(lam=15.0)", module, clients, rounds=rounds)[0]
        torch.testing.assert_close(arith.inbox["model"], whole.inbox["model"], rtol=0, atol=1e-13)
    ragged = data(2)  # 24 = 3 · 8 but 29 = 3 · 8 + 5
    arith = moved("fedilc-intra-arith(lam=0)", module, ragged)
    assert (arith - moved("fishr(lam=0)", module, ragged)).abs().max() > 1e-6


def test_the_mean_over_examples_is_the_gradient_bit_for_bit():
    client, module = data(1)["site-a"], net()
    plain = local(Backprop(), module, client)
    assert torch.equal(local(Environments(Backprop(), "example", "mean"), module, client), plain)
    torch.testing.assert_close(plain, gradient(module, client.train), rtol=1e-12, atol=1e-16)


def test_intra_geo_averages_the_clients_geometric_means_and_adds_fishr():
    clients, module = data(3), net()
    means = [
        looped(module, c.train, [slice(i, i + 1) for i in range(len(c.train))])
        for c in clients.values()
    ]
    expected = sum(means) / 3 + 15.0 * pooled_fishr(module, clients, "paper", full=False)
    found = moved("fedilc-intra-geo(by='example', lam=15.0)", module, clients)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


def test_the_released_zero_rule_is_about_gradients_although_updates_are_sent():
    """A zero counts among the negative gradients, that is among the positive updates."""
    g = torch.tensor([[1e-3, -1e-3], [2e-3, -2e-3], [0.0, 0.0]], dtype=torch.float64)
    updates = WeightedGeometricMean("released", of="updates")(-g, {}, {"prior": {}})[0]
    expected = [literal.geometric(column, [1 / 3] * 3, "released") for column in g.numpy().T]
    torch.testing.assert_close(-updates, torch.tensor(expected), rtol=1e-12, atol=0)


def test_full_agreement_holds_for_any_number_of_clients():
    """Twelve times 1/12 in float32 falls short of 1; twelve like signs agree all the same."""
    for K in range(1, 80):
        vector = WeightedGeometricMean(agreement=1.0)(torch.ones(K, 1), {}, {"prior": {}})[0]
        torch.testing.assert_close(vector, torch.ones(1))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 4), nn.Flatten()), r"\[24, 2, 3\]"),
        (nn.Sequential(nn.Unflatten(1, (2, 3)), Halves(), nn.Linear(3, 4)), r"\[48, 3\]"),
    ],
    ids=["shared-over-positions", "two-rows-per-example"],
)
def test_layers_that_meet_an_example_twice_are_refused(layers, message):
    client = data(1)["site-a"]
    with pytest.raises(UnseenError, match=f"has inputs of shape {message}"):
        local(Environments(Backprop(), "example"), layers.double(), client)
    with pytest.raises(UnseenError, match=f"has inputs of shape {message}"):
        one_round("fishr", layers, {"site-a": client})


def test_shared_and_repeated_layers_are_refused():
    client = data(1)["site-a"]
    layer = nn.Linear(6, 6)
    tied = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)).double()
    tied[1].weight = tied[0].weight
    with pytest.raises(UnseenError, match=r"'weight' of the layer '1' \(Linear\) is shared"):
        local(Environments(Backprop(), "example"), tied, client)
    twice = nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(6, 3)).double()
    with pytest.raises(UnseenError, match="'0' is used twice"):
        local(Environments(Backprop(), "example"), twice, client)


def test_only_the_losss_own_gradient_can_be_taken_by_example():
    with pytest.raises(UnseenError, match="Put Proximal around the environments"):
        Environments(Proximal(Backprop()), "example")


def test_sums_one_at_a_time_are_the_sums_of_all_at_once():
    rows = torch.randn(9, 70_000, generator=keyed("rows"))
    rows[rows.abs() < 0.3] = 0.0
    running = RunningLogSums(70_000, rows.device)
    for row in rows:
        running.add(row)
    sums, every = running.sums(), LogSums.of(rows.double(), torch.full((9,), 1 / 9).double())
    for name in ("weights", "logs", "zero"):
        found, expected = getattr(sums, name), getattr(every, name)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(sums.zero == 0, (rows != 0).all(0))


# --- what cannot be, fairness, sites ----------------------------------------------------------


def test_fishr_is_refused_where_it_cannot_be():
    with pytest.raises(UnseenError, match=r"fedavg\+fishr cannot be.*fedsgd\+fishr"):
        method("fedavg+fishr")
    with pytest.raises(UnseenError, match=r"fishr\+fishr cannot be: fishr has a penalty between"):
        method("fishr+fishr")
    with pytest.raises(UnseenError, match=r"fishr\(lam\).*\[0, inf\)"):
        method("fishr(lam=-1)")
    with pytest.raises(UnseenError, match="did you mean 'released'"):
        method("fishr(scale='release')")


@pytest.mark.parametrize(
    "expression",
    ["fishr", "fedilc-inter", "fedilc-intra-arith", "fedilc-intra-geo(by='example')"],
)
def test_sites_behind_bytes_give_the_same_bits(expression):
    clients = data(3)
    module, chosen, names = net(), method(expression, STEP), sorted(clients)
    state, _ = one_round(expression, module, clients, rounds=3)
    begun = start(chosen, Model(copy.deepcopy(module)), names, 0)
    other, _ = play(chosen, begun, Remote(module, clients), names, 3)
    assert all(torch.equal(state.inbox[n], other.inbox[n]) for n in state.inbox)


#: FedILC's Table 5, means over five seeds: accuracy of three clients' three sub-environments.
TABLE_5 = {
    "FedSGD": (0.443, 0.434, 0.428, 0.420, 0.440, 0.411, 0.413, 0.367, 0.371),
    "FedCurv": (0.435, 0.448, 0.424, 0.425, 0.437, 0.409, 0.431, 0.379, 0.380),
    "Fishr+Inter-Geo": (0.446, 0.438, 0.442, 0.435, 0.443, 0.404, 0.427, 0.392, 0.381),
    "Fishr+Intra-Geo": (0.456, 0.451, 0.444, 0.441, 0.438, 0.419, 0.443, 0.388, 0.396),
}


def test_entropy_of_table_5_is_near_table_3():
    """Table 3 prints means over seeds of 10 H and their deviations; here of the mean accuracies."""
    printed = {
        "FedSGD": (21.948, 0.007),
        "FedCurv": (21.955, 0.003),
        "Fishr+Inter-Geo": (21.953, 0.007),
        "Fishr+Intra-Geo": (21.956, 0.003),
    }
    for row, (value, deviation) in printed.items():
        assert abs(10 * fairness.entropy(TABLE_5[row]) - value) < 2 * deviation
    found = [round(10 * fairness.entropy(row), 3) for row in TABLE_5.values()]
    assert found == [21.952, 21.957, 21.957, 21.958]
    assert 10 * math.log(9) == pytest.approx(21.972, abs=5e-4)


def test_fairness_is_scipys_entropy_and_numpys_population_variance():
    import numpy as np
    from scipy.stats import entropy

    for row in TABLE_5.values():
        assert fairness.variance(row) == pytest.approx(np.var(row), rel=1e-12)
        assert fairness.entropy(row) == pytest.approx(entropy(row), rel=1e-12)
        uniform = np.full(9, 1 / 9)
        assert fairness.divergence(row) == pytest.approx(entropy(row, uniform), rel=1e-9)
    assert fairness.divergence([0.7] * 9) == pytest.approx(0, abs=1e-15)
    assert fairness.entropy([1.0, 0.0]) == 0.0
    with pytest.raises(UnseenError, match=r"in \[0, 1\]"):
        fairness.variance([0.5, 50.0])
    with pytest.raises(UnseenError, match="all 0"):
        fairness.entropy([0.0, 0.0])


def test_fedilcs_net_for_color_mnist_has_one_logit():
    """392-390-390-1: 393 · 390 + 391 · 390 + 391 weights and biases."""
    net = build("mlp(widths=[390, 390], init='xavier', logits=1)", (2, 14, 14), 2, keyed("net"))
    assert Model(net).layout.size == 393 * 390 + 391 * 390 + 391
    assert net(torch.zeros(4, 2, 14, 14)).shape == (4, 1)


def test_pooled_data_keep_the_names_of_their_environments():
    everyone = pooled(data(2))
    assert torch.equal(everyone.train.meta["environment"][:24], torch.arange(24) % 3)
