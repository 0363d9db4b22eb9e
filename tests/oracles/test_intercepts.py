"""Own intercepts: whose bias is whose in each round, and data on which shared weights gain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from support.alone import RECIPE, blueprint, completed, played
from support.sites import federation
from torch import nn

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.exchange import Reply
from unseen.core.losses import SquaredError
from unseen.core.optimiser import SGD
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.combine import RandomEffects
from unseen.methods.local.intercepts import OWN, OwnIntercepts

TURN = Turn(seed=0, round=0, rounds=2, exchange="train", client="site-a")
NET = "mlp(widths=[8])"


@dataclass
class Run:
    """A federation of which rounds are played one after the other."""

    expression: str
    clients: dict[str, Client]
    fraction: float | int = 1.0
    net: str = NET
    training: Training = RECIPE
    round: int = 0
    state: Any = field(init=False)

    def __post_init__(self) -> None:
        plan = blueprint(self.clients, self.net)
        self.method, self.model = completed(method(self.expression, self.training), plan)
        self.names = sorted(self.clients)
        self.engine = InProcess(self.model, self.clients)
        self.state = start(self.method, self.model, self.names, 0)

    def __call__(self):
        self.round += 1
        self.state, (*_, outcome) = play(
            self.method, self.state, self.engine, self.names, self.round, self.fraction
        )
        return outcome

    @property
    def bias(self) -> np.ndarray:
        """The last numbers of the vector: a linear layer's bias is its last parameter."""
        return self.state.inbox["model"][-3:].double().numpy()

    def own(self) -> dict[str, np.ndarray]:
        kept = self.engine.memories.by_client
        return {n: kept[n][-1][1][OWN].double().numpy() for n in self.names if n in kept}


@pytest.mark.parametrize(
    ("expression", "by"),
    [
        ("fedavg+intercepts", "examples"),
        ("fedavg(weights='uniform')+intercepts", "uniform"),
        ("fedprox(mu=0.5)+intercepts", "examples"),
        ("fedavg+fedsam+intercepts", "examples"),
        ("fedavg+intercepts+fedprox", "examples"),
    ],
)
def test_the_servers_bias_is_the_mean_of_the_sites_own(expression, by) -> None:
    clients = federation(4)
    run = Run(expression, clients)
    n = np.array([len(clients[c].train) for c in sorted(clients)], dtype=float)
    p = n / n.sum() if by == "examples" else np.full(4, 0.25)
    for _ in range(3):
        run()
        own = run.own()
        mean = sum(p_k * own[c] for p_k, c in zip(p, sorted(clients), strict=True))
        np.testing.assert_allclose(run.bias, mean, rtol=1e-4, atol=1e-6)
        for a in own:
            assert np.abs(own[a] - run.bias).max() > 1e-4


def test_under_partial_participation_it_is_the_mean_of_those_present() -> None:
    clients = federation(5)
    run = Run("fedavg(weights='uniform')+intercepts", clients, fraction=2)
    before: dict[str, np.ndarray] = {}
    for _ in range(4):
        present = run().names
        own = run.own()
        np.testing.assert_allclose(
            run.bias, np.mean([own[c] for c in present], 0), rtol=1e-4, atol=1e-6
        )
        for name, value in before.items():
            assert np.array_equal(own[name], value) == (name not in present)
        before = own


@dataclass(frozen=True)
class Spy:
    """A local that notes what it is given and moves every number by 1."""

    seen: list

    def __call__(self, model, inbox, client, memory, turn):
        self.seen.append((model.vector.clone(), inbox["model"].clone(), dict(memory)))
        model.vector.add_(1.0)
        return Reply({"model": model.vector, "buffers": model.buffers}, {"examples": 1}), memory


def test_each_round_starts_from_the_sites_own() -> None:
    """By hand: received 0, 10, 20; every round adds 1 to all of it."""
    seen: list = []
    local, client = OwnIntercepts(Spy(seen)), federation(1)["site-a"]
    model = Model(build(NET, (6,), 3, keyed("net")))
    memory: dict[str, torch.Tensor] = {"other": torch.ones(1)}
    for r in range(3):
        model.vector.fill_(10.0 * r)
        inbox = {"model": model.vector.clone(), "buffers": model.buffers}
        reply, memory = local(model, inbox, client, memory, TURN)
        started, received, theirs = seen[-1]
        assert started[-3:].tolist() == [float(r)] * 3
        assert (started[:-3] == 10.0 * r).all()
        assert torch.equal(received, started)
        assert list(theirs) == ["other"]
        assert memory[OWN].tolist() == [r + 1.0] * 3
        assert reply.rows["model"] is model.vector
        assert (inbox["model"] == 10.0 * r).all()


