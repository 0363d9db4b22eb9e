"""FedCurv of Shoham et al. against closed forms on quadratics and a literal loop, in float64."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.sites import images

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.exchange import Reply
from unseen.core.losses import CrossEntropy, SquaredError
from unseen.core.optimiser import SGD
from unseen.core.round import sample
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.gradient.fedcurv import WithFisher
from unseen.methods.local.batches import batches

TURN = Turn(seed=0, round=0, rounds=3, exchange="train", client="site-a")


def regressions(count: int = 3, n: int = 20) -> dict[str, Client]:
    """Clients that hold different lines in three inputs."""
    clients = {}
    for k in range(count):
        generator = keyed(f"fedcurv/{k}")
        x = torch.randn(n + 4 * k, 3, generator=generator, dtype=torch.float64) + 0.2 * k
        y = x @ torch.tensor([1.0, -1.0 + k, 0.5], dtype=torch.float64) - 0.3 * k
        y += 0.5 * torch.randn(len(y), generator=generator, dtype=torch.float64)
        name = f"site-{chr(ord('a') + k)}"
        clients[name] = Client(name, Split(x, y), None, None)
    return clients


def with_ones(client: Client) -> torch.Tensor:
    x = client.train.x
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)


def line() -> torch.nn.Module:
    return build("logistic", (3,), 1, keyed("fedcurv")).double()


def recipe(**settings) -> Training:
    return Training(SGD(0.05), batch_size=1000, loss=SquaredError(), **settings)


def squares(client: Client, w: torch.Tensor, batch: int) -> torch.Tensor:
    """Mean over batches of the squared gradient of a batch, by the formula of least squares."""
    A, y = with_ones(client), client.train.y
    each = 2 * (A @ w - y)[:, None] * A
    return torch.stack([part.mean(0).square() for part in each.split(batch)]).mean(0)


def run(expression: str, training: Training, clients, rounds: int, fraction=1.0):
    model, names = Model(line()), sorted(clients)
    chosen = method(expression, training)
    backend = InProcess(model, clients)
    return play(chosen, start(chosen, model, names, 0), backend, names, rounds, fraction)


def test_on_quadratics_the_local_minimum_is_that_of_the_closed_form():
    """(2AᵀA/n + 2λ Σ_{j≠i} F_j) w = 2Aᵀy/n + 2λ Σ_{j≠i} F_j w_j, with w_j least squares."""
    clients, lam = regressions(), 0.7
    training = recipe(epochs=None, steps=1500)
    chosen = method(f"fedcurv(lam={lam}, fisher='example')", training)
    model, names = Model(line()), sorted(clients)
    backend = InProcess(model, clients)
    state, _ = play(chosen, start(chosen, model, names, 0), backend, names, 1)
    own = {n: torch.linalg.lstsq(with_ones(c), c.train.y).solution for n, c in clients.items()}
    fisher = {n: squares(c, own[n], batch=1) for n, c in clients.items()}
    torch.testing.assert_close(state.inbox["fisher"], sum(fisher.values()), rtol=1e-9, atol=1e-9)
    (exchange,) = chosen.exchanges
    turn = Turn(0, 1, 2, exchange.name)
    replies = backend.map(exchange, state.inbox, names, turn)
    for name, reply in zip(names, replies, strict=True):
        A, y = with_ones(clients[name]), clients[name].train.y
        u = sum(fisher[n] for n in names if n != name)
        v = sum(fisher[n] * own[n] for n in names if n != name)
        expected = torch.linalg.solve(
            2 * A.T @ A / len(y) + 2 * lam * torch.diag(u), 2 * A.T @ y / len(y) + 2 * lam * v
        )
        assert (expected - own[name]).abs().max() > 0.01
        found = reply.rows["model"] + state.inbox["model"]
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("fraction", [1.0, 2])
@pytest.mark.parametrize("fisher", ["batch", "example"])
def test_rounds_are_those_of_a_literal_loop_with_the_sum_over_the_others(fisher, fraction):
    """Σ_{j≠i} written out and differentiated; j runs over those of the round before."""
    clients, lam, rounds = regressions(4), 0.03, 5
    training = replace(recipe(epochs=3), batch_size=9)
    expression = f"fedcurv(lam={lam}, fisher='{fisher}')"
    state, outcomes = run(expression, training, clients, rounds, fraction)

    w = torch.cat([p.detach().flatten() for p in line().parameters()])
    before: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for r in range(rounds):
        names = sample(sorted(clients), fraction, Turn(0, r, rounds))
        assert outcomes[r].names == tuple(names)
        trained = {}
        for name in names:
            split, own = clients[name].train, w.clone()
            for index in batches(split, training, Turn(0, r, rounds, "train", name)):
                own.requires_grad_()
                A = torch.cat([split.x[index], torch.ones(len(index), 1).double()], dim=1)
                loss = F.mse_loss(A @ own, split.y[index])
                for other, (fish, theirs) in before.items():
                    if other != name:
                        loss = loss + lam * ((own - theirs) * fish * (own - theirs)).sum()
                (g,) = torch.autograd.grad(loss, own)
                own = (own - 0.05 * g).detach()
            trained[name] = own
        before = {
            n: (squares(clients[n], t, 9 if fisher == "batch" else 1), t)
            for n, t in trained.items()
        }
        total = sum(len(clients[n].train) for n in names)
        w = sum(len(clients[n].train) / total * t for n, t in trained.items())
    torch.testing.assert_close(state.inbox["model"], w, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(
        state.inbox["anchor"], sum(f * t for f, t in before.values()), rtol=1e-9, atol=1e-11
    )
    plain, _ = run("fedavg", training, clients, rounds, fraction)
    assert (plain.inbox["model"] - w).abs().max() > 1e-3


def still(model, inbox, client, memory, turn):
    """A local that trains nothing."""
    return Reply(), memory


def test_the_fisher_of_a_net_is_taken_in_evaluation_mode_and_leaves_it_as_it_was():
    client = images(1)["site-a"]
    client = Client("site-a", Split(client.train.x.double(), client.train.y), None, 3)
    net = build("bn-cnn", (1, 8, 8), 3, keyed("net")).double()
    net.norm1.running_mean.fill_(0.3)
    model = Model(copy.deepcopy(net))
    before = model.vector.clone(), model.buffers.clone()
    net.eval()
    for fisher, size, chunk in (("batch", 8, None), ("example", 1, 3)):
        part = WithFisher(still, CrossEntropy(), fisher, 8, chunk)
        reply, memory = part(model, {}, client, {}, TURN)
        rows = []
        for x, y in zip(client.train.x.split(size), client.train.y.split(size), strict=True):
            grads = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
            rows.append(torch.cat([g.flatten() for g in grads]).square())
        expected = torch.stack(rows).mean(0)
        torch.testing.assert_close(reply.rows["fisher"], expected, rtol=1e-9, atol=1e-14)
        assert torch.equal(reply.rows["anchor"], reply.rows["fisher"] * model.vector)
        assert torch.equal(model.vector, before[0])
        assert torch.equal(model.buffers, before[1])
        assert int(memory["fedcurv.round"]) == 0
    with pytest.raises(UnseenError, match=r"'conv1' \(Conv2d\).*chunk=16"):
        WithFisher(still, CrossEntropy(), "example")(model, {}, client, {}, TURN)


def test_wrong_options_are_named():
    with pytest.raises(UnseenError, match="did you mean 'example'"):
        method("fedcurv(fisher='examples')")
    with pytest.raises(UnseenError, match=r"fedcurv\(lam\)"):
        method("fedcurv(lam=-0.1)")
