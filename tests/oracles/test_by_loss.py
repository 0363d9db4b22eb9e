"""AFL, GroupDRO, V-REx and q-FFL: the papers' formulas in numpy, and pooled objectives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support import literal
from support.alone import played
from support.sites import federation

from unseen import Training, UnseenError, method
from unseen.core.optimiser import SGD
from unseen.methods.base import model_rule
from unseen.methods.combine import Agnostic, GroupDRO, Mean, QFair


def scalars(losses, examples=None, client=None):
    table = {"received_loss": torch.tensor(losses, dtype=torch.float64)}
    table["examples"] = torch.ones(len(losses)) if examples is None else torch.tensor(examples)
    return table if client is None else table | {"client": torch.tensor(client)}


def nearest_on_simplex(v):
    """By bisection for θ with Σ max(v − θ, 0) = 1."""
    low, high = min(v) - 1, max(v)
    for _ in range(200):
        middle = (low + high) / 2
        if sum(max(x - middle, 0) for x in v) > 1:
            low = middle
        else:
            high = middle
    return [max(x - low, 0) for x in v]


@pytest.mark.parametrize("step", [0.01, 0.3, 5.0])
@pytest.mark.parametrize("count", [1, 2, 5, 13])
def test_afl_over_rounds(count, step) -> None:
    """λ of the round before weighs this round's updates; then it ascends and is projected."""
    rng, rule = np.random.default_rng(count), Agnostic(step=step)
    lam, state = [1 / count] * count, rule.init(count, 1)
    for _ in range(6):
        losses = rng.exponential(size=count).tolist()
        weights, state = rule.weights(scalars(losses), state)
        np.testing.assert_allclose(weights, lam, atol=1e-9)
        lam = nearest_on_simplex([a + step * b for a, b in zip(lam, losses, strict=True)])


def test_afl_of_those_present() -> None:
    rule = Agnostic(step=1.0)
    _, state = rule.weights(scalars([0.0, 9.0], client=[0, 2]), rule.init(3, 1))
    np.testing.assert_allclose(state["mixture"], [0, 0, 1], atol=1e-12)
    weights, state = rule.weights(scalars([0.0, 0.0], client=[0, 1]), state)
    np.testing.assert_allclose(weights, [0.5, 0.5])  # λ leaves them nothing
    np.testing.assert_allclose(state["mixture"], [0, 0, 1], atol=1e-12)


@pytest.mark.parametrize("adjustment", [0.0, 2.0])
@pytest.mark.parametrize("step", [0.01, 1.0])
def test_groupdro_over_rounds(step, adjustment) -> None:
    """Algorithm 1: q' = q exp(η loss), normalised, and only then the step of the model."""
    rng, rule, n = np.random.default_rng(3), GroupDRO(step, adjustment), [10.0, 200.0, 35.0, 5.0]
    q, state = [0.25] * 4, rule.init(4, 1)
    for _ in range(6):
        losses = rng.exponential(size=4).tolist()
        q = [a * math.exp(step * (b + adjustment / math.sqrt(m)))
             for a, b, m in zip(q, losses, n, strict=True)]  # fmt: skip
        q = [a / math.fsum(q) for a in q]
        weights, state = rule.weights(scalars(losses, n), state)
        np.testing.assert_allclose(weights, q, rtol=1e-10)


def test_groupdro_of_huge_losses_is_the_worst_client() -> None:
    rule = GroupDRO(step=10.0)
    weights, _ = rule.weights(scalars([1e300, 1e299, 0.0]), rule.init(3, 1))
    assert weights.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("beta", [0.0, 1.0, 50.0])
@pytest.mark.parametrize("by", ["uniform", "examples"])
def test_vrex_is_the_gradient_of_the_pooled_objective(beta, by) -> None:
    """One round of fedsgd+vrex against autograd of Σ p_i L_i + β Σ p_i (L_i − L̄)²."""
    training = Training(SGD(0.05), batch_size=8)
    clients = federation(4)
    run = played(f"fedsgd(weights='{by}')+vrex(beta={beta})", clients, 1, training=training)
    before = played("fedsgd", clients, rounds=0).model
    n = torch.tensor([float(len(c.train)) for c in clients.values()])
    p = n / n.sum() if by == "examples" else torch.full((4,), 0.25)
    losses = torch.stack([F.cross_entropy(before(c.train.x), c.train.y) for c in clients.values()])
    mean = (p * losses).sum()
    objective = mean + beta * (p * (losses - mean) ** 2).sum()
    before.gradient.zero_()
    objective.backward()
    expected = before.vector - 0.05 * before.gradient
    torch.testing.assert_close(run.state.inbox["model"], expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("step", [0.01, 1.0])
@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 5.0])
def test_q_fedavg_line_by_line(q, step) -> None:
    """Algorithm 2: Δw_k = L (w − w_k), Δ_k = F^q Δw_k, h_k = q F^(q−1) ‖Δw_k‖² + L F^q."""
    rows, losses = literal.gradients(4, 5), [0.3, 2.0, 1.0, 0.01, 5.0]
    L, top, bottom = 1 / step, 0.0, 0.0
    for u, loss in zip(rows, losses, strict=True):
        moved = -L * u
        top = top + loss**q * moved
        bottom += q * loss ** (q - 1) * float(moved @ moved) + L * loss**q
    rule = QFair(q=q, step=step, prior=Mean("uniform"))
    vector, _, _ = rule(torch.tensor(rows), scalars(losses), rule.init(5, 40))
    np.testing.assert_allclose(vector, -top / bottom, rtol=1e-6)


def test_q_of_zero_is_fedavg_and_its_step_is_the_learning_rate() -> None:
    clients = federation(3)
    plain, fair = played("fedavg", clients, 2), played("qffl(q=0)", clients, 2)
    torch.testing.assert_close(fair.state.inbox["model"], plain.state.inbox["model"])
    own = played("qffl(q=2, step=0.05)", clients, 2).state.inbox["model"]
    assert torch.equal(own, played("qffl(q=2)", clients, 2).state.inbox["model"])
    assert torch.equal(own, played("fedavg+qffl(q=2)", clients, 2).state.inbox["model"])
    assert not torch.equal(own, played("qffl(q=2, step=1)", clients, 2).state.inbox["model"])


@pytest.mark.parametrize("name", ["afl(step=1)", "groupdro(step=1)", "qffl(q=5, step=100)"])
def test_the_worst_client_ends_better_than_under_fedavg(name) -> None:
    clients = federation(3)
    hard = clients["site-c"].train
    hard.y.copy_((hard.y + 1) % 3)  # its labels are turned, so that one model cannot serve all

    def worst(expression: str) -> float:
        model = played(expression, clients, 30).model
        losses = [F.cross_entropy(model(c.train.x), c.train.y) for c in clients.values()]
        return float(max(losses))

    assert worst(f"fedavg(weights='uniform')+{name}") < worst("fedavg(weights='uniform')")


def test_what_owns_the_weights_refuses_another_owner() -> None:
    for expression in ("arfl+afl", "afl+groupdro", "fedavg+ga+afl"):
        with pytest.raises(UnseenError, match="already"):
            method(expression)
    with pytest.raises(UnseenError, match="both own the weights"):
        method("groupdro+ga")
    with pytest.raises(UnseenError, match="one gradient"):
        method("fedsgd+qffl")
    for expression in ("scaffold+afl", "afl+ppdg", "vrex+ga", "fedsgd+groupdro", "arfl+qffl"):
        assert "received_loss" in model_rule(method(expression)).all_needs()
