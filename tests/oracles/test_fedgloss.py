"""FedGloSS against its algorithm, written with the server's perturbed model and FedDyn's terms."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.alone import blueprint, completed, played
from support.sites import federation

from unseen import Training, UnseenError, method, play, start
from unseen.core.apply import Descend
from unseen.core.optimiser import SGD
from unseen.engine.inprocess import InProcess

FULL = Training(SGD(0.1), epochs=None, steps=5, batch_size=999)


def literal(clients, model, rounds: int, alpha: float, rho: float, present) -> torch.Tensor:
    """The server goes up along its last step, sends that model, and goes down from where it was."""

    def slope(theta: torch.Tensor, client) -> torch.Tensor:
        model.vector.copy_(theta)
        model.gradient.zero_()
        F.cross_entropy(model(client.train.x), client.train.y).backward()
        return model.gradient.double().clone()

    x = before = model.vector.double().clone()
    own = {name: torch.zeros_like(x) for name in clients}
    held = torch.zeros_like(x)
    for r in range(rounds):
        up = before - x
        perturbed = x + rho * up / up.norm() if r else x
        updates = []
        for name in present(r):
            w = perturbed.clone()
            for _ in range(5):
                w = w - 0.1 * (slope(w, clients[name]) - own[name] + alpha * (w - perturbed))
            own[name] = own[name] - alpha * (w - perturbed)
            updates.append(w - perturbed)
        held = held - sum(updates) / len(clients)
        before, x = x, x + sum(updates) / len(updates) - held
    return x


@pytest.mark.parametrize(("alpha", "rho", "fraction"), [(0.01, 0.3, 1.0), (0.3, 0.1, 0.5)])
def test_rounds_are_the_algorithms(alpha: float, rho: float, fraction: float) -> None:
    clients, options = federation(4), {"net": "logistic", "training": FULL, "fraction": fraction}
    text = f"fedgloss(alpha={alpha}, radius={rho})"
    run = played(text, clients, 4, **options)
    model = played(text, clients, 0, **options).model
    expected = literal(clients, model, 4, alpha, rho, lambda r: run.outcomes[r].names)
    found = run.state.inbox["model"].double()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-4)
    plain = played(f"feddyn(alpha={alpha})", clients, 4, **options).state.inbox["model"]
    assert float((found - plain).norm()) > 1e-2


def test_fedprox_holds_clients_to_the_perturbed_model() -> None:
    """A strong proximal term leaves them near x + ε; to x it would pull them by 5."""
    clients = federation(3)
    one, two = (
        played("fedgloss(radius=5.0)+fedprox(mu=10)", clients, r, net="logistic", training=FULL)
        for r in (1, 2)
    )
    moved = two.state.inbox["model"] - one.state.inbox["model"]
    assert float(moved.norm()) < 2.0


def test_another_step_of_the_server_is_refused() -> None:
    with pytest.raises(UnseenError, match="fedgloss has a step of its own"):
        method("fedgloss", Training(SGD(0.1), server=Descend(SGD(1.0))))


def test_a_loss_of_the_received_model_is_not_one_uphill_of_it() -> None:
    clients = federation(4)
    vrex = method("fedgloss(radius=0.3)+vrex", Training(SGD(0.1), batch_size=8))
    chosen, model = completed(vrex, blueprint(clients, "mlp(widths=[8])"))
    names = sorted(clients)
    state, _ = play(chosen, start(chosen, model, names, 0), InProcess(model, clients), names, 2)
    received = state.inbox["model"].clone()
    _, (outcome,) = play(chosen, state, InProcess(model, clients), names, 3)
    model.vector.copy_(received)
    for name, said in zip(outcome.names, outcome.table["received_loss"], strict=True):
        inputs, labels = clients[name].train.batch(slice(None))
        model.module.eval()
        loss = F.cross_entropy(model(inputs), labels)
        assert float(said) == pytest.approx(float(loss), rel=1e-5)


def test_a_sites_own_bias_does_not_go_with_a_step_uphill() -> None:
    with pytest.raises(UnseenError, match="begins uphill of the server's model"):
        method("fedgloss+intercepts")
