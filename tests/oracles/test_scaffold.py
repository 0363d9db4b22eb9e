"""SCAFFOLD against closed forms on quadratics and a literal loop, in float64."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.quadratics import Point, fixed_point, quadratics, recipe, settled
from support.remote import Remote
from support.sites import federation, images

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.optimiser import SGD, Adam
from unseen.core.round import sample
from unseen.core.schedule import Step
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.combine import RosterMean
from unseen.methods.local.accumulation import accumulation
from unseen.methods.local.batches import batches

ETA, TAU = 0.1, 10
CURVATURES, OPTIMA = (1.0, 4.0, 0.5), (0.0, 1.0, -2.0)


def drifted(weights, sizes=(TAU, TAU, TAU)) -> float:
    """FedAvg's fixed point: x = Σ p_i (x_i* + (1 − ηa_i)^τ_i (x − x_i*))."""
    pull = [1 - (1 - ETA * a) ** n for a, n in zip(CURVATURES, sizes, strict=True)]
    terms = list(zip(weights, pull, OPTIMA, strict=True))
    return sum(p * c * x for p, c, x in terms) / sum(p * c for p, c, _ in terms)


def optimum(weights) -> float:
    """Where Σ p_i F_i has its minimum."""
    terms = list(zip(weights, CURVATURES, OPTIMA, strict=True))
    return sum(p * a * x for p, a, x in terms) / sum(p * a for p, a, _ in terms)


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("m", [0.0, 0.9])
def test_it_settles_at_the_optimum_where_fedavg_does_not(option: int, m: float):
    """Equal weights, full gradients; with momentum too, since its displacement is accounted for."""
    clients = quadratics(CURVATURES, OPTIMA, (TAU, TAU, TAU))
    thirds = (1 / 3, 1 / 3, 1 / 3)
    assert abs(drifted(thirds) - optimum(thirds)) > 0.1
    if not m:
        found = fixed_point("fedavg", recipe(ETA), clients)
        assert found == pytest.approx(drifted(thirds), abs=1e-10)
    found = settled(f"scaffold(option={option})", recipe(ETA / (1 + 4 * m), m), clients, 120)
    assert found == pytest.approx(optimum(thirds), abs=1e-9)


def test_unequal_numbers_of_steps_and_weights_do_not_move_it_either():
    clients = quadratics(CURVATURES, OPTIMA, (2, 10, 4))
    uniform, examples = (1 / 3, 1 / 3, 1 / 3), (2 / 16, 10 / 16, 4 / 16)
    found = settled("scaffold(weights='uniform')", recipe(ETA), clients, 120)
    assert found == pytest.approx(optimum(uniform), abs=1e-9)
    found = settled("scaffold", recipe(ETA), clients, 120)
    assert found == pytest.approx(optimum(examples), abs=1e-9)
    assert abs(drifted(examples, (2, 10, 4)) - optimum(examples)) > 0.05


