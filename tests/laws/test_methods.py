"""Laws that every method obeys: a new entry of METHODS or MODIFIERS is held to all of them."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from support.remote import Remote
from support.sites import federation, images

from unseen import Model, Training, UnseenError, method, play, start
from unseen.core.added_rows import Added
from unseen.core.client import Client, Memories, Split
from unseen.core.exchange import Blueprint
from unseen.core.optimiser import SGD, Adam
from unseen.core.turn import Turn, keyed
from unseen.data import load
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods import METHODS, MODIFIERS
from unseen.methods.base import model_rule, trained
from unseen.methods.combine import Mean
from unseen.studies.execution.runtime import adapted
from unseen.studies.results import checkpoint

SETTINGS = {
    "plain": Training(SGD(0.05), batch_size=8),
    "momentum-kept": Training(
        SGD(0.01, momentum=0.9, weight_decay=1e-3), epochs=2, batch_size=8, keep_optimiser=True
    ),
    "adam-steps": Training(Adam(0.01), epochs=None, steps=5, batch_size=8),
}


#: Of the pairs, each law takes one of these diagonals and leaves the others to `slow`: a method
#: meets every sixteenth modifier there, a modifier every sixteenth method, each law other pairs.
DIAGONALS = 16


def compositions() -> dict[str, int]:
    """Every method, and every method with every modifier that it admits, with its diagonal."""
    places = dict.fromkeys(METHODS, -1)
    for i, name in enumerate(METHODS):
        for j, modifier in enumerate(MODIFIERS):
            try:
                method(f"{name}+{modifier}")
            except UnseenError:
                continue
            places[f"{name}+{modifier}"] = (i + j) % DIAGONALS
    return places


#: `make quick`: methods without modifiers, on one net each.
QUICK = bool(os.environ.get("UNSEEN_QUICK"))
COMPOSITIONS = dict.fromkeys(METHODS, -1) if QUICK else compositions()


def of(law: int) -> list[Any]:
    """Every composition; those off the law's own diagonal are slow."""
    usual = (-1, law % DIAGONALS)
    return [
        pytest.param(name, id=name, marks=() if diagonal in usual else pytest.mark.slow)
        for name, diagonal in COMPOSITIONS.items()
    ]


#: What stands for methods that fit many trees by default.
SMALL = {
    "bag": "bag(of='boost(trees=2)')",
    "stack": "stack(members=['glm', 'boost(trees=1)', 'fedavg'], groups=2)",
    "trees": "trees(count=5)",
    "portfolio": "portfolio(members=['fedavg', 'glm', 'boost(trees=1)'], ensemble=2, groups=2)",
}


def fitting(expression: str) -> list[str]:
    """The kinds of net and data that are what the method asks for."""
    kinds = ["cnn"] if "images" in method(expression).asks else ["mlp", "cnn"]
    return kinds[:1] if QUICK else kinds


def network(kind: str, m: int = 0):
    """A net with Dropout, or with convolutions and BatchNorm, and its clients."""
    first = keyed(f"net/{m}" if m else "net")
    if kind == "mlp":
        return build("mlp(widths=[12], dropout=0.2)", (6,), 3, first), federation(5)
    if kind == "digits":
        return build("bn-cnn", (1, 8, 8), 10, first), digits()
    net = build("bn-cnn", (1, 8, 8), 3, first)
    return net.to(memory_format=torch.channels_last), images(3)


@cache
def digits(n: int = 40):
    """Clients of real digits, one per angle."""
    return {
        domain.name: Client(domain.name, Split(domain.x[:n], domain.y[:n]), None, 10)
        for domain in load("rotated-digits", None).domains[:5]
    }


