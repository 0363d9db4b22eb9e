"""mixup against the mixed loss under autograd, and its λ against scipy's Beta distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from support import literal
from support.alone import played
from support.sites import federation

from unseen import Client, Model, Split, UnseenError, method
from unseen.core.losses import CrossEntropy, SquaredError
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.mixup import Mixup, beta

TURN = Turn(seed=3, round=1, rounds=4, exchange="train", client="site-a")


def data(kind: str, n: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    draws = keyed(f"mixup/{kind}")
    x = torch.randn(n, 5, generator=draws, dtype=torch.float64)
    if kind == "numbers":
        return x, torch.randn(n, generator=draws, dtype=torch.float64)
    return x, torch.randint(2 if kind == "logit" else 3, (n,), generator=draws)


def each(kind: str, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """ℓ of every row."""
    if kind == "numbers":
        return (outputs[:, 0] - y) ** 2
    if kind == "logit":
        return F.binary_cross_entropy_with_logits(outputs[:, 0], y.double(), reduction="none")
    return -outputs.log_softmax(1)[torch.arange(len(y)), y]


def net(kind: str) -> torch.nn.Module:
    outputs = {"classes": 3, "logit": 1, "numbers": 1}[kind]
    return build("mlp(widths=[7])", (5,), outputs, keyed("mixup/net")).double()


@pytest.mark.parametrize("kind", ["classes", "logit", "numbers"])
@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_the_gradient_of_the_mixed_loss(kind, alpha) -> None:
    """The same draws: for each batch one λ, then one permutation of the batch."""
    module = net(kind)
    other = net(kind)
    model, (x, y) = Model(module), data(kind)
    client = Client("site-a", Split(x, y), None, None if kind == "numbers" else 3)
    loss = SquaredError() if kind == "numbers" else CrossEntropy()
    draws, shares = TURN.generator("mixup"), []
    with Mixup(Backprop(loss), alpha).open(model, {}, client, {}, TURN) as step:
        for _ in range(5):
            value = step(x, y)
            share = beta(alpha, draws)
            order = torch.randperm(len(y), generator=draws)
            shares.append(share)
            outputs = other(share * x + (1 - share) * x[order])
            expected = (
                share * each(kind, outputs, y) + (1 - share) * each(kind, outputs, y[order])
            ).mean()
            grads = torch.autograd.grad(expected, list(other.parameters()))
            flat = torch.cat([g.flatten() for g in grads])
            torch.testing.assert_close(model.gradient, flat, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=1e-12)
    assert len(set(shares)) == 5


def test_for_classes_it_is_the_loss_of_mixed_labels() -> None:
    """Cross-entropy is linear in the label: the paper's own form, of one-hot labels."""
    model, (x, y) = Model(net("classes")), data("classes")
    other, draws = net("classes"), TURN.generator("mixup")
    client = Client("site-a", Split(x, y), None, 3)
    with Mixup(Backprop(), 1.0).open(model, {}, client, {}, TURN) as step:
        value = step(x, y)
    share = beta(1.0, draws)
    order = torch.randperm(len(y), generator=draws)
    hot = F.one_hot(y, 3).double()
    soft = share * hot + (1 - share) * hot[order]
    logits = other(share * x + (1 - share) * x[order])
    torch.testing.assert_close(value, -(soft * logits.log_softmax(1)).sum(1).mean().detach())


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 1.0, 2.0, 32.0])
def test_lambda_is_drawn_from_beta(alpha) -> None:
    generator = literal.seeded(11)
    found = np.array([beta(alpha, generator) for _ in range(4000)])
    assert ((found >= 0) & (found <= 1)).all()
    # Folded at 1/2, which the law's symmetry allows: near 1 a float64 has no room left.
    near = np.minimum(found, 1 - found)
    law = stats.beta(alpha, alpha)
    assert stats.kstest(near, lambda v: 2 * law.cdf(v)).pvalue > 1e-3
    assert stats.binomtest(int((found < 0.5).sum()), len(found)).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [1e-2, 1e-3, 1e-6, 1e-320])
def test_a_small_alpha_leaves_one_of_the_two_examples(alpha) -> None:
    """Beta(α, α) tends to 0 or 1, half each, where gamma variates are too small for a float."""
    generator = literal.seeded(5)
    found = np.array([beta(alpha, generator) for _ in range(1000)])
    between = 1 - 2 * stats.beta(alpha, alpha).cdf(0.01) if alpha > 1e-300 else 0.0
    assert ((found > 0.01) & (found < 0.99)).mean() <= between + 0.02
    assert stats.binomtest(int((found < 0.5).sum()), len(found)).pvalue > 1e-3


def test_a_large_alpha_mixes_halves() -> None:
    generator = literal.seeded(6)
    found = np.array([beta(1e6, generator) for _ in range(200)])
    assert abs(found - 0.5).max() < 0.003  # a standard deviation is 0.00035


@pytest.mark.parametrize("base", ["fedavg", "fedprox", "scaffold", "fedsgd", "ppdg"])
def test_an_alpha_of_0_is_the_method_bit_for_bit(base) -> None:
    clients = federation(3)
    plain, zero, mixed = (
        played(f"{base}{more}", clients, rounds=2).state.inbox["model"]
        for more in ("", "+mixup(alpha=0)", "+mixup")
    )
    assert torch.equal(plain, zero)
    assert not torch.equal(plain, mixed)


def test_no_batch_client_or_round_shares_its_draws() -> None:
    first = beta(1.0, TURN.generator("mixup"))
    for other in (
        Turn(3, 2, 4, "train", "site-a"),
        Turn(3, 1, 4, "train", "site-b"),
        Turn(4, 1, 4, "train", "site-a"),
    ):
        assert beta(1.0, other.generator("mixup")) != first


def test_a_batch_of_one_is_left_as_it_is() -> None:
    model, other = Model(net("classes")), Model(net("classes"))
    x, y = data("classes", 1)
    client = Client("site-a", Split(x, y), None, 3)
    with Mixup(Backprop()).open(model, {}, client, {}, TURN) as step:
        value = step(x, y)
    with Backprop().open(other, {}, client, {}, TURN) as step:
        assert torch.equal(step(x, y), value)
    assert torch.equal(model.gradient, other.gradient)


def test_sites_with_too_little_data_train_to_finite_numbers() -> None:
    """One class, one row of each class, one row in all, and constant columns."""
    whole = federation(1)["site-a"].train
    x = whole.x.clone()
    x[:, 2] = 7.0
    rows = [int((whole.y == c).nonzero()[0]) for c in range(3)]
    splits = {
        "one-class": Split(x[whole.y == 1], whole.y[whole.y == 1]),
        "one-each": Split(x[rows], whole.y[rows]),
        "one-row": Split(x[:1], whole.y[:1]),
        "whole": Split(x, whole.y),
    }
    clients = {name: Client(name, split, None, 3) for name, split in splits.items()}
    run = played("fedavg+mixup(alpha=1.0)", clients, rounds=3)
    assert bool(torch.isfinite(run.state.inbox["model"]).all())


@pytest.mark.parametrize("alpha", [-0.1, math.nan, math.inf])
def test_an_alpha_that_is_no_number_above_0_is_refused(alpha) -> None:
    with pytest.raises(UnseenError, match=r"mixup\(alpha\)"):
        Mixup(Backprop(), alpha)


def test_it_goes_with_whatever_descends_a_gradient() -> None:
    assert method("ppdg+ga+fedsam+mixup").name == "ppdg+ga+fedsam+mixup"
    with pytest.raises(UnseenError, match=r"glm"):
        method("glm+mixup")