def test_two_rounds_written_out() -> None:
    """Full-batch steps of softmax regression, w shared and averaged, b_k each site's."""
    clients = {n: Client(n, c.train, None, 3) for n, c in federation(3).items()}
    lr = 0.1
    training = Training(SGD(lr), batch_size=1000, epochs=2)
    run = Run("fedavg(weights='uniform')+intercepts", clients, net="logistic", training=training)
    whole = run.state.inbox["model"].double().numpy().copy()
    W, b = whole[:18].reshape(3, 6), {n: whole[18:].copy() for n in clients}
    for _ in range(2):
        ends = []
        for name, client in clients.items():
            x, y = client.train.x.double().numpy(), client.train.y.numpy()
            w, own = W.copy(), b[name].copy()
            for _ in range(2):
                z = x @ w.T + own
                p = np.exp(z - z.max(1, keepdims=True))
                p /= p.sum(1, keepdims=True)
                r = (p - np.eye(3)[y]) / len(y)
                w, own = w - lr * r.T @ x, own - lr * r.sum(0)
            b[name] = own
            ends.append(w)
        W = np.mean(ends, 0)
        run()
    found = run.state.inbox["model"].double().numpy()
    np.testing.assert_allclose(found[:18].reshape(3, 6), W, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found[18:], np.mean(list(b.values()), 0), rtol=1e-3, atol=1e-5)


def softmax_steps(client, W, b, lr, pull=None, steps=2):
    """Full-batch steps, with the gradient of a penalty on W if there is one."""
    x, y = client.train.x.double().numpy(), client.train.y.numpy()
    W, b = W.copy(), b.copy()
    for _ in range(steps):
        g, h = softmax_gradient(x, y, W, b)
        W, b = W - lr * (g + (0.0 if pull is None else pull(W))), b - lr * h
    return W, b, softmax_gradient(x, y, W, b)[0]


def softmax_gradient(x, y, W, b):
    z = x @ W.T + b
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    r = (p - np.eye(3)[y]) / len(y)
    return r.T @ x, r.sum(0)


def begun(expression, lr, epochs=2):
    """A run on linear softmax regression with full batches, and its first W and own b."""
    clients = {n: Client(n, c.train, None, 3) for n, c in federation(3).items()}
    training = Training(SGD(lr), batch_size=1000, epochs=epochs)
    run = Run(expression, clients, net="logistic", training=training)
    whole = run.state.inbox["model"].double().numpy().copy()
    return run, clients, whole[:18].reshape(3, 6), {n: whole[18:].copy() for n in clients}


@pytest.mark.parametrize(
    "expression", ["exp(eps=1e-6, weights='uniform')+intercepts",
                   "fedavg(weights='uniform')+intercepts+exp(eps=1e-6)"]
)  # fmt: skip
def test_own_biases_are_no_part_of_the_spread_that_lengthens_the_step(expression) -> None:
    """FedExP's Equation 7 on W alone; b is the mean. With b in it, η would be another."""
    run, clients, W, b = begun(expression, lr=0.5)
    with_b = 0.0
    for _ in range(4):
        server = np.mean(list(b.values()), 0)
        updates, moved = [], []
        for name, client in clients.items():
            own, b[name], _ = softmax_steps(client, W, b[name], 0.5)
            updates.append(own - W)
            moved.append(b[name] - server)
        squares, mean = np.mean([(u**2).sum() for u in updates]), np.mean(updates, 0)
        eta = max(1.0, squares / (2 * ((mean**2).sum() + 1e-6)))
        W = W + eta * mean
        whole = squares + np.mean([(m**2).sum() for m in moved])
        length = (mean**2).sum() + (np.mean(moved, 0) ** 2).sum()
        with_b = max(with_b, abs(max(1.0, whole / (2 * (length + 1e-6))) - eta))
        weights = run().weights["model"].numpy()
        np.testing.assert_allclose(weights[1:], eta / 3, rtol=1e-4)
        np.testing.assert_allclose(weights[0], 1 / 3, rtol=1e-12)
    assert eta > 1.05
    assert with_b > 0.05
    found = run.state.inbox["model"].double().numpy()
    np.testing.assert_allclose(found[:18].reshape(3, 6), W, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[18:], np.mean(list(b.values()), 0), rtol=1e-3, atol=1e-4)


