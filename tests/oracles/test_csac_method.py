"""CSAC as a method: rounds, memories, blocks, refusals and its modifier."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import torch
from support.residual import nets
from support.sites import federation, images

from unseen import Model, Training, UnseenError, method, play, start
from unseen.core.client import Memories
from unseen.core.exchange import Exchange, Method
from unseen.core.losses import CrossEntropy, SquaredError
from unseen.core.metrics.evaluation import plain
from unseen.core.optimiser import SGD
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.base import slots
from unseen.methods.combine import Mean, SemanticDivergence
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.discrepancy import mmd
from unseen.methods.local.train import Train

NAMES = ["site-a", "site-b", "site-c"]
TURN = Turn(seed=0, round=3, rounds=9, exchange="train", client="site-a")
RECIPE = Training(SGD(0.05, momentum=0.5), batch_size=8)


# Attention, Eqs. 7-9


def clients_and_net(kind: str = "bn-cnn"):
    return images(3), nets(kind)[0]


def run(chosen: Method | str, rounds: int = 3, fraction: float | int = 1.0, recipe=RECIPE):
    clients, net = clients_and_net()
    chosen = method(chosen, recipe) if isinstance(chosen, str) else chosen
    model = Model(net)
    backend = InProcess(model, clients)
    state, outcomes = play(chosen, start(chosen, model, NAMES, 0), backend, NAMES, rounds, fraction)
    return state, outcomes, backend.memories


def by_hand(acquisition: int, smoothing: float, rule) -> Method:
    """CSAC without its alignment: two exchanges of plain training and a rule."""
    first = replace(RECIPE, epochs=acquisition)
    server = slots(rule, RECIPE.server)
    return Method(
        "by hand",
        (
            Exchange("acquire", Train(Backprop(CrossEntropy(smoothing)), first), server, (0, 0)),
            Exchange("train", Train(Backprop(CrossEntropy()), RECIPE), server, (1, 1)),
        ),
        (),
        plain,
    )


@pytest.mark.parametrize("off", ["lam=0", "strategy='none'"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_without_alignment_it_is_fusion_of_plain_training_bit_for_bit(off, smoothing):
    found, _, memories = run(f"csac({off}, acquisition=2, smoothing={smoothing})")
    expected, _, _ = run(by_hand(2, smoothing, SemanticDivergence()))
    assert torch.equal(found.inbox["model"], expected.inbox["model"])
    assert torch.equal(found.inbox["buffers"], expected.inbox["buffers"])
    assert not any("own.model" in memories.before(name, (9, 9)) for name in NAMES)


def test_the_logits_alone_need_no_maps_and_draw_the_model_to_the_acquired_one():
    plain, *_ = run("csac(acquisition=2, strategy='none')")
    drawn, _, memories = run("csac(acquisition=2, strategy='none', logits=True)")
    far, *_ = run("csac(acquisition=2, strategy='none', logits=True, lam=60)")
    models = [state.inbox["model"] for state in (plain, drawn, far)]
    assert not torch.equal(models[0], models[1]) and not torch.equal(models[1], models[2])
    assert all("own.model" in memories.before(name, (9, 9)) for name in NAMES)
    assert method("csac(strategy='none', logits=True)").asks == ("classes",)


def test_uniform_fusion_is_the_mean():
    found, _, _ = run("csac(lam=0, acquisition=2, favour='uniform')")
    expected, _, _ = run(by_hand(2, 0.1, Mean("uniform")))
    torch.testing.assert_close(found.inbox["model"], expected.inbox["model"], rtol=1e-5, atol=1e-6)


def test_the_first_round_is_acquisition_and_the_client_keeps_its_model():
    net = clients_and_net()[1]
    state, outcomes, memories = run("csac(acquisition=3)", rounds=1)
    assert [o.turn.exchange for o in outcomes] == ["acquire"]
    fused, x = [], Model(net).vector.clone()
    for name in NAMES:
        model = Model(clients_and_net()[1])
        local = Train(Backprop(CrossEntropy(0.1)), replace(RECIPE, epochs=3))
        local(model, {}, images(3)[name], {}, Turn(0, 0, 1, "acquire", name))
        memory = memories.before(name, (9, 9))
        assert torch.equal(memory["own.model"], model.vector)
        assert torch.equal(memory["own.buffers"], model.buffers)
        fused.append(model)
    rule, layout = SemanticDivergence(), fused[0].layout
    updates = torch.stack([model.vector - x for model in fused])
    expected, _, _ = rule(updates, {}, rule.init(3, len(x), layout))
    torch.testing.assert_close(state.inbox["model"], x + expected, rtol=1e-6, atol=1e-7)
    mean = sum(model.buffers for model in fused) / 3
    torch.testing.assert_close(state.inbox["buffers"], mean)


@pytest.mark.parametrize(
    ("switch", "first"),
    [
        ("smoothing=0.0", 0), ("favour='similar'", 0), ("distance='l1'", 0),
        ("distance='cosine'", 0), ("blocks='whole'", 0), ("acquisition=3", 0), ("lam=1.0", 1),
        ("strategy='same-layer'", 1), ("attention='none'", 1), ("metric='mse'", 1),
        ("estimator='biased'", 1), ("cross_entropy=False", 1), ("logits=True", 1),
        ("channels=4", 1), ("projections='fixed'", 1), ("attention_gradient=True", 1),
        ("layers=['conv2']", 1), ("local='latest'", 2),
    ],
)  # fmt: skip
def test_a_switch_changes_the_round_it_should_and_none_before(switch, first):
    base = "acquisition=2, " if "acquisition" not in switch else ""
    for rounds in range(1, first + 2):
        a, _, _ = run("csac(acquisition=2)", rounds)
        b, _, _ = run(f"csac({base}{switch})", rounds)
        assert torch.equal(a.inbox["model"], b.inbox["model"]) == (rounds <= first)


def test_acquired_stays_and_latest_moves():
    _, _, early = run("csac(acquisition=2)", 1)
    _, _, acquired = run("csac(acquisition=2)", 3)
    _, _, latest = run("csac(acquisition=2, local='latest')", 3)
    for name in NAMES:
        first = early.before(name, (9, 9))["own.model"]
        assert torch.equal(first, acquired.before(name, (9, 9))["own.model"])
        assert not torch.equal(first, latest.before(name, (9, 9))["own.model"])


@pytest.mark.parametrize("local", ["acquired", "latest"])
@pytest.mark.parametrize("fraction", [1.0, 2])
def test_a_resumed_run_is_the_uninterrupted_one(local, fraction):
    expression = f"csac(acquisition=2, local='{local}')"
    recipe = replace(RECIPE, keep_optimiser=True, buffers="local")
    whole, _, _ = run(expression, 5, fraction, recipe)
    half, _, memories = run(expression, 2, fraction, recipe)
    # `run` plays to its own end, so that r/R differs; the constant schedule does not read it.
    stream = io.BytesIO()
    torch.save({"inbox": dict(half.inbox), "rules": half.rules, "kept": memories.by_client}, stream)
    stream.seek(0)
    stored = torch.load(stream, weights_only=True)
    clients, net = clients_and_net()
    chosen = method(expression, recipe)
    state = replace(half, inbox=stored["inbox"], rules=stored["rules"])
    backend = InProcess(Model(net), clients, Memories(stored["kept"]))
    resumed, _ = play(chosen, state, backend, NAMES, 5, fraction)
    assert torch.equal(resumed.inbox["model"], whole.inbox["model"])
    assert torch.equal(resumed.inbox["buffers"], whole.inbox["buffers"])


def test_absent_clients_have_acquired_too_and_a_lost_memory_is_named():
    _, outcomes, _ = run("csac(acquisition=1)", 4, fraction=1)
    assert outcomes[0].names == tuple(NAMES)
    assert [len(o.names) for o in outcomes[1:]] == [1, 1, 1]
    clients, net = clients_and_net()
    chosen = method("csac(acquisition=1)", RECIPE)
    state, _, _ = run(chosen, 1)
    with pytest.raises(UnseenError, match="'site-a' has no own model"):
        play(chosen, state, InProcess(Model(net), clients), NAMES, 2)


def test_blocks_of_a_residual_net_by_name():
    clients, net = clients_and_net("residual")
    chosen = method("csac(acquisition=2, layers=['layer1', 'layer2', 'layer3'])", RECIPE)
    model = Model(net)
    state, _ = play(chosen, start(chosen, model, NAMES, 0), InProcess(model, clients), NAMES, 3)
    assert torch.isfinite(state.inbox["model"]).all()
    fewer = method("csac(acquisition=2, layers=['layer2', 'layer3'])", RECIPE)
    other = Model(nets("residual")[0])
    second, _ = play(fewer, start(fewer, other, NAMES, 0), InProcess(other, clients), NAMES, 3)
    assert not torch.equal(state.inbox["model"], second.inbox["model"])


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("csac(layers=['conv3'])", r"unknown layer 'conv3'.*Known: conv1, conv2, flatten, head"),
        ("csac(layers=['conv1', 'head'])", r"'head' gives a tensor of shape \[2, 3\]"),
    ],
)
def test_layers_that_cannot_be_are_refused_before_the_first_epoch(expression, message):
    clients, net = clients_and_net()
    chosen = method(expression, RECIPE)
    model = Model(net)
    before = model.vector.clone()
    backend = InProcess(model, clients)
    with pytest.raises(UnseenError, match=message):
        play(chosen, start(chosen, model, NAMES, 0), backend, NAMES, 1)
    assert torch.equal(backend.matrix[0], before)


@pytest.mark.parametrize(("batch_size", "drop_last"), [(19, False), (1, False), (1, True)])
def test_a_batch_of_one_is_refused_with_the_clients_name(batch_size, drop_last):
    recipe = replace(RECIPE, batch_size=batch_size, drop_last=drop_last)
    with pytest.raises(UnseenError, match=r"client 'site-a' has 20 .* a batch of one occurs"):
        run("csac(acquisition=1)", 1, recipe=recipe)
    if batch_size > 1:
        run("csac(acquisition=1)", 2, recipe=replace(recipe, drop_last=True))
    with pytest.raises(UnseenError, match="two examples or more"):
        mmd(torch.zeros(2, 1, 3), torch.zeros(2, 1, 3))


def test_tables_and_numbers_are_refused_with_the_reason():
    clients = federation(2)
    chosen = method("csac", RECIPE)
    model = Model(build("mlp(widths=[4])", (6,), 3, keyed("net")))
    names = sorted(clients)
    with pytest.raises(UnseenError, match="the model has none"):
        play(chosen, start(chosen, model, names, 0), InProcess(model, clients), names, 1)
    with pytest.raises(UnseenError, match="csac is for classes.*SquaredError"):
        method("csac", Training(loss=SquaredError()))
    assert chosen.asks == ("classes", "images", "convolutions")
    assert method("csac(lam=0)").asks == ("classes",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("lam=-1", r"csac\(lam\)"),
        ("strategy='cross'", "did you mean 'cross-layer'"),
        ("attention='spatial'", r"csac\(attention\)"),
        ("metric='l2'", r"csac\(metric\)"),
        ("estimator='u'", r"csac\(estimator\)"),
        ("projections='learned'", r"csac\(projections\)"),
        ("channels=0", r"csac\(channels\)"),
        ("local='own'", r"csac\(local\)"),
        ("acquisition=0", r"csac\(acquisition\)"),
        ("smoothing=2", "smoothing"),
        ("strategy='none', cross_entropy=False", "nothing to descend"),
        ("lam=0, cross_entropy=False", "nothing to descend"),
        ("strategy='none', lam=60", r"csac\(lam\) has an effect only with .*logits=True"),
        ("strategy='none', metric='mse'", r"csac\(metric\) has an effect only with"),
        ("strategy='none', local='latest'", r"csac\(local\) has an effect only with"),
        ("strategy='none', logits=True, channels=4", r"csac\(channels\) has an effect only with"),
        ("strategy='same-layer', attention='none'", r"only with strategy='cross-layer'"),
        ("lam=0, logits=True", r"csac\(logits\) has an effect only with lam > 0"),
        ("metric='mse', estimator='biased'", r"csac\(estimator\) .* only with metric='mmd'"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(UnseenError, match=message):
        method(f"csac({options})")


def test_the_modifier_is_the_aggregation_alone():
    one = 'fedavg(weights="uniform")'
    state, outcomes, memories = run(f"{one}+csac(blocks='module')", 1)
    assert [o.turn.exchange for o in outcomes] == ["train"]
    clients, net = clients_and_net()
    model = Model(net)
    x = model.vector.clone()
    rows = []
    for name in NAMES:
        trained = Model(clients_and_net()[1])
        Train(Backprop(), RECIPE)(trained, {}, clients[name], {}, Turn(0, 0, 1, "train", name))
        rows.append(trained.vector - x)
    rule = SemanticDivergence(blocks="module")
    expected, _, _ = rule(torch.stack(rows), {}, rule.init(3, len(x), model.layout))
    torch.testing.assert_close(state.inbox["model"], x + expected, rtol=1e-6, atol=1e-7)
    assert not any(memories.before(name, (9, 9)) for name in NAMES)


def test_fedavgs_weights_become_the_prior():
    a = run("fedavg+csac", 1)[1][0]
    b = run('fedavg(weights="uniform")+csac', 1)[1][0]
    n = a.table["examples"]
    product = b.weights["model"] * n
    torch.testing.assert_close(a.weights["model"], product / product.sum(1, keepdim=True))
