"""ARFL against a general solver of its problem and the algorithm written out as released."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from support.sites import federation

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.optimiser import SGD
from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.combine import AutoWeighted


def weights(loss, n, reg_weight=1.0, rule_state=None, client=None):
    rule = AutoWeighted(reg_weight)
    table = {"received_loss": np.array(loss), "examples": np.array(n)}
    table = {name: torch.from_numpy(values) for name, values in table.items()}
    if client is not None:
        table["client"] = torch.tensor(client, dtype=torch.float64)
    state = rule_state if rule_state is not None else rule.init(len(loss), 1)
    return rule.weights(table, state)


def objective(alpha, loss, n, reg_weight):
    return alpha @ loss + reg_weight * n.sum() / 2 * (alpha**2 / n).sum()


def released(loss, n, reg_weight) -> list[float]:
    """Sort by loss; η of ever more clients, until the next one's loss lies above it."""
    total = reg_weight * sum(n)
    order = sorted(range(len(n)), key=lambda i: loss[i])
    best = loss[order[0]] + total / n[order[0]]
    for p in range(len(order)):
        size = sum(n[i] for i in order[: p + 1])
        eta = (sum(n[i] * loss[i] for i in order[: p + 1]) + total) / size
        if eta - loss[order[p]] < 0:
            break
        best = eta
    return [n[i] * max(best - loss[i], 0) / total for i in range(len(n))]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("reg_weight", [0.03, 0.3, 1.0, 10.0])