def test_random_effects_are_those_of_the_shared_weights() -> None:
    run, clients, W, b = begun("random-effects+intercepts", lr=0.5)
    updates = [softmax_steps(c, W, b[n], 0.5)[0] - W for n, c in clients.items()]
    rows = torch.from_numpy(np.stack([u.ravel() for u in updates]))
    examples = torch.tensor([float(len(c.train)) for c in clients.values()])
    rule = RandomEffects()
    expected = rule(rows, {"examples": examples}, rule.init(3, 18))[2]
    weights = run().weights["model"]
    torch.testing.assert_close(weights, expected.expand(3, 3), rtol=1e-3, atol=1e-5)


def test_own_biases_are_not_held_by_the_curvature_of_the_others() -> None:
    """FedCurv with a penalty on W: g_i + 2λ Σ_{j≠i} F_j (W − W_j), F_j = g_j² at W_j, b_j."""
    lam, lr = 20.0, 0.3
    run, clients, W, b = begun(f"fedcurv(lam={lam})+intercepts", lr)
    n = np.array([len(c.train) for c in clients.values()], dtype=float)
    before: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for _ in range(3):
        after, ends = {}, []
        for name, client in clients.items():
            others = [v for other, v in before.items() if other != name]

            def pull(at, others=others):
                return 2 * lam * sum(F * (at - w) for F, w in others)

            own, b[name], g = softmax_steps(client, W, b[name], lr, pull if others else None)
            after[name] = g**2, own
            ends.append(own)
        W, before = np.einsum("k,kij->ij", n / n.sum(), np.stack(ends)), after
        run()
    found = run.state.inbox["model"].double().numpy()
    server = sum(p * own for p, own in zip(n / n.sum(), b.values(), strict=True))
    np.testing.assert_allclose(found[:18].reshape(3, 6), W, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[18:], server, rtol=1e-3, atol=1e-4)
    assert not run.state.inbox["fisher"][18:].any() and run.state.inbox["fisher"][:18].all()


def test_one_site_alone_is_the_method_itself() -> None:
    clients = federation(1)
    a, b = (
        played(e, clients, rounds=3).state.inbox["model"] for e in ("fedavg", "fedavg+intercepts")
    )
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


# --- data on which it must win ----------------------------------------------------------------


def prevalences(seed: int, count: int = 6, n: int = 250) -> tuple[dict[str, Client], np.ndarray]:
    """logit P(y) = x·w + b_k; where there are more cases, x is lower for another reason."""
    rng = np.random.default_rng(seed)
    w, clients = np.array([1.0, 1.0, -1.0]), {}
    for k in range(count):
        b = 3.0 * (2 * k / (count - 1) - 1)
        x = rng.normal(size=(n, 3)) - 0.5 * b * np.array([1.0, 0.0, 0.0])
        y = rng.uniform(size=n) < 1 / (1 + np.exp(-(x @ w + b)))
        name = f"site-{k}"
        clients[name] = Client(
            name, Split(torch.tensor(x).float(), torch.tensor(y).long()), None, 2
        )
    return clients, w


@pytest.mark.parametrize("seed", range(4))
def test_where_prevalence_differs_shared_weights_are_better(seed) -> None:
    """The weights' error, and the log loss at a new site under the intercept that fits it best."""
    clients, w = prevalences(seed)
    training = Training(SGD(0.3), batch_size=50)
    rng = np.random.default_rng(99)
    x = rng.normal(size=(4000, 3))
    y = rng.uniform(size=4000) < 1 / (1 + np.exp(-(x @ w - 1.0)))
    error, loss = {}, {}
    for expression in ("fedavg", "fedavg+intercepts"):
        run = played(
            expression, clients, rounds=40, net="mlp(widths=[], logits=1)", training=training
        )
        found = run.state.inbox["model"].double().numpy()[:3]
        error[expression] = np.linalg.norm(found - w)
        z = (x @ found)[:, None] + np.linspace(-4, 4, 161)
        each = np.logaddexp(0, np.where(y[:, None], -z, z)).mean(0)
        loss[expression] = each.min()
    assert error["fedavg+intercepts"] < 0.5 * error["fedavg"]
    assert loss["fedavg+intercepts"] < loss["fedavg"] - 0.02


