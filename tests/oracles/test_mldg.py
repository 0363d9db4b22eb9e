"""MLDG between clients against Algorithm 1 on pooled data, first order, domain by domain."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.alone import RECIPE, played
from support.sites import federation

from unseen import Model, Training, method, play, start
from unseen.core.optimiser import SGD
from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.mldg import Split


def algorithm_1(clients, model, rounds: int, alpha: float, beta: float, m: int) -> torch.Tensor:
    """Θ ← Θ − γ (∇F(S; Θ) + β ∇G(V; Θ − α ∇F(S; Θ))), V in turn."""

    def slope(theta: torch.Tensor, names: list[str]) -> torch.Tensor:
        model.vector.copy_(theta)
        model.gradient.zero_()
        for name in names:
            data = clients[name].train
            (F.cross_entropy(model(data.x), data.y) / len(names)).backward()
        return model.gradient.double().clone()

    theta, roster = model.vector.double().clone(), sorted(clients)
    for r in range(rounds):
        test = [roster[(r * m + k) % len(roster)] for k in range(m)]
        train = [name for name in roster if name not in test]
        first = slope(theta, train)
        second = slope(theta - alpha * first, test)
        theta = theta - RECIPE.optimiser.lr * (first + beta * second)
    return theta


@pytest.mark.parametrize(("beta", "step", "m"), [(1.0, None, 1), (0.5, 0.4, 2), (0.0, None, 1)])
def test_rounds_are_algorithm_1(beta: float, step: float | None, m: int) -> None:
    clients = federation(4)
    text = f"mldg(beta={beta}, step={step}, test={m})"
    model = played(text, clients, 0).model
    expected = algorithm_1(clients, model, 5, step or RECIPE.optimiser.lr, beta, m)
    found = played(text, clients, 5).state.inbox["model"].double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_everybody_tests_as_often_and_somebody_always_trains() -> None:
    for N, m in ((5, 2), (3, 3), (2, 1), (1, 1)):
        split = Split(m)
        tests = [[split.tests(place, r, N) for place in range(N)] for r in range(N)]
        assert len({sum(column) for column in zip(*tests, strict=True)}) == 1
        assert all(sum(row) == min(m, N - 1) for row in tests)


def test_a_sample_of_the_clients_has_both_means_where_it_can() -> None:
    run = played("mldg(test=2)", federation(5), 6, fraction=2)
    for outcome in run.outcomes:
        if outcome.turn.exchange == "train":
            assert float(outcome.weights["model"].sum()) in (1.0, 2.0)


def test_what_is_added_to_the_loss_is_in_both_exchanges() -> None:
    """MLDG of another objective: x' comes of the penalised gradient, as g_S and g_V do."""
    lr, lam = 0.5, 2.0
    clients, shape = federation(4), (6,)
    names, module = sorted(clients), build("mlp(widths=[8])", shape, 3, keyed("net"))
    chosen = method(f"mldg+sd(lam={lam})", Training(SGD(lr), batch_size=8))
    model = Model(module)
    x0 = model.vector.clone()

    def gradient(x: torch.Tensor, name: str) -> torch.Tensor:
        x = x.clone().requires_grad_()
        inputs, labels = clients[name].train.batch(slice(None))
        outputs = model.at(x, inputs)
        penalty = lam / 2 * outputs.square().sum(1).mean()
        loss = F.cross_entropy(outputs, labels) + penalty
        return torch.autograd.grad(loss, x)[0]

    test, *others = names
    here = torch.stack([gradient(x0, name) for name in others]).mean(0)
    expected = x0 - lr * (here + gradient(x0 - lr * here, test))
    state, _ = play(chosen, start(chosen, model, names, 0), InProcess(model, clients), names, 1)
    torch.testing.assert_close(state.inbox["model"], expected, rtol=1e-4, atol=1e-5)
