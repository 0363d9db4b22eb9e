"""CORAL between clients against autograd of the penalty on pooled data, pair by pair."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.alone import RECIPE, played
from support.sites import federation

from unseen import UnseenError, method


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Mean square of the differences of means, and of covariances with n − 1."""
    gap = (a.mean(0) - b.mean(0)).square().mean()
    return gap + (torch.cov(a.T) - torch.cov(b.T)).square().mean()


@pytest.mark.parametrize("expression", ["coral(lam=4.0)", "fedsgd+coral(lam=4.0)"])
def test_a_round_descends_the_pooled_penalty(expression) -> None:
    clients = federation(4)
    found = played(expression, clients, 1).state.inbox["model"]
    model = played("fedsgd", clients, 0).model
    layers = [m for m in model.module.modules() if not list(m.children())]
    features, total = [], torch.zeros(())
    for c in clients.values():
        z = c.train.x
        for layer in layers[:-1]:
            z = layer(z)
        features.append(z)
        total = total + F.cross_entropy(layers[-1](z), c.train.y) / 4
    pairs = sum(distance(a, b) for a in features for b in features)
    model.gradient.zero_()
    (total + 4.0 * pairs / (2 * 4**2)).backward()
    lr = RECIPE.optimiser.lr
    torch.testing.assert_close(found, model.vector - lr * model.gradient, rtol=1e-4, atol=2e-6)
    plain = played("fedsgd", clients, 1).state.inbox["model"]
    assert float((found - plain).norm()) > 1e-3


def test_lambda_0_and_a_warmup_are_fedsgd() -> None:
    clients = federation(3)
    base = played("fedsgd", clients, 2).state.inbox["model"]
    for expression in ("coral(lam=0)", "coral(warmup=5)"):
        assert torch.equal(base, played(expression, clients, 2).state.inbox["model"])


def test_refusals() -> None:
    with pytest.raises(UnseenError, match="all clients. gradients at one model"):
        method("fedavg+coral")
    for expression in ("fishr+coral", "coral+fishr", "fishr+fishr"):
        with pytest.raises(UnseenError, match="has a penalty between its clients already"):
            method(expression)
    with pytest.raises(UnseenError, match="narrower last layer"):
        played("coral", federation(2), 1, net="mlp(widths=[1025])")