def ready(expression, kind, training):
    """The method, the net as the method adapts it, and the training roster."""
    net, clients = network(kind)
    name, *more = expression.split("+")
    chosen = method("+".join([SMALL.get(name, name), *more]), training)
    roster = chosen.gather(clients) if chosen.gather else clients
    one = next(iter(clients.values()))
    shape = tuple(one.split("train").x.shape[1:])
    plan = Blueprint(
        net, shape, one.classes, lambda m: network(kind, m)[0], one.classes, 3, len(roster)
    )
    changed = adapted(chosen, plan)
    whole = chosen.completed(Model(copy.deepcopy(changed), shape=shape), plan)
    return whole, changed, roster


def bound(net, clients):
    """A copy of the net that the engine may bind."""
    shape = next(iter(clients.values())).split("train").x.shape[1:]
    return Model(copy.deepcopy(net), shape=tuple(shape))


def played(expression, kind="mlp", training=None, rounds=3, fraction=1.0, backend=None, seed=0):
    chosen, net, roster = ready(expression, kind, training or SETTINGS["plain"])
    model = bound(net, roster)
    state = start(chosen, model, sorted(roster), seed)
    engine = backend(net, roster) if backend else InProcess(model, roster)
    return play(chosen, state, engine, sorted(roster), rounds, fraction)


def same(a, b) -> bool:
    """Two outcomes of `play` agree in every bit of the server's state and of the tables."""
    (state, outcomes), (other, others) = a, b
    return (
        all(torch.equal(state.inbox[n], other.inbox[n]) for n in state.inbox)
        and len(outcomes) == len(others)
        and all(
            o.names == p.names
            and all(torch.equal(o.table[n], p.table[n]) for n in o.table)
            and all(torch.equal(o.weights[n], p.weights[n]) for n in o.weights)
            for o, p in zip(outcomes, others, strict=True)
        )
    )


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        pytest.param(*one.values, kind, id=f"{one.id}-{kind}", marks=one.marks)
        for one in of(0)
        for kind in ("digits", *fitting(one.id))
        if kind != "cnn"
    ],
)
def test_every_composition_trains_to_finite_numbers(expression: str, kind: str):
    state, outcomes = played(expression, kind, rounds=2)
    assert state.round == 2
    assert all(torch.isfinite(value).all() for value in state.inbox.values())
    assert any((o.table["loss"] > 0).all() for o in outcomes if "loss" in o.table)
    before = played(expression, kind, rounds=0)[0].inbox["model"]
    assert not torch.equal(before, state.inbox["model"])


