"""MixStyle and RandConv against their equations, example by example."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from support.alone import played
from support.sites import images
from torch import nn

from unseen import Client, Model, Split, UnseenError, method
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.mixup import beta
from unseen.methods.mixstyle import StyleMixed, restyled
from unseen.methods.randconv import RandomConvolutions, disagreement

TURN = Turn(seed=3, round=0, rounds=2, exchange="train", client="site-a")


def data(n: int = 7):
    draws = keyed("styles")
    x = torch.randn(n, 2, 8, 8, generator=draws, dtype=torch.float64)
    return x, torch.randint(3, (n,), generator=draws)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(80, 3)
    ).double()


def gradient_of(loss: torch.Tensor, module: nn.Module) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])


def stepped(gradient) -> tuple[torch.Tensor, torch.Tensor]:
    model, (x, y) = Model(net()), data()
    model.module.train()
    with gradient.open(model, {}, Client("site-a", Split(x, y), None, 3), {}, TURN) as step:
        return step(x, y), model.gradient


def mixed_by_hand(z: torch.Tensor, lam, order) -> torch.Tensor:
    """Equations 3 to 5, for each example and channel."""
    out = torch.zeros_like(z)
    for n in range(len(z)):
        for c in range(z.shape[1]):
            own, other = z[n, c].detach(), z[order[n], c].detach()
            deviation = math.sqrt(float(own.var()) + 1e-6)
            scale = lam[n] * deviation + (1 - lam[n]) * math.sqrt(float(other.var()) + 1e-6)
            shift = lam[n] * float(own.mean()) + (1 - lam[n]) * float(other.mean())
            out[n, c] = (z[n, c] - float(own.mean())) / deviation * scale + shift
    return out


def test_mixstyle_after_the_first_convolution() -> None:
    draws = TURN.generator("mixstyle")
    float(torch.rand((), generator=draws))
    lam = [beta(0.3, draws) for _ in range(7)]
    order = torch.randperm(7, generator=draws).tolist()
    other, (x, y) = net(), data()
    expected = F.cross_entropy(other[1:](mixed_by_hand(other[0](x), lam, order)), y)
    value, gradient = stepped(StyleMixed(Backprop(), p=1.0, alpha=0.3))
    torch.testing.assert_close(value, expected.detach(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(gradient, gradient_of(expected, other), rtol=1e-5, atol=1e-8)


def test_an_example_takes_the_others_statistics() -> None:
    z, _ = data(2)
    lam = torch.zeros(2, 1, 1, 1, dtype=z.dtype)
    new = restyled(z, lam, torch.tensor([1, 0]))
    torch.testing.assert_close(new.mean((2, 3)), z.flip(0).mean((2, 3)))
    torch.testing.assert_close(new.var((2, 3)), z.flip(0).var((2, 3)), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(restyled(z, lam + 1, torch.tensor([1, 0])), z)


def test_no_mixing_is_the_inner_gradient_and_layers_are_named() -> None:
    value, gradient = stepped(StyleMixed(Backprop(), p=0.0))
    plain, other = stepped(Backprop())
    assert torch.equal(gradient, other)
    assert torch.equal(value, plain)
    _, second = stepped(StyleMixed(Backprop(), p=1.0, layers=("2",)))
    assert not torch.equal(second, stepped(StyleMixed(Backprop(), p=1.0))[1])
    assert StyleMixed(Backprop()).names(net()) == ["0"]
    assert StyleMixed(Backprop()).names(build("resnet18", (3, 32, 32), 3, keyed("r"))) == [
        "layer1", "layer2"
    ]  # fmt: skip
    with pytest.raises(UnseenError, match="layer"):
        stepped(StyleMixed(Backprop(), layers=("nosuch",)))


def convolved(x: torch.Tensor, kernel: torch.Tensor, alpha: float) -> torch.Tensor:
    """α x + (1 − α) x ∗ Θ, pixel by pixel, with zeros around."""
    _, C, H, W = x.shape
    k, out = kernel.shape[-1], torch.zeros_like(x)
    for c in range(C):
        for i in range(H):
            for j in range(W):
                for a in range(k):
                    for b in range(k):
                        u, v = i + a - k // 2, j + b - k // 2
                        if 0 <= u < H and 0 <= v < W:
                            out[:, c, i, j] += x[:, :, u, v] @ kernel[c, :, a, b]
    return alpha * x + (1 - alpha) * out


def divergence(outputs) -> torch.Tensor:
    """Σ_j mean_n Σ_c p_j log(p_j / p̄)."""
    p = [torch.exp(z) / torch.exp(z).sum(1, keepdim=True) for z in outputs]
    mean = sum(p) / len(p)
    return sum((q * torch.log(q / mean)).sum(1).mean() for q in p)


@pytest.mark.parametrize("consistency", [0.0, 10.0])
@pytest.mark.parametrize("mix", [True, False])
def test_randconv(mix, consistency) -> None:
    draws, (x, y), views = TURN.generator("randconv"), data(), []
    for _ in range(3 if consistency else 1):
        k = (1, 3, 5)[int(torch.randint(3, (), generator=draws))]
        kernel = torch.randn(2, 2, k, k, generator=draws).double() / math.sqrt(2 * k * k)
        alpha = float(torch.rand((), generator=draws)) if mix else 0.0
        views.append(convolved(x, kernel, alpha))
    other = net()
    expected = F.cross_entropy(other(views[0]), y)
    if consistency:
        expected = expected + consistency * divergence([other(view) for view in views])
    part = RandomConvolutions(Backprop(), consistency, mix, kernels=(1, 3, 5))
    value, gradient = stepped(part)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(gradient, gradient_of(expected, other), rtol=1e-4, atol=1e-7)


def test_views_that_are_predicted_alike_disagree_by_nothing() -> None:
    z = torch.randn(4, 3, generator=keyed("z"))
    assert float(disagreement([z, z, z])) == pytest.approx(0, abs=1e-6)
    sure = [torch.tensor([[99.0, 0.0]]), torch.tensor([[0.0, 99.0]])]
    assert float(disagreement(sure)) == pytest.approx(2 * math.log(2), rel=1e-6)
    logit = [torch.tensor([[-99.0]]), torch.tensor([[99.0]])]
    assert float(disagreement(logit)) == pytest.approx(2 * math.log(2), rel=1e-6)


def test_federations_of_images_train_and_tables_are_refused() -> None:
    clients = images(2)
    for expression in ("mixstyle+fedprox", "randconv(consistency=1)", "fedavg+mixstyle+randconv"):
        run = played(expression, clients, 2, net="bn-cnn")
        assert all(bool(v.isfinite().all()) for v in run.state.inbox.values())
        assert "images" in method(expression).asks
    for kernels in ((2,), (), (0,)):
        with pytest.raises(UnseenError, match="odd widths"):
            RandomConvolutions(Backprop(), kernels=kernels)
