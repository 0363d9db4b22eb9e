"""FedAdam, FedYogi and FedAdagrad against Algorithm 2 of Reddi et al. 2021, line by line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.sites import federation

from unseen import Model, Training, method, play, start
from unseen.core.apply import Descend
from unseen.core.optimiser import Adam, FedOpt, fedadagrad, fedadam, fedyogi
from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.errors import UnseenError
from unseen.studies.settings.training import Recipe

RULES: dict[str, Callable[..., FedOpt]] = {
    "fedadam": fedadam, "fedyogi": fedyogi, "fedadagrad": fedadagrad,
}  # fmt: skip


def algorithm_2(
    which: str, x: list[float], deltas: list[list[list[float]]], eta: float, beta1: float,
    beta2: float, tau: float,
) -> list[list[float]]:  # fmt: skip
    """x_{t+1} of every round, number by number; deltas [T][|S|][P]: the clients' updates."""
    P = len(x)
    m, v, found = [0.0] * P, [tau**2] * P, []  # v_{-1} >= tau^2
    for of_clients in deltas:
        x = list(x)
        for j in range(P):
            delta = sum(client[j] for client in of_clients) / len(of_clients)
            m[j] = beta1 * m[j] + (1 - beta1) * delta
            if which == "fedadagrad":
                v[j] = v[j] + delta**2
            elif which == "fedyogi":
                sign = (v[j] > delta**2) - (v[j] < delta**2)
                v[j] = v[j] - (1 - beta2) * delta**2 * sign
            else:
                v[j] = beta2 * v[j] + (1 - beta2) * delta**2
            x[j] = x[j] + eta * m[j] / (math.sqrt(v[j]) + tau)
        found.append(x)
    return found


@pytest.mark.parametrize("which", RULES)
@pytest.mark.parametrize("given", [{}, {"lr": 0.3, "beta1": 0.7, "tau": 0.05}])
def test_the_server_is_algorithm_2(which: str, given: dict[str, float]) -> None:
    generator = keyed("deltas")
    # Updates of many sizes, from far below tau to far above it.
    sizes = 10.0 ** torch.arange(-6.0, 2.0, dtype=torch.float64)
    deltas = torch.randn(6, 3, 8, generator=generator, dtype=torch.float64) * sizes
    x = torch.randn(8, generator=generator, dtype=torch.float64)
    values = {"lr": 0.01, "beta1": 0.0 if which == "fedadagrad" else 0.9, "tau": 1e-3} | given
    expected = algorithm_2(
        which, x.tolist(), deltas.tolist(), values["lr"], values["beta1"], 0.99, values["tau"]
    )
    apply, state = Descend(RULES[which](**given)), {}
    for round_deltas, wanted in zip(deltas, expected, strict=True):
        before = {name: value.clone() for name, value in state.items()}
        copied, old, entered = x.clone(), x, state
        x, state = apply(x, round_deltas.mean(0), state, {})
        assert x.tolist() == pytest.approx(wanted, rel=1e-12)
        # State in, state out: nothing that came in was written to.
        assert torch.equal(old, copied)
        assert all(torch.equal(entered[name], value) for name, value in before.items())


def test_a_recipe_names_them_and_a_client_cannot_take_them() -> None:
    built = Recipe(server="fedadam(lr=0.02, tau=0.01)").build("classes").server
    assert built == Descend(FedOpt(0.02, 0.9, 0.99, 0.01, "adam"))
    built = Recipe(server="fedyogi").build("classes").server
    assert built == Descend(FedOpt(0.01, 0.9, 0.99, 1e-3, "yogi"))
    built = Recipe(server="fedadagrad(lr=0.1)").build("classes").server
    assert built == Descend(FedOpt(0.1, 0.0, 0.99, 1e-3, "adagrad"))
    assert Recipe(server="adam(lr=0.02)").build("classes").server == Descend(Adam(0.02))
    with pytest.raises(UnseenError, match="unknown optimiser 'fedadam'"):
        Recipe(optimiser="fedadam").build("classes")
    with pytest.raises(UnseenError, match="server 'fedadagrad' has no option 'beta2'"):
        Recipe(server="fedadagrad(beta2=0.9)").build("classes")
    with pytest.raises(UnseenError, match=r"fedyogi\(tau\) must be a number in \(0, inf\)"):
        Recipe(server="fedyogi(tau=0)").build("classes")


def test_the_first_steps_of_adam_and_fedadam_are_not_alike() -> None:
    """Of a constant update: lr at once by torch's Adam, and by FedAdam what the equation says."""
    u, x = torch.full((3,), 2.0, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    torchs, _ = Descend(Adam(lr=0.1))(x, u, {}, {})
    reddis, _ = Descend(fedadam(lr=0.1))(x, u, {}, {})
    leaf = torch.nn.Parameter(x.clone())
    leaf.grad = -u
    torch.optim.Adam([leaf], lr=0.1).step()
    assert torch.equal(torchs, leaf.detach())
    by_hand = 0.1 * 0.1 * 2 / (math.sqrt(0.99e-6 + 0.01 * 4) + 1e-3)
    assert reddis.tolist() == pytest.approx([by_hand] * 3)


@pytest.mark.parametrize("which", RULES)
def test_an_interrupted_run_goes_on_with_the_same_bits(which: str, tmp_path: Any) -> None:
    clients, names = federation(3), ["site-a", "site-b", "site-c"]
    model = Model(build("logistic", (6,), 3, keyed("net")))
    chosen = method("fedavg", Training(batch_size=8, server=Descend(RULES[which](lr=0.05))))
    begun = start(chosen, model, names, 0)
    whole, _ = play(chosen, begun, InProcess(model, clients), names, 5)
    half, _ = play(chosen, begun, InProcess(model, clients), names, 2)
    torch.save(half, tmp_path / "state.pt")
    again = torch.load(tmp_path / "state.pt", weights_only=False)
    resumed, _ = play(chosen, again, InProcess(model, clients), names, 5)
    assert torch.equal(whole.inbox["model"], resumed.inbox["model"])
    assert not torch.equal(half.inbox["model"], whole.inbox["model"])
