"""FedDyn against Algorithm 1 of the paper, written with h and α, and its fixed point."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.alone import played
from support.sites import federation

from unseen import Training, UnseenError, method
from unseen.core.apply import Descend
from unseen.core.optimiser import SGD
from unseen.engine.stacked import unstackable
from unseen.methods.base import local_training
from unseen.methods.local.accumulation import proximal

FULL = Training(SGD(0.1), epochs=None, steps=6, batch_size=999)


def algorithm_1(clients, model, rounds: int, alpha: float, present) -> torch.Tensor:
    """θ, the clients' gradients and the server's h, line by line; each argmin by six full steps."""

    def slope(theta: torch.Tensor, client) -> torch.Tensor:
        model.vector.copy_(theta)
        model.gradient.zero_()
        F.cross_entropy(model(client.train.x), client.train.y).backward()
        return model.gradient.double().clone()

    theta = model.vector.double().clone()
    m, h = len(clients), torch.zeros_like(theta)
    gradients = {name: torch.zeros_like(theta) for name in clients}
    for r in range(rounds):
        trained = []
        for name in present(r):
            own = theta.clone()
            for _ in range(6):
                whole = slope(own, clients[name]) - gradients[name] + alpha * (own - theta)
                own = own - 0.1 * whole
            gradients[name] = gradients[name] - alpha * (own - theta)
            trained.append(own)
        h = h - alpha / m * sum(own - theta for own in trained)
        theta = sum(trained) / len(trained) - h / alpha
    return theta


def test_algorithm_1_with_all_present() -> None:
    clients = federation(3)
    for alpha in (0.01, 0.5):
        run = played(f"feddyn(alpha={alpha})", clients, 4, net="logistic", training=FULL)
        start = played("feddyn", clients, 0, net="logistic", training=FULL).model
        expected = algorithm_1(clients, start, 4, alpha, lambda r: sorted(clients))
        found = run.state.inbox["model"].double()
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-4)


def test_algorithm_1_with_a_sample_of_the_clients() -> None:
    clients = federation(4)
    run = played("feddyn(alpha=0.3)", clients, 4, net="logistic", training=FULL, fraction=0.5)
    start = played("feddyn", clients, 0, net="logistic", training=FULL).model
    expected = algorithm_1(clients, start, 4, 0.3, lambda r: run.outcomes[r].names)
    assert {len(o.names) for o in run.outcomes} == {2}
    found = run.state.inbox["model"].double()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-4)


def test_it_stands_still_where_the_sum_of_the_gradients_is_0_and_fedavg_does_not() -> None:
    """Regularised by weight decay, so that the minimum is near."""
    training = Training(SGD(0.1, weight_decay=0.1), epochs=None, steps=20, batch_size=999)
    clients = federation(3, n=15)

    def slope(expression: str) -> float:
        model = played(expression, clients, 80, net="logistic", training=training).model
        model.gradient.zero_()
        sum(F.cross_entropy(model(c.train.x), c.train.y) for c in clients.values()).backward()
        return float((model.gradient / 3 + 0.1 * model.vector).norm())

    assert slope("feddyn(alpha=0.3)") < 1e-3 < 1e-2 < slope("fedavg(weights='uniform')")


def test_stacked_models_train_alike() -> None:
    clients = federation(3)
    run = played("feddyn", clients, 1)
    assert unstackable(run.method, run.model, clients) == ""


def test_fednova_counts_its_proximal_term() -> None:
    assert proximal(local_training(method("feddyn(alpha=0.25)")).gradient) == 0.25
    assert proximal(local_training(method("feddyn(alpha=0.25)+fedprox(mu=0.5)")).gradient) == 0.75


def test_another_step_on_the_server_is_refused() -> None:
    with pytest.raises(UnseenError, match="step of its own on the server"):
        method("feddyn", Training(server=Descend(SGD(1.0, 0.9))))
    with pytest.raises(UnseenError, match="alpha"):
        method("feddyn(alpha=0)")