def test_the_weights_are_the_minimiser_that_a_general_solver_finds(seed: int, reg_weight: float):
    rng = np.random.default_rng(seed)
    K = int(rng.integers(1, 7))
    loss, n = rng.exponential(size=K), rng.integers(1, 50, size=K).astype(float)
    found, _ = weights(loss.tolist(), n.tolist(), reg_weight)
    found = found.numpy()
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    np.testing.assert_allclose(found, released(loss.tolist(), n.tolist(), reg_weight), atol=1e-12)
    solved = minimize(
        objective,
        n / n.sum(),
        args=(loss, n, reg_weight),
        method="SLSQP",
        bounds=[(0, 1)] * K,
        constraints={"type": "eq", "fun": lambda alpha: alpha.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    # Strongly convex with modulus reg_weight Σ n / max n, so that near values mean near weights.
    assert objective(found, loss, n, reg_weight) <= solved.fun + 1e-9
    np.testing.assert_allclose(found, solved.x, atol=2e-4)


def test_no_weights_on_a_grid_are_better():
    loss, n, reg_weight = np.array([0.2, 0.9, 0.4]), np.array([10.0, 30.0, 20.0]), 0.2
    found, _ = weights(loss.tolist(), n.tolist(), reg_weight)
    best = objective(found.numpy(), loss, n, reg_weight)
    for a in np.linspace(0, 1, 101):
        for b in np.linspace(0, 1 - a, 101):
            assert best <= objective(np.array([a, b, 1 - a - b]), loss, n, reg_weight) + 1e-12


def test_its_limits_are_weights_by_examples_and_the_lowest_loss():
    loss, n = [0.3, 0.1, 2.0], [10.0, 20.0, 30.0]
    by_examples = torch.tensor(n, dtype=torch.float64) / 60
    torch.testing.assert_close(weights(loss, n, 1e6)[0], by_examples, atol=1e-5, rtol=0)
    torch.testing.assert_close(weights([0.7] * 3, n, 0.1)[0], by_examples)
    assert weights(loss, n, 1e-4)[0].tolist() == pytest.approx([0, 1, 0])
    # Adding a constant to all losses, however large, changes nothing.
    shifted, _ = weights([x + 1e6 for x in loss], n, 0.5)
    torch.testing.assert_close(shifted, weights(loss, n, 0.5)[0], atol=1e-9, rtol=0)


def test_absent_clients_count_with_their_last_loss():
    rule = AutoWeighted(0.2)
    _, state = weights([0.1, 0.9, 0.5, 0.4], [10.0, 20.0, 30.0, 40.0], 0.2)
    found, after = weights([0.2, 0.3], [20.0, 40.0], 0.2, state, client=[1, 3])
    whole = released([0.1, 0.2, 0.5, 0.3], [10.0, 20.0, 30.0, 40.0], 0.2)
    expected = torch.tensor([whole[1], whole[3]], dtype=torch.float64)
    torch.testing.assert_close(found, expected / expected.sum())
    assert after["loss"].tolist() == pytest.approx([0.1, 0.2, 0.5, 0.3])
    assert state["loss"].tolist() == pytest.approx([0.1, 0.9, 0.5, 0.4])
    # Those never seen are in no problem.
    found, _ = weights([0.2, 0.3], [20.0, 40.0], 0.2, rule.init(9, 1), client=[1, 3])
    torch.testing.assert_close(
        found, torch.tensor(released([0.2, 0.3], [20.0, 40.0], 0.2), dtype=torch.float64)
    )


def test_a_sample_that_the_problem_leaves_without_weight_solves_its_own():
    _, state = weights([0.0, 5.0, 5.5], [10.0, 10.0, 30.0], 0.1)
    found, _ = weights([5.0, 5.5], [10.0, 30.0], 0.1, state, client=[1, 2])
    assert released([0.0, 5.0, 5.5], [10.0, 10.0, 30.0], 0.1)[1:] == [0, 0]
    torch.testing.assert_close(
        found, torch.tensor(released([5.0, 5.5], [10.0, 30.0], 0.1), dtype=torch.float64)
    )


def test_the_loss_is_the_received_models_on_the_training_split():
    clients, names = federation(4), [f"site-{c}" for c in "abcd"]
    net = build("mlp(widths=[8], dropout=0.3)", (6,), 3, keyed("net"))
    chosen, model = method("arfl(reg_weight=0.05)", Training(SGD(0.1), batch_size=8)), Model(net)
    state, backend = start(chosen, model, names, 0), InProcess(model, clients)
    for _ in range(3):
        received = state.inbox["model"]
        state, (outcome,) = play(chosen, state, backend, names, state.round + 1)
        net.eval()
        with torch.no_grad():
            losses = [
                float(F.cross_entropy(model.at(received, c.train.x), c.train.y))
                for c in clients.values()
            ]
        assert outcome.table["received_loss"].tolist() == pytest.approx(losses, rel=1e-5)
        sizes = [float(len(c.train)) for c in clients.values()]
        expected = released(losses, sizes, 0.05)
        assert outcome.weights["model"].tolist() == pytest.approx(expected, abs=1e-4)


def test_a_client_with_shuffled_labels_loses_its_weight():
    clients = dict(federation(4))
    victim = clients["site-b"]
    y = torch.randint(3, (len(victim.train),), generator=keyed("shuffled"))
    clients["site-b"] = Client("site-b", Split(victim.train.x, y), victim.validation, 3)
    names, model = sorted(clients), Model(build("logistic", (6,), 3, keyed("net")))
    chosen = method("arfl(reg_weight=0.1)", Training(SGD(0.1), batch_size=8, epochs=3))
    state = start(chosen, model, names, 0)
    _, outcomes = play(chosen, state, InProcess(model, clients), names, 6)
    assert outcomes[-1].weights["model"][1] < 0.02
    assert float(outcomes[-1].weights["model"].sum()) == pytest.approx(1)


def test_ga_and_it_cannot_both_own_the_weights():
    for expression in ("arfl+ga", "arfl+ppdg+ga"):
        with pytest.raises(UnseenError, match=r"cannot be: both own the weights of the clients"):
            method(expression)
    with pytest.raises(UnseenError) as refusal:
        method("arfl+ga")
    assert str(refusal.value).startswith("arfl+ga cannot be: ")


@pytest.mark.parametrize("name", ["ppdg", "pcgrad", "agrsum", "agrrand", "geometric", "csac"])
def test_rules_that_start_from_a_mean_start_from_its_weights(name: str):
    slots = method(f"arfl+{name}").exchanges[0].slots
    assert slots["model"].combine.prior == AutoWeighted()
    assert slots["buffers"].combine == AutoWeighted()
    assert method(f"arfl+{name}").exchanges[0].local == method("arfl").exchanges[0].local


def test_wrong_input_is_named():
    with pytest.raises(UnseenError, match=r"arfl\(reg_weight\) must be a number in \(0"):
        method("arfl(reg_weight=0)")
    with pytest.raises(UnseenError, match="reads the scalar 'received_loss'"):
        AutoWeighted().weights({"examples": torch.ones(2)}, AutoWeighted().init(2, 1))
    with pytest.raises(UnseenError, match="examples > 0"):
        weights([0.1, 0.2], [0.0, 3.0])
