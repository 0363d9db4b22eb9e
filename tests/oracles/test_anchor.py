"""The anchor penalty against autograd of loss and penalty, and against anchor regression itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.alone import played
from support.sites import federation

from unseen import Client, Model, Split, Training, UnseenError
from unseen.core.losses import CrossEntropy, SquaredError
from unseen.core.optimiser import SGD
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.anchor import Anchored
from unseen.methods.gradient.proximal import Proximal

TURN = Turn(seed=0, round=0, rounds=2, exchange="train", client="site-a")
OUTPUTS = {"classes": 4, "two-classes": 2, "logit": 1, "numbers": 1}


def data(kind: str, n: int = 11) -> tuple[torch.Tensor, torch.Tensor]:
    draws = keyed(f"anchor/{kind}")
    x = torch.randn(n, 5, generator=draws, dtype=torch.float64)
    if kind == "numbers":
        return x, 3 + torch.randn(n, generator=draws, dtype=torch.float64)
    return x, torch.randint(max(2, OUTPUTS[kind]), (n,), generator=draws)


def net(kind: str) -> torch.nn.Module:
    return build("mlp(widths=[7])", (5,), OUTPUTS[kind], keyed("anchor/net")).double()


def written_out(kind: str, z: torch.Tensor, y: torch.Tensor, lam: float) -> torch.Tensor:
    """Mean loss + λ Σ_c (mean over rows of p_c − 1[y = c])², row by row and class by class."""
    n = len(y)
    if kind == "numbers":
        residuals = [[z[i, 0] - y[i]] for i in range(n)]
        losses = [(z[i, 0] - y[i]) ** 2 for i in range(n)]
    elif kind == "logit":
        p = 1 / (1 + torch.exp(-z[:, 0]))
        residuals = [[p[i] - float(y[i])] for i in range(n)]
        losses = [-torch.log(p[i] if y[i] else 1 - p[i]) for i in range(n)]
    else:
        p = torch.exp(z) / torch.exp(z).sum(1, keepdim=True)
        C = z.shape[1]
        residuals = [[p[i, c] - float(y[i] == c) for c in range(C)] for i in range(n)]
        losses = [-torch.log(p[i, int(y[i])]) for i in range(n)]
    mean = [sum(r[c] for r in residuals) / n for c in range(len(residuals[0]))]
    return sum(losses) / n + lam * sum(m * m for m in mean)


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("lam", [0.0, 0.5, 7.0])
def test_the_gradient_of_loss_and_penalty(kind, lam) -> None:
    model, other, (x, y) = Model(net(kind)), net(kind), data(kind)
    client = Client("site-a", Split(x, y), None, None if kind == "numbers" else 4)
    loss = SquaredError() if kind == "numbers" else CrossEntropy()
    with Anchored(Backprop(loss), lam).open(model, {}, client, {}, TURN) as step:
        for rows in (slice(0, 8), slice(8, 11), slice(0, 1)):
            value = step(x[rows], y[rows])
            expected = written_out(kind, other(x[rows]), y[rows], lam)
            grads = torch.autograd.grad(expected, list(other.parameters()))
            flat = torch.cat([g.flatten() for g in grads])
            torch.testing.assert_close(model.gradient, flat, rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(value, expected.detach(), rtol=1e-9, atol=1e-11)
            assert not value.requires_grad


def test_the_gradient_is_added_to_whatever_is_inside() -> None:
    """Around FedProx: μ (w − x) stays."""
    model, (x, y) = Model(net("classes")), data("classes")
    client = Client("site-a", Split(x, y), None, 4)
    received = {"model": model.vector + 0.25}
    found = []
    for gradient in (
        Anchored(Proximal(Backprop(), mu=2.0), 3.0),
        Anchored(Backprop(), 3.0),
    ):
        with gradient.open(model, received, client, {}, TURN) as step:
            step(x, y)
        found.append(model.gradient.clone())
    torch.testing.assert_close(found[0], found[1] - 0.5, rtol=1e-9, atol=1e-11)


def test_full_batches_solve_anchor_regression() -> None:
    """Rothenhäusler et al., Eq. 4: min ‖(I − Π)(y − Xb)‖² + γ ‖Π(y − Xb)‖² with γ = 1 + λ.

    Π projects on the sites' indicators; the solution is that of least squares after the transform
    I + (√γ − 1) Π. Sites of one size, one full step each: FedSGD on the whole objective.
    """
    rng, lam, n, K = np.random.default_rng(4), 5.0, 30, 4
    sites, X, Y = {}, [], []
    for k in range(K):
        shift = rng.normal(size=2) * 0.8
        x = rng.normal(size=(n, 2)) + shift
        y = x @ np.array([1.0, -0.5]) + 1.5 * shift[0] + 0.3 * rng.normal(size=n)
        X.append(x)
        Y.append(y)
        sites[f"site-{k}"] = Client(
            f"site-{k}", Split(torch.tensor(x).float(), torch.tensor(y).float()), None, None
        )
    design = np.concatenate([np.c_[x, np.ones(n)] for x in X])
    project = np.kron(np.eye(K), np.full((n, n), 1 / n))
    transform = np.eye(n * K) + (np.sqrt(1 + lam) - 1) * project
    exact = np.linalg.lstsq(transform @ design, transform @ np.concatenate(Y), rcond=None)[0]
    plain = np.linalg.lstsq(design, np.concatenate(Y), rcond=None)[0]
    training = Training(SGD(0.05), loss=SquaredError())
    run = played(f"fedsgd+anchor(lam={lam})", sites, rounds=400, net="logistic", training=training)
    found = run.state.inbox["model"].double().numpy()
    np.testing.assert_allclose(found, exact, atol=2e-3)
    assert np.abs(exact - plain).max() > 0.05


@pytest.mark.parametrize("base", ["fedavg", "fedprox", "scaffold", "fedsgd", "ppdg"])
def test_a_lambda_of_0_is_the_method_bit_for_bit(base) -> None:
    clients = federation(3)
    plain, zero, held = (
        played(f"{base}{more}", clients, rounds=2).state.inbox["model"]
        for more in ("", "+anchor(lam=0)", "+anchor")
    )
    assert torch.equal(plain, zero)
    assert not torch.equal(plain, held)


def test_a_site_is_right_on_the_whole_where_the_penalty_is_heavy() -> None:
    """Of labels that no input explains: the mean of p goes to the classes' shares faster."""
    draws = keyed("anchor/shares")
    y = (torch.rand(200, generator=draws) < 0.9).long()
    client = {"site-a": Client("site-a", Split(torch.randn(200, 3, generator=draws), y), None, 2)}
    gaps = []
    for lam in (0, 10):
        run = played(f"fedsgd+anchor(lam={lam})", client, rounds=15, net="logistic")
        p = F.softmax(run.model(client["site-a"].train.x), 1)[:, 1].mean().detach()
        gaps.append(abs(float(p) - float(y.double().mean())))
    assert gaps[1] < 0.5 * gaps[0]


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
    run = played("fedavg+anchor(lam=5.0)", clients, rounds=3)
    assert bool(torch.isfinite(run.state.inbox["model"]).all())


@pytest.mark.parametrize("lam", [-0.1, float("nan")])
def test_a_negative_lambda_is_refused(lam) -> None:
    with pytest.raises(UnseenError, match=r"anchor\(lam\)"):
        Anchored(Backprop(), lam)