# --- bad input, and what it refuses -----------------------------------------------------------


def test_awkward_sites_are_defined() -> None:
    """A site of one class, whose own bias grows; one row of each class; one row; constant x."""
    whole = federation(1)["site-a"].train
    x = whole.x.clone()
    x[:, 2] = 7.0
    rows = [int((whole.y == c).nonzero()[0]) for c in range(3)]
    splits = {
        "one-class": Split(x[whole.y == 1], whole.y[whole.y == 1]),
        "two-classes": Split(x[whole.y != 0], whole.y[whole.y != 0]),
        "one-each": Split(x[rows], whole.y[rows]),
        "one-row": Split(x[:1], whole.y[:1]),
        "whole": Split(x, whole.y),
    }
    clients = {name: Client(name, split, None, 3) for name, split in splits.items()}
    run = Run("fedavg+intercepts", clients)
    for _ in range(4):
        run()
    assert np.isfinite(run.bias).all()
    own = run.own()
    assert all(np.isfinite(b).all() for b in own.values())
    assert own["one-class"][1] > run.bias[1]


def test_numbers_to_predict_have_intercepts_too() -> None:
    clients = {
        n: Client(n, Split(c.train.x, c.train.x[:, 0] + 5.0 * k), None, None)
        for k, (n, c) in enumerate(federation(3).items())
    }
    training = Training(SGD(0.02), batch_size=8, loss=SquaredError(), epochs=3)
    run = Run("fedavg+intercepts", clients, net="logistic", training=training)
    for _ in range(15):
        run()
    own = [float(b[-1]) for b in run.own().values()]
    assert own == sorted(own)
    assert own[2] - own[0] > 5


class Bare(nn.Module):
    """A net whose head has no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 3, bias=False)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def test_a_head_without_a_bias_is_refused() -> None:
    model, client = Model(Bare()), federation(1)["site-a"]
    with pytest.raises(UnseenError, match="bias of the last layer, and 'head' has none"):
        OwnIntercepts(Spy([]))(model, {"model": model.vector}, client, {}, TURN)
    memory = OwnIntercepts(Spy([]), head="body")(
        model, {"model": model.vector, "buffers": model.buffers}, client, {}, TURN
    )[1]
    assert memory[OWN].shape == (4,)


@pytest.mark.parametrize("base", ["fedsgd", "geometric", "fishr", "fedilc-inter", "glm", "boost"])
def test_a_method_whose_sites_do_not_train_a_model_is_refused(base) -> None:
    """Where a site sends a gradient at the received model, no bias of its own would ever move."""
    with pytest.raises(UnseenError, match=rf"{base}\+intercepts cannot be: .*does not train"):
        method(f"{base}+intercepts")


def test_scaffold_is_refused() -> None:
    """g − c_i + c is the gradient of all sites: under it, all biases go the same way."""
    with pytest.raises(UnseenError, match=r"scaffold\+intercepts cannot be: .*follow one gradient"):
        method("scaffold+intercepts")


def test_the_sites_own_find_what_differs() -> None:
    """Of the intercepts −3, −1.8, ..., 3 each site's own is near its own one."""
    clients, _ = prevalences(0)
    training = Training(SGD(0.3), batch_size=50)
    run = Run("fedavg+intercepts", clients, net="mlp(widths=[], logits=1)", training=training)
    for _ in range(30):
        run()
    own = [float(b[-1]) for b in run.own().values()]
    np.testing.assert_allclose(own, np.linspace(-3, 3, 6), atol=0.9)


def test_twice_and_a_stack_are_refused() -> None:
    with pytest.raises(UnseenError, match="has its own already"):
        method("fedavg+intercepts+intercepts")
    with pytest.raises(UnseenError, match="stack holds several models"):
        method("stack+intercepts")
