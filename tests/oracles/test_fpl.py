"""FPL: clusters against sparse graphs in scipy, the loss against a loop over examples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from sklearn.metrics.pairwise import cosine_distances
from support.alone import blueprint, completed, played
from support.sites import federation

from unseen import Client, Model, Split, Training, method
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.methods.fpl import (
    PROTOTYPES,
    Clusters,
    PrototypeContrast,
    WithPrototypes,
    finch,
)
from unseen.methods.gradient import Backprop


def by_graphs(points: np.ndarray) -> np.ndarray:
    """FINCH as its paper prints it: A(i, j) = 1 if j = κ_i, κ_j = i or κ_i = κ_j; components."""

    def partition(rows: np.ndarray) -> np.ndarray:
        apart = cosine_distances(rows)
        np.fill_diagonal(apart, np.inf)
        kappa = apart.argmin(1) if len(rows) > 1 else np.zeros(1, int)
        i = np.arange(len(rows))
        link = (kappa[:, None] == i) | (kappa == i[:, None]) | (kappa[:, None] == kappa)
        return connected_components(csr_matrix(link), directed=False)[1]

    partitions = [partition(points)]
    while partitions[-1].max() > 0:
        last = partitions[-1]
        means = np.stack([points[last == j].mean(0) for j in range(last.max() + 1)])
        partitions.append(partition(means)[last])
    several = [p for p in partitions if p.max() > 0]
    return several[-1] if several else partitions[0]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 13, 40, 200])
def test_clusters_are_those_of_the_papers_graph(n: int) -> None:
    for seed in range(20):
        points = torch.randn(n, 5, generator=keyed(f"finch/{n}/{seed}"), dtype=torch.float64)
        ours, theirs = finch(points).numpy(), by_graphs(points.numpy())
        assert ((ours[:, None] == ours) == (theirs[:, None] == theirs)).all()


def test_clusters_of_separate_directions_are_found() -> None:
    centres = torch.eye(3, dtype=torch.float64).repeat_interleave(5, 0)
    points = centres + 0.01 * torch.rand(15, 3, generator=keyed("directions"))
    labels = finch(points)
    # Each direction splits no further than its own; no cluster mixes two.
    assert all(len(set(centres[labels == j].argmax(1).tolist())) == 1 for j in labels.unique())


def test_the_server_clusters_class_by_class() -> None:
    """Four clients, d = 2, two classes; the second at two clients only, so one cluster."""
    nothing = [0.0, 0.0, 0.0]
    rows = torch.tensor([
        [1.0, 0.0, 1.0, 4.0, 4.0, 1.0],
        [1.0, 0.2, 1.0, *nothing],
        [0.0, 1.0, 1.0, *nothing],
        [0.2, 1.0, 1.0, 2.0, 0.0, 1.0],
    ])  # fmt: skip
    table = {"client": torch.tensor([0.0, 1.0, 2.0, 3.0])}
    old = torch.full((5, 6), 7.0)
    entry, _ = Clusters(2)(old, rows, {}, table)
    expected = torch.tensor([
        [1.0, 0.1, 1.0, 3.0, 2.0, 1.0],
        [0.1, 1.0, 1.0, *nothing],
        [*nothing, *nothing], [*nothing, *nothing], [*nothing, *nothing],
    ])  # fmt: skip
    torch.testing.assert_close(entry, expected)
    assert bool((old == 7).all())


@pytest.mark.parametrize("scale", ["mean", "sum"])
def test_a_step_is_the_gradient_of_the_papers_objective(scale: str) -> None:
    draws = keyed("fpl")
    x, y = torch.randn(9, 6, generator=draws), torch.randint(3, (9,), generator=draws)
    model = Model(build("mlp(widths=[4])", (6,), 3, keyed("net")), shape=(6,))
    clusters = torch.randn(4, 3, 5, generator=draws)
    clusters[..., -1] = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0]])
    clusters[..., :-1] *= clusters[..., -1:]
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone(),
             PROTOTYPES: clusters.flatten(1)}  # fmt: skip
    client = Client("site-a", Split(x, y), None, 3)
    gradient = PrototypeContrast(Backprop(), 0.5, contrast=0.7, pull=0.3, scale=scale)
    turn = Turn(seed=0, round=1, rounds=2, exchange="train", client="site-a")
    with gradient.open(model, inbox, client, {}, turn) as step:
        value = step(x, y)

    vector = inbox["model"].clone().requires_grad_()
    seen: list[torch.Tensor] = []
    head = [m for m in model.module.modules() if isinstance(m, torch.nn.Linear)][-1]
    with head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
        total = F.cross_entropy(model.at(vector, x), y)
    sets = {k: [c[:-1] for c in clusters[:, k] if c[-1]] for k in range(3)}
    for z, k in zip(seen[0], y.tolist(), strict=True):
        if not sets[k]:
            continue
        near = sum(torch.exp(F.cosine_similarity(z, c, dim=0) / 0.5) for c in sets[k])
        every = sum(torch.exp(F.cosine_similarity(z, c, dim=0) / 0.5)
                    for one in sets.values() for c in one)  # fmt: skip
        unbiased = sum(sets[k]) / len(sets[k])
        pull = ((z - unbiased) ** 2).sum() / (4 if scale == "mean" else 1)
        total = total + (-0.7 * torch.log(near / every) + 0.3 * pull) / len(y)
    expected = torch.autograd.grad(total, vector)[0]
    torch.testing.assert_close(model.gradient, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(value, total.detach())


def test_clients_send_the_mean_features_of_their_classes() -> None:
    clients = federation(2)
    run = played("fpl(least=3)", clients, 1)
    client, model = clients["site-a"], run.model
    width = (run.state.inbox[PROTOTYPES].shape[1]) // 3
    row = WithPrototypes(Backprop(), least=10).class_means(model, client, 3 * width).view(3, width)
    head = [m for m in model.module.modules() if isinstance(m, torch.nn.Linear)][-1]
    seen: list[torch.Tensor] = []
    with head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
        model(client.train.x)
    counts = torch.bincount(client.train.y)
    assert (counts < 10).any() and (counts >= 10).any()
    for k in range(3):
        own = seen[0][client.train.y == k].mean(0)
        enough = counts[k] >= 10
        torch.testing.assert_close(row[k, :-1], own if enough else torch.zeros_like(own))
        assert row[k, -1] == enough


def test_round_zero_is_fedavgs_and_later_ones_are_not() -> None:
    clients = federation(3)
    assert torch.equal(played("fpl", clients, 1).state.inbox["model"],
                       played("fedavg", clients, 1).state.inbox["model"])  # fmt: skip
    assert not torch.equal(played("fpl", clients, 2).state.inbox["model"],
                           played("fedavg", clients, 2).state.inbox["model"])  # fmt: skip
    off = played("fpl(contrast=0, pull=0)", clients, 3).state.inbox["model"]
    assert torch.equal(off, played("fedavg", clients, 3).state.inbox["model"])


def test_features_come_nearer_to_prototypes_of_their_class() -> None:
    clients = federation(3)

    def apart(expression: str) -> float:
        """UPCR of the trained model: mean squared distance from the last unbiased prototypes."""
        run = played(expression, clients, 8)
        model, rows = run.model, run.state.inbox["prototypes"].view(3, 3, 9)
        centre = rows[..., :-1].sum(0) / rows[..., -1].sum(0)[:, None]
        seen: list[torch.Tensor] = []
        head = [m for m in model.module.modules() if isinstance(m, torch.nn.Linear)][-1]
        x, y = (torch.cat([getattr(c.train, n) for c in clients.values()]) for n in "xy")
        with head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
            model(x)
        return float((seen[0] - centre[y]).square().mean())

    assert apart("fpl(pull=1, contrast=0)") < 0.5 * apart("fpl(pull=0.001, contrast=0)")


def test_the_server_knows_the_classes_before_round_zero() -> None:
    clients = federation(2)
    chosen, _ = completed(method("fpl", Training()), blueprint(clients, "mlp(widths=[8])"))
    assert chosen.exchanges[0].slots[PROTOTYPES].apply == Clusters(3)