@pytest.mark.parametrize("training", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("fraction", [1.0, 3])
@pytest.mark.parametrize(
    "expression",
    [
        "fedavg", "fedprox+ga", "ppdg+ga", "fedsgd", "agrrand", "fedilc-inter", "fedcurv", "glm",
        "boost(trees=1)", "bag(of='glm')", "fedavg+shift+intercepts", "fedavg+mixup+anchor+tail",
        "ppdg+ensemble(members=2)", "stack(members=['glm', 'fedavg'], groups=2)",
    ],
)  # fmt: skip
def test_sites_behind_bytes_give_the_same_bits(expression, fraction, training):
    local = played(expression, training=training, fraction=fraction)
    assert same(local, played(expression, training=training, fraction=fraction, backend=Remote))


@pytest.mark.parametrize("policy", ["average", "local"])
def test_sites_behind_bytes_give_the_same_bits_of_images(policy):
    training = Training(SGD(0.05), batch_size=8, buffers=policy)
    for expression in ("am(across=True)", "harmofl+ga", "feddg", "rsc+am", "fedccrl(refresh=2)"):
        local = played(expression, "cnn", training, fraction=2)
        assert same(local, played(expression, "cnn", training, fraction=2, backend=Remote))


@pytest.mark.parametrize("policy", ["average", "local"])
def test_sites_behind_bytes_give_the_same_bits_with_batchnorm(policy):
    training = Training(SGD(0.05), batch_size=8, buffers=policy)
    for expression in ("fedavg", "ppdg+ga", "geometric", "csac", "csac(local='latest')+ga"):
        local = played(expression, "cnn", training)
        assert same(local, played(expression, "cnn", training, backend=Remote))


def sent(row: torch.Tensor | Added) -> torch.Tensor:
    """A copy of a row, or of the sum that it is in."""
    return (row.total.vector if isinstance(row, Added) else row).clone()


@pytest.mark.parametrize("expression", of(1))
def test_the_same_inbox_twice_gives_the_same_reply_twice(expression: str):
    chosen, net, roster = ready(expression, "cnn", SETTINGS["momentum-kept"])
    model = bound(net, roster)
    backend = InProcess(model, roster)
    names = sorted(roster)
    state, _ = play(chosen, start(chosen, model, names, 0), backend, names, 2)
    for order, exchange in enumerate(chosen.exchanges):
        turn = Turn(0, 2, 4, exchange.name, order=order)
        answers, kept = [], []
        for _ in range(2):
            replies = backend.map(exchange, state.inbox, names, turn)
            answers.append([{n: sent(r) for n, r in reply.rows.items()} for reply in replies])
            kept.append(copy.deepcopy(backend.memories.by_client))
        for first, second in zip(*answers, strict=True):
            assert first.keys() == second.keys()
            assert all(torch.equal(first[n], second[n]) for n in first)
        assert _same_memories(*kept)


@pytest.mark.parametrize("expression", of(2))
def test_rows_poisoned_between_rounds_change_nothing(expression: str):
    class Poisoned(InProcess):
        def map(self, exchange, inbox, clients, turn):
            self.matrix.fill_(torch.nan)
            self.buffers.fill_(torch.nan)
            self.model.gradient.fill_(torch.nan)
            return super().map(exchange, inbox, clients, turn)

    clean = played(expression, "cnn", SETTINGS["momentum-kept"], rounds=2)
    poisoned = played(
        expression,
        "cnn",
        SETTINGS["momentum-kept"],
        rounds=2,
        backend=lambda net, roster: Poisoned(bound(net, roster), roster),
    )
    assert same(clean, poisoned)


@pytest.mark.parametrize("expression", of(3))
def test_a_run_resumed_from_disk_gives_the_same_bits(expression: str, tmp_path):
    training = SETTINGS["momentum-kept"]
    kind = fitting(expression)[0]
    whole = played(expression, kind, training, rounds=4, fraction=0.6)
    chosen, net, roster = ready(expression, kind, training)
    names = sorted(roster)
    model = bound(net, roster)
    backend = InProcess(model, roster)
    state, early = start(chosen, model, names, 0), []
    for _ in range(2):
        from unseen.core.round import play_round

        state, outcomes = play_round(chosen, state, backend, names, 4, 0.6)
        early += outcomes
    checkpoint.save(tmp_path, state, backend.memories)
    # The sites go on while the server dies: their memories may be a round ahead.
    play_round(chosen, state, backend, names, 4, 0.6)
    del backend, state
    state, memories, _ = checkpoint.load(tmp_path, "cpu")
    later = play(chosen, state, InProcess(bound(net, roster), roster, memories), names, 4, 0.6)
    assert same(whole, (later[0], early + later[1]))


def test_memories_a_round_ahead_of_the_server_lead_to_the_same_bits():
    net, clients = network("mlp")
    chosen, names = method("fedprox+ga", SETTINGS["momentum-kept"]), sorted(clients)
    model = Model(net)
    backend = InProcess(model, clients)
    begun = start(chosen, model, names, 0)
    two, _ = play(chosen, begun, backend, names, 2)
    memories = Memories(dict(backend.memories.by_client))
    three = play(chosen, replace(two), backend, names, 3)
    again = play(chosen, two, InProcess(model, clients, memories), names, 3)
    torn = play(chosen, two, backend, names, 3)
    assert same(three, again)
    assert same(three, torn)


ZERO = [
    ("fedprox(mu=0)", "fedavg"),
    ("fedavg+fedprox(mu=0)", "fedavg"),
    ("ppdg+fedprox(mu=0)", "ppdg"),
    ("ppdg(lam=0, unbounded=True)", 'fedavg(weights="uniform")'),
    ("fedavg+ppdg(lam=0, unbounded=True)", "fedavg"),
    ("fedavg+ga(step=0)", 'fedavg(weights="uniform")'),
    ("ppdg+ga(step=0)", "ppdg"),
    ("pcgrad+ga(step=0)", "pcgrad"),
    ("fedprox+ga(step=0)", 'fedavg(weights="uniform")+fedprox'),
    ("fishr(lam=0)", "fedsgd"),
    ("fedilc-inter(lam=0)", "geometric"),
    ("fishr(warmup=9)", "fedsgd"),
    ("fedcurv(lam=0)", "fedavg"),
    ("fediir(gamma=0)", "fedavg"),
    ("gperxan(reg=0)", "fedavg"),  # a net without BatchNorm
    ("fedomg(c=0, eta=1)", 'fedavg(weights="uniform")'),
    ("fedavg+fedomg(c=0, eta=1)", "fedavg"),
    ("andmask(agreement=0)", 'fedavg(weights="uniform")'),
    ("fedavg+andmask(agreement=0)", "fedavg"),
    ("trimmed-mean(trim=0)", 'fedavg(weights="uniform")'),
    ("fedgma(agreement=0)", "fedavg"),
    ("vrex(beta=0)", 'fedavg(weights="uniform")'),
    ("moon(mu=0)", "fedavg"),
    ("fedgloss(radius=0)", "feddyn"),
    ("sd(lam=0)", "fedavg"),
    ("fedavg+irm(lam=0)", "fedavg"),
    ("fedgala(threshold=-1, iterations=0, blocks='whole')", 'fedavg(weights="uniform")'),
    ("fedavg+fedgala(iterations=0, blocks='whole')", "fedavg"),
]


@pytest.mark.parametrize("fraction", [1.0, 0.6])
@pytest.mark.parametrize(("zero", "base"), ZERO)
def test_a_parameter_of_zero_is_the_base_bit_for_bit(zero, base, fraction):
    a, _ = played(zero, fraction=fraction)
    b, _ = played(base, fraction=fraction)
    assert torch.equal(a.inbox["model"], b.inbox["model"])


def test_ga_with_step_zero_is_not_the_mean_by_examples():
    a, _ = played("fedavg+ga(step=0)")
    b, _ = played("fedavg")
    assert not torch.equal(a.inbox["model"], b.inbox["model"])


def test_ga_moves_the_weights_from_the_second_round_on():
    _, outcomes = played("fedavg+ga", rounds=3)
    first, second, _ = (o.weights["model"] for o in outcomes)
    assert torch.equal(first, torch.full((5,), 0.2, dtype=torch.float64))
    assert not torch.equal(second, first)
    assert outcomes[0].table["gap_known"].tolist() == [0.0] * 5


def test_another_seed_gives_another_run():
    a, b = (played("fedavg", seed=seed)[0].inbox["model"] for seed in (0, 1))
    assert not torch.equal(a, b)


@pytest.mark.parametrize("name", [*METHODS, *MODIFIERS])
def test_every_method_has_a_page_with_its_source(name: str):
    from unseen.cli.catalogue import page

    shown = page(name)
    assert "Source" in shown
    assert "@" in shown
    assert "Options" in shown


def test_every_refusal_gives_a_reason():
    refusals = []
    for name in METHODS:
        for modifier in MODIFIERS:
            try:
                method(f"{name}+{modifier}")
            except UnseenError as error:
                refusals.append(str(error))
                assert str(error).startswith(f"{name}+{modifier} cannot be: ")
                assert str(error).count("cannot be") == 1
    assert any("pools the data" in reason for reason in refusals)
    assert any("already decides" in reason for reason in refusals)
    assert any("term is 0" in reason for reason in refusals)


def _same_memories(a, b) -> bool:
    return a.keys() == b.keys() and all(
        [label for label, _ in a[c]] == [label for label, _ in b[c]]
        and all(
            x.keys() == y.keys() and all(torch.equal(x[n], y[n]) for n in x)
            for (_, x), (_, y) in zip(a[c], b[c], strict=True)
        )
        for c in a
    )


#: What sets the weights by itself: the loss at the client, the spread of the updates, or every
#: coordinate's order.
OWN_WEIGHTS = {
    "arfl", "afl", "groupdro", "krum", "median", "trimmed-mean", "random-effects", "glm", "boost",
    "forest", "bag", "trees",
}  # fmt: skip


def innermost(rule):
    """The mean that a rule is or starts from, under all that lies around it."""
    while rule.source is not None:
        rule = rule.source
    return rule


@pytest.mark.parametrize("weights", ["uniform", "examples"])
@pytest.mark.parametrize("name", METHODS)
def test_one_weighting_is_that_of_every_method(name: str, weights: str) -> None:
    built = method(name, Training(weights=weights))
    exchanges = built.exchanges if name in ("stack", "portfolio") else [trained(built)]
    slots = [item for exchange in exchanges for item in exchange.slots.items()]
    rules = [innermost(s.combine) for n, s in slots if n.startswith("model") and s.combine]
    assert (name in OWN_WEIGHTS) != (Mean(weights) in rules)
    if name not in OWN_WEIGHTS:
        rules += [s.combine for n, s in slots if n.startswith("buffers")]
        assert {rule for rule in rules if isinstance(rule, Mean)} == {Mean(weights)}


def test_a_methods_own_words_win_and_its_default_is_kept_where_asked() -> None:
    uniform, own = Training(weights="uniform"), Training(weights="method")
    named = method("fedavg(weights='examples')", uniform)
    assert model_rule(named) == Mean("examples")
    assert model_rule(method("fedavg", own)) == Mean("examples")
    assert innermost(model_rule(method("ppdg", own))) == Mean("uniform")
    # The two differ where the clients differ in size, and agree bit for bit with the option.
    clients = {
        name: Client(name, Split(c.train.x[: 6 + 5 * k], c.train.y[: 6 + 5 * k]), None, 3)
        for k, (name, c) in enumerate(federation(3).items())
    }

    def trained_by(expression: str, training: Training) -> torch.Tensor:
        chosen, model = method(expression, training), Model(network("mlp")[0])
        state = start(chosen, model, sorted(clients), 0)
        return play(chosen, state, InProcess(model, clients), sorted(clients), 1)[0].inbox["model"]

    by_setting = trained_by("fedavg", replace(SETTINGS["plain"], weights="uniform"))
    by_option = trained_by("fedavg(weights='uniform')", SETTINGS["plain"])
    assert torch.equal(by_setting, by_option)
    assert not torch.equal(by_setting, trained_by("fedavg", SETTINGS["plain"]))


@pytest.mark.parametrize(
    ("expression", "times"),
    [("copa", 1.0), ("gperxan(reg=0.5)", 1.5), ("gperxan(reg=0)", 1.0), ("fedprox", 1.0)],
)
def test_what_a_sum_of_losses_does_to_the_first_step(expression: str, times: float) -> None:
    """All heads are equal in round 0, so that further losses are the first one again."""

    def body(name: str) -> torch.Tensor:
        training = Training(SGD(0.05), epochs=None, steps=1, batch_size=8)
        before = played(name, "cnn", training, 0)[0].inbox["model"]
        after = played(name, "cnn", training, 1)[0].inbox["model"]
        head = ready(name, "cnn", training)[1].head
        return (after - before)[: len(before) - sum(p.numel() for p in head.parameters())]

    plain = body("gperxan(reg=0)" if expression.startswith("gperxan") else "fedavg")
    torch.testing.assert_close(body(expression), times * plain, rtol=1e-4, atol=1e-6)
