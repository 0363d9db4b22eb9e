"""Stacking weights against another solver, the conditions of optimality, and planted members."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from support.alone import played
from support.sites import federation

from unseen import UnseenError
from unseen.core.client import Client, Split
from unseen.methods.exact.stacking import Judge, Weigh, brier, gain, products, simplex


def problem(rng, M):
    P, y = rng.random((40, M)), rng.random(40)
    return P.T @ P / 40, P.T @ y / 40, float(y @ y / 40)


def objective(w, A, b, c, shrink):
    return w @ A @ w - 2 * b @ w + c + shrink * ((w - 1 / len(w)) ** 2).sum()


@pytest.mark.parametrize("seed", range(20))
def test_no_other_solver_finds_less(seed):
    rng = np.random.default_rng(seed)
    M, shrink = int(rng.integers(2, 9)), float(rng.choice([0.0, 0.01, 0.05]))
    A, b, c = problem(rng, M)
    w = simplex(A, b, c, shrink)
    theirs = minimize(
        objective, np.full(M, 1 / M), (A, b, c, shrink), bounds=[(0, 1)] * M, method="SLSQP",
        constraints=[{"type": "eq", "fun": lambda v: v.sum() - 1}], options={"ftol": 1e-14},
    )  # fmt: skip
    assert objective(w, A, b, c, shrink) <= theirs.fun + 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_karush_kuhn_tucker(seed):
    rng = np.random.default_rng(seed)
    A, b, c = problem(rng, 6)
    w = simplex(A, b, c, 0.02)
    slope = 2 * A @ w - 2 * b + 2 * 0.02 * (w - 1 / 6)
    level = slope[w > 1e-9].min()
    assert abs(w.sum() - 1) < 1e-12 and (w >= 0).all()
    np.testing.assert_allclose(slope[w > 1e-9], level, atol=1e-9)
    assert (slope >= level - 1e-9).all()


def test_products_give_the_brier_score():
    generator = torch.Generator().manual_seed(0)
    P = torch.rand(3, 20, 4, generator=generator).softmax(-1)
    y = torch.randint(4, (20,), generator=generator)
    w = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    mixed = (w[:, None, None] * P.double()).sum(0)
    hot = torch.nn.functional.one_hot(y, 4).double()
    expected = (mixed - hot).square().sum(1).mean()
    torch.testing.assert_close(brier(products(P, y), w), expected)


def test_a_member_that_gives_no_number_is_scored_as_a_guess():
    y = torch.tensor([0, 1, 1, 0])
    P = torch.stack([torch.full((4, 2), torch.nan), torch.eye(2)[y]])
    row = products(P, y)
    torch.testing.assert_close(brier(row, torch.tensor([1.0, 0.0])).item(), 0.5)
    weights, _ = Weigh(0.0)(torch.full((2,), 0.5), torch.cat([row, row.new_ones(1)]), {}, {})
    torch.testing.assert_close(weights, torch.tensor([0.0, 1.0]))
    numbers = products(torch.full((1, 3, 1), torch.inf), torch.tensor([1.0, 2.0, 3.0]))
    assert torch.isfinite(numbers).all()


@pytest.mark.parametrize(
    ("gains", "kept"),
    [
        ([0.1, 0.12, 0.11], True),
        ([0.1, -0.1, 0.02], False),
        ([-0.1] * 3, False),
        ([0.2, 0.0, -0.02], False),
    ],
)
def test_equal_weights_unless_better_by_a_standard_error(gains, kept):
    d = torch.tensor(gains, dtype=torch.float64)
    row = torch.stack([d.sum(), (d * d).sum(), torch.tensor(3.0).double()])
    assert (d.mean() > d.std() / 3**0.5).item() == kept  # what the sum must say
    weights, _ = Judge()(torch.tensor([0.9, 0.1]), row, {}, {})
    expected = [0.9, 0.1] if kept else [0.5, 0.5]
    torch.testing.assert_close(weights, torch.tensor(expected))


@pytest.mark.parametrize("seed", range(6))
def test_every_site_judges_the_weights_of_the_others_by_a_loop(seed):
    clients = federation(5, n=20, seed=seed)
    run = played("stack(members=['glm', 'fedavg', 'boost(trees=1)'], groups=5)", clients)
    A, b, c = [], [], []
    for k, (_, client) in enumerate(sorted(clients.items())):
        y = np.eye(3)[client.train.y.numpy()].ravel()
        with torch.no_grad():
            nets = [run.model.module.others[5 * m + k] for m in range(3)]
            P = [net(client.train.x).double().softmax(-1).numpy().ravel() for net in nets]
        P, n = np.stack(P, 1), len(client.train)
        A, b, c = [*A, P.T @ P / n], [*b, P.T @ y / n], [*c, y @ y / n]
    gains = []
    for k in range(5):
        rest = [j for j in range(5) if j != k]
        w = simplex(*(np.mean([sums[j] for j in rest], axis=0) for sums in (A, b, c)), 0.05)
        at = [v @ A[k] @ v - 2 * b[k] @ v + c[k] for v in (np.full(3, 1 / 3), w)]
        gains.append(at[0] - at[1])
    better = np.mean(gains) > np.std(gains, ddof=1) / 5**0.5
    whole = simplex(*(np.mean(sums, axis=0) for sums in (A, b, c)), 0.05)
    expected = torch.tensor(whole if better else np.full(3, 1 / 3)).float()
    torch.testing.assert_close(run.model.module.weights.detach(), expected, atol=1e-5, rtol=0)


def test_identical_members_have_equal_weights():
    run = played("stack(members=['glm', 'glm', 'glm'])", federation(4))
    torch.testing.assert_close(run.model.module.weights.detach(), torch.full((3,), 1 / 3))


def test_a_member_that_is_right_everywhere_has_all_the_weight():
    clients = {}
    for k in range(5):  # the classes are a line apart: the linear model is right, three stumps not
        generator = torch.Generator().manual_seed(k)
        x = torch.randn(120, 6, generator=generator)
        clients[f"s{k}"] = Client(f"s{k}", Split(x, (x.sum(1) > 0).long()), None, 2)
    members = "['glm(ridge=0.01)', 'boost(trees=3, depth=1)']"
    run = played(f"stack(members={members}, shrink=0)", clients)
    assert float(run.model.module.weights[0]) > 0.99


def test_the_mixture_is_the_weighted_mean_of_probabilities():
    clients = federation(4)
    run = played("stack(members=['glm', 'fedavg'])", clients)
    module, x = run.model.module, clients["site-a"].train.x
    with torch.no_grad():
        p = torch.stack([m(x).softmax(-1) for m in module.members])
        expected = (module.weights[:, None, None] * p).sum(0)
        torch.testing.assert_close(module(x).softmax(-1), expected)


def test_a_site_has_no_part_in_the_models_that_predict_it():
    clients = federation(4)
    name = sorted(clients)[1]
    other = Split(-3 * clients[name].train.x, clients[name].train.y.flip(0))
    poisoned = {**clients, name: Client(name, other, None, 3)}
    a, b = (played("stack(members=['glm', 'fedavg'], groups=4)", c) for c in (clients, poisoned))
    for m in range(2):
        for g in range(4):
            part = a.model.layout.part(f"others.{4 * m + g}")
            same = torch.equal(a.state.inbox["model"][part], b.state.inbox["model"][part])
            assert same == (g == 1)


def test_a_fold_is_the_federation_of_the_other_sites():
    clients = federation(4)
    run = played("stack(members=['fedavg', 'glm'], groups=2)", clients)
    part = run.model.layout.part("others.0")  # without the sites at places 0 and 2
    others = {n: c for i, (n, c) in enumerate(sorted(clients.items())) if i % 2}
    alone = played("fedavg", others)
    torch.testing.assert_close(run.state.inbox["model"][part], alone.state.inbox["model"])


def test_one_source_site_is_refused():
    clients = dict(list(federation(2).items())[:1])
    with pytest.raises(UnseenError, match="one only"):
        played("stack(members=['glm', 'fedavg'])", clients)


def test_fewer_than_two_members_are_refused():
    with pytest.raises(UnseenError, match="two or more methods"):
        played("stack(members=['glm'])", federation(2))


def test_one_other_site_is_enough_to_judge_by():
    """Its weights are all on the member that is right there, which is wrong here."""
    y = torch.tensor([0, 1, 1, 0])
    right, wrong = torch.eye(2)[y], torch.eye(2)[1 - y]
    here, there = products(torch.stack([wrong, right]), y), products(torch.stack([right, wrong]), y)
    found = gain(here, torch.cat([there, there.new_ones(1)]), 0.0)
    assert float(found) == pytest.approx(0.5 - 2.0)  # Brier of halves less that of the wrong one