def test_with_momentum_the_model_moves_many_times_as_far_as_the_printed_formula_has_it():
    """Σ_{k=1}^{100} (1 − 0.9^k) / (1 − 0.9) = 1000 − 90 (1 − 0.9^100), against K = 100."""
    assert accumulation(100, momentum=0.9)[0] == pytest.approx(1000 - 90 * (1 - 0.9**100))


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("fraction", [1.0, 2])
def test_rounds_are_those_of_algorithm_1_written_out(option: int, fraction):
    """Mini-batches, a sample of the clients, a schedule and uniform weights, as printed."""
    clients, rounds, eta = regressions(4), 6, 0.05
    training = recipe(eta, batch_size=7, epochs=2, schedule=Step(at=0.5, factor=0.4))
    state, outcomes = regress(f"scaffold(option={option}, weights='uniform')", training, clients,
                              rounds, fraction)  # fmt: skip
    x = torch.zeros(3, dtype=torch.float64)
    c, own = torch.zeros_like(x), {name: torch.zeros_like(x) for name in clients}
    for r in range(rounds):
        names = sample(sorted(clients), fraction, Turn(0, r, rounds))
        lr = eta if r < 3 else 0.4 * eta
        models, changes = [], []
        for name in names:
            split, y, K = clients[name].train, x.clone(), 0
            for index in batches(split, training, Turn(0, r, rounds, "train", name)):
                y = y - lr * (slope(split.x[index], split.y[index], y) - own[name] + c)
                K += 1
            renewed = (
                slope(split.x, split.y, x) if option == 1 else own[name] - c + (x - y) / (K * lr)
            )
            models.append(y)
            changes.append(renewed - own[name])
            own[name] = renewed
        x = x + sum(y - x for y in models) / len(names)
        c = c + sum(changes) / len(clients)
    torch.testing.assert_close(state.inbox["model"], x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(state.inbox["control"], c, rtol=1e-10, atol=1e-12)
    assert float(outcomes[-1].weights["control"].sum()) == pytest.approx(len(names) / 4)


@pytest.mark.parametrize(("kept", "mu"), [(False, 0.0), (True, 0.0), (False, 3.0), (True, 3.0)])
def test_the_control_is_the_mean_gradient_as_momentum_and_the_proximal_term_weigh_it(kept, mu):
    """Σ_k a_k g_k / Σ_k a_k of the gradients met on the way, a_k found by unrolling the steps."""
    m, eta, rounds = 0.8, 0.05, 3
    clients = regressions(1)
    (name,), (client,) = clients, clients.values()
    training = Training(
        SGD(eta, m), batch_size=9, epochs=2, keep_optimiser=kept, loss=recipe(1).loss
    )
    state, _ = regress(f"scaffold+fedprox(mu={mu})", training, clients, rounds)
    split, x = client.train, torch.zeros(3, dtype=torch.float64)
    c = torch.zeros_like(x)
    buffer = torch.zeros_like(x)
    for r in range(rounds):
        y, met = x.clone(), []
        buffer = buffer if kept else torch.zeros_like(x)
        for index in batches(split, training, Turn(0, r, rounds, "train", name)):
            met.append(slope(split.x[index], split.y[index], y))
            # One client: c_i = c, so that the correction is 0.
            buffer = m * buffer + met[-1] + mu * (y - x)
            y = y - eta * buffer
        c = sum(a * g for a, g in zip(factors(len(met), m, eta * mu), met, strict=True))
        c = c / sum(factors(len(met), m, eta * mu))
        x = y
    torch.testing.assert_close(state.inbox["model"], x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(state.inbox["control"], c, rtol=1e-8, atol=1e-10)


def factors(K: int, m: float, pull: float) -> list[float]:
    """a_k: what a unit gradient at step k alone has moved by the end, step by step."""
    found = []
    for k in range(K):
        moved = speed = 0.0
        for step in range(K):
            speed = m * speed + (step == k) - pull * moved
            moved += speed
        found.append(moved)
    return found


def test_accumulation_is_the_papers_closed_forms():
    """FedNova §4: [τ − m(1−m^τ)/(1−m)]/(1−m) for momentum, (1−(1−α)^τ)/α for the proximal term."""
    for K in (1, 2, 7, 30):
        assert accumulation(K) == (K, 0)
        m, alpha = 0.9, 0.02
        A, B = accumulation(K, momentum=m)
        expected = (K - m * (1 - m**K) / (1 - m)) / (1 - m), m * (1 - m**K) / (1 - m)
        assert pytest.approx(expected) == (A, B)
        assert accumulation(K, pull=alpha)[0] == pytest.approx((1 - (1 - alpha) ** K) / alpha)
        assert accumulation(K, m, alpha)[0] == pytest.approx(sum(factors(K, m, alpha)))


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("kind", ["mlp", "bn-cnn"])
def test_round_0_is_fedavg_bit_for_bit(option: int, kind: str):
    """Both controls are 0; the pass of option 1 leaves statistics and draws alone."""
    training = Training(SGD(0.05, momentum=0.5), batch_size=8)
    for rounds in (1, 2):
        a, b = (
            play_net(e, kind, training, rounds) for e in (f"scaffold(option={option})", "fedavg")
        )
        assert torch.equal(a.inbox["model"], b.inbox["model"]) == (rounds == 1)
        assert torch.equal(a.inbox["buffers"], b.inbox["buffers"]) == (rounds == 1 or kind == "mlp")


@pytest.mark.parametrize("expression", ["scaffold", "scaffold(option=1)", "scaffold+ga"])
def test_sites_behind_bytes_give_the_same_bits(expression: str):
    training = Training(SGD(0.05, momentum=0.9), batch_size=8, keep_optimiser=True)
    a = play_net(expression, "mlp", training, 3, 3)
    b = play_net(expression, "mlp", training, 3, 3, Remote)
    assert all(torch.equal(a.inbox[n], b.inbox[n]) for n in a.inbox)


def test_a_reply_that_is_not_finite_leaves_the_clients_control_as_it_was():
    """The server leaves it out of c, so the client must not count it either."""
    clients = quadratics((1.0, 1e200), (0.0, 1.0), (3, 3))
    training = recipe(ETA)
    chosen, names = method("scaffold", training), sorted(clients)
    model = Model(Point())
    backend = InProcess(model, clients)
    state, outcomes = play(
        chosen, start(chosen, model, names, 0), backend, names, 2, on_bad_reply="drop"
    )
    assert set(outcomes[0].dropped) == {"site-b"}
    assert "scaffold.control" not in backend.memories.before("site-b", (1, 0))
    assert torch.isfinite(state.inbox["control"]).all()


def test_a_client_that_takes_no_step_keeps_its_control():
    """It has no gradient of the round to set it to."""
    clients = quadratics((1.0, 2.0), (1.0, 2.0), (8, 3))

    def none_of_few(count: int, recipe: Training, memory, turn: Turn):
        yield from (torch.arange(count).split(4) if count > 4 else ())

    training = replace(recipe(ETA), batch_size=4, sampling=none_of_few)
    chosen, names = method("scaffold", training), sorted(clients)
    model = Model(Point())
    backend = InProcess(model, clients)
    state, outcomes = play(chosen, start(chosen, model, names, 0), backend, names, 3)
    assert outcomes[-1].table["steps"].tolist()[1] == 0 and not outcomes[-1].dropped
    controls = [backend.memories.before(name, (3, 0))["scaffold.control"] for name in names]
    assert not bool(controls[1].any()) and bool(controls[0].any())
    assert torch.isfinite(state.inbox["model"]).all()


def test_with_ga_the_control_is_that_of_the_weights_as_they_stand():
    """c = Σ a_i c_i with all present; (1 − |S|/N) c + (|S|/N) Σ a_i c_i with a sample."""
    clients = federation(5)
    model, names = Model(build("mlp(widths=[8])", (6,), 3, keyed("net"))), sorted(clients)
    chosen = method("scaffold+ga(step=0.3)", Training(SGD(0.05), batch_size=8))
    for fraction in (5, 2):
        state, backend = start(chosen, model, names, 0), InProcess(model, clients)
        for _ in range(4):
            before = state.inbox["control"]
            state, (outcome,) = play(chosen, state, backend, names, state.round + 1, fraction)
            a = outcome.weights["model"].float()
            own = [backend.memories.before(n, (9, 0))["scaffold.control"] for n in outcome.names]
            expected = sum(q * c for q, c in zip(a, own, strict=True)) * fraction / 5
            expected += before * (1 - fraction / 5)
            torch.testing.assert_close(state.inbox["control"], expected, rtol=1e-5, atol=1e-6)
        assert (a - 1 / fraction).abs().max() > 0.05
        assert set(outcome.weights) == {"model", "buffers", "renewed"}


def test_ga_with_step_0_is_uniform_weights_when_all_take_part():
    training = Training(SGD(0.05), batch_size=8)
    even, uniform = (
        played(e, training, 3)[0] for e in ("scaffold+ga(step=0)", "scaffold(weights='uniform')")
    )
    for name in ("model", "control"):
        torch.testing.assert_close(even.inbox[name], uniform.inbox[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["ppdg", "pcgrad", "agrsum", "csac", "fednova"])
def test_another_rule_combines_the_models_and_the_controls_keep_their_mean(rule: str):
    chosen = method(f"scaffold+{rule}")
    (exchange,) = chosen.exchanges
    plain = method(f"fedavg+{rule}").exchanges[0].slots
    assert exchange.slots["model"].combine == plain["model"].combine
    assert exchange.slots["control"] == method("scaffold").exchanges[0].slots["control"]
    adjusted = method(f"scaffold+{rule}+ga").exchanges[0].slots
    assert adjusted["renewed"].combine.prior == adjusted["model"].combine.prior
    again = method(f"scaffold+ga+{rule}").exchanges[0].slots
    assert again == adjusted


def test_what_it_cannot_run_on_is_refused():
    for training in (Training(SGD(0.1, momentum=0.9)), Training(SGD(0.1, weight_decay=1e-4))):
        with pytest.raises(UnseenError, match="plain sgd, with neither momentum nor weight decay"):
            method("scaffold(momentum='refuse')", training)
        assert method("scaffold", training).name == "scaffold"
    with pytest.raises(UnseenError, match=r"needs sgd; adam rescales.*scaffold\(option=1\)"):
        method("scaffold", Training(Adam()))
    assert method("scaffold(option=1)", Training(Adam())).name == "scaffold(option=1)"
    with pytest.raises(UnseenError, match=r"scaffold\(option\) must be one of 1, 2"):
        method("scaffold(option=3)")


def test_the_roster_mean_counts_the_absent_as_zero():
    rule = RosterMean()
    u = torch.randn(3, 5, generator=keyed("roster"))
    vector, _, weights = rule(u, {"client": torch.tensor([0.0, 4.0, 7.0])}, rule.init(8, 5))
    torch.testing.assert_close(vector, u.sum(0) / 8)
    assert float(weights.sum()) == pytest.approx(3 / 8)


def slope(x, y, w):
    """The gradient of the mean of (x w − y)², by autograd."""
    w = w.clone().requires_grad_()
    (g,) = torch.autograd.grad(F.mse_loss(x @ w, y), w)
    return g


def regressions(count: int) -> dict[str, Client]:
    clients = {}
    for k in range(count):
        generator = keyed(f"scaffold/{k}")
        x = torch.randn(16 + 9 * k, 3, generator=generator, dtype=torch.float64) + 0.2 * k
        y = x @ torch.tensor([1.0, -1.0 + k, 0.5], dtype=torch.float64)
        name = f"site-{chr(ord('a') + k)}"
        clients[name] = Client(name, Split(x, y), None, None)
    return clients


def regress(expression, training, clients, rounds, fraction=1.0):
    net = torch.nn.Linear(3, 1, bias=False).double()
    torch.nn.init.zeros_(net.weight)
    model, names = Model(net), sorted(clients)
    chosen = method(expression, training)
    backend = InProcess(model, clients)
    return play(chosen, start(chosen, model, names, 0), backend, names, rounds, fraction)


def played(expression, training, rounds, fraction=1.0):
    clients = federation(5)
    model, names = Model(build("mlp(widths=[8])", (6,), 3, keyed("net"))), sorted(clients)
    chosen = method(expression, training)
    backend = InProcess(model, clients)
    return play(chosen, start(chosen, model, names, 0), backend, names, rounds, fraction)


def play_net(expression, kind, training, rounds, fraction=1.0, backend=None):
    if kind == "mlp":
        net, clients = build("mlp(widths=[8], dropout=0.2)", (6,), 3, keyed("net")), federation(5)
    else:
        net, clients = build("bn-cnn", (1, 8, 8), 3, keyed("net")), images(3)
    chosen, model, names = method(expression, training), Model(copy.deepcopy(net)), sorted(clients)
    engine = backend(net, clients) if backend else InProcess(model, clients)
    return play(chosen, start(chosen, model, names, 0), engine, names, rounds, fraction)[0]


@pytest.mark.parametrize("added", ["afl(step=1.0)", "groupdro(step=1.0)", "ga(step=0.3)"])
def test_where_weights_change_the_control_is_the_mean_by_those_of_today(added: str) -> None:
    clients = federation(4)
    model, names = Model(build("mlp(widths=[8])", (6,), 3, keyed("net"))), sorted(clients)
    chosen = method(f"scaffold+{added}", Training(SGD(0.05), batch_size=8))
    backend = InProcess(model, clients)
    state, outcomes = play(chosen, start(chosen, model, names, 0), backend, names, 5)
    a = outcomes[-1].weights["model"].float()
    assert float((a - a.mean()).abs().max()) > 0.01
    own = torch.stack([backend.memories.before(n, (9, 0))["scaffold.control"] for n in names])
    torch.testing.assert_close(state.inbox["control"], a @ own, rtol=1e-4, atol=1e-6)
