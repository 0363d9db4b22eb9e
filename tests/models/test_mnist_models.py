"""Small convolutional nets: sizes counted by hand, outputs against the operations one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.data.networks.digit_nets import bn_cnn, domainbed_cnn, fedilc_cnn, lenet, mnist_cnn
from unseen.errors import UnseenError


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def counts(module: nn.Module) -> dict[str, int]:
    return {name: count(child) for name, child in module.named_children() if count(child)}


@pytest.mark.parametrize(("side", "fc1"), [(8, 32896), (16, 131200), (28, 401536)])
def test_mnist_cnn_counts(side: int, fc1: int) -> None:
    """conv1 32 · (25 + 1) = 832;  conv2 64 · (32 · 25 + 1) = 51 264;  head 10 · 129 = 1290;

    fc1 128 · (64 · (side/4)² + 1): 128 · 257 = 32 896, 128 · 1025 = 131 200, 128 · 3137 = 401 536.
    """
    net = mnist_cnn((1, side, side), 10)
    assert counts(net) == {"conv1": 832, "conv2": 51264, "fc1": fc1, "head": 1290}


def test_lenet_counts() -> None:
    """The 431 thousand of Caffe's net: sides 28 → 24 → 12 → 8 → 4, so

    conv1 20 · 26 = 520;  conv2 50 · (20 · 25 + 1) = 25 050;  fc1 500 · (50 · 16 + 1) = 400 500;
    head 10 · 501 = 5010;  in all 431 080.
    """
    net = lenet((1, 28, 28), 10)
    assert counts(net) == {"conv1": 520, "conv2": 25050, "fc1": 400500, "head": 5010}
    assert count(net) == 431080


def test_lenet_with_100_hidden_units_counts() -> None:
    """520 + 25 050 + 100 · 801 + 10 · 101 = 106 680."""
    assert count(lenet((1, 28, 28), 10, hidden=100)) == 106680


@pytest.mark.parametrize(("depth", "conv1"), [(1, 640), (2, 1216)])
def test_domainbed_cnn_counts(depth: int, conv1: int) -> None:
    """conv1 64 · (9 · depth + 1) = 640 or 1216;  conv2 128 · (64 · 9 + 1) = 73 856;
    conv3 and conv4 128 · (128 · 9 + 1) = 147 584 each;  norms 2 · 64 and three times 2 · 128;
    head 10 · 129 = 1290.  For one channel 370 560 features and 371 850 in all.
    """
    net = domainbed_cnn((depth, 28, 28), 10)
    expected = {
        **{"conv1": conv1, "conv2": 73856, "conv3": 147584, "conv4": 147584},
        **{"norm1": 128, "norm2": 256, "norm3": 256, "norm4": 256, "head": 1290},
    }
    assert counts(net) == expected
    assert count(net) - count(net.get_submodule("head")) == 370560 + 576 * (depth - 1)


@pytest.mark.parametrize(("side", "fc1"), [(16, 16512), (32, 65664)])
def test_fedilc_cnn_counts(side: int, fc1: int) -> None:
    """conv1 64 · (9 · 3 + 1) = 1792;  conv2 128 · (64 · 9 + 1) = 73 856;  head 10 · 129 = 1290;
    conv3 128 · (128 · 9 + 1) = 147 584;  norms 2 · 64 and twice 2 · 128.

    Sides 16 → 8 → 4 → 2 → 2 → 1, so fc1 has 128 · 129 = 16 512, the released net's; and
    32 → 16 → 8 → 4 → 4 → 2, so 128 · (4 · 128 + 1) = 65 664.
    """
    net = fedilc_cnn((3, side, side), 10)
    expected = {
        **{"conv1": 1792, "conv2": 73856, "conv3": 147584},
        **{"norm1": 128, "norm2": 256, "norm3": 256, "fc1": fc1, "head": 1290},
    }
    assert counts(net) == expected
    assert count(net) == {16: 241674, 32: 290826}[side]


def test_bn_cnn_counts() -> None:
    """conv1 16 · 9 = 144, norm1 2 · 16;  conv2 32 · 16 · 9 = 4608, norm2 2 · 32;
    head 10 · (32 · 49 + 1) = 15 690.
    """
    net = bn_cnn((1, 28, 28), 10)
    expected = {"conv1": 144, "norm1": 32, "conv2": 4608, "norm2": 64, "head": 15690}
    assert counts(net) == expected


def two_convolutions(padding: int) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    def forward(w: dict[str, Tensor], x: Tensor) -> Tensor:
        for i in (1, 2):
            x = F.conv2d(x, w[f"conv{i}.weight"], w[f"conv{i}.bias"], padding=padding)
            x = F.max_pool2d(F.relu(x), 2)
        x = F.relu(F.linear(x.flatten(1), w["fc1.weight"], w["fc1.bias"]))
        return F.linear(x, w["head.weight"], w["head.bias"])

    return forward


def domainbed(w: dict[str, Tensor], x: Tensor) -> Tensor:
    for i in (1, 2, 3, 4):
        stride = 2 if i == 2 else 1
        x = F.conv2d(x, w[f"conv{i}.weight"], w[f"conv{i}.bias"], stride=stride, padding=1)
        x = F.group_norm(F.relu(x), 8, w[f"norm{i}.weight"], w[f"norm{i}.bias"])
    return F.linear(x.mean(dim=(2, 3)), w["head.weight"], w["head.bias"])


def fedilc(w: dict[str, Tensor], x: Tensor) -> Tensor:
    for i in (1, 2, 3):
        stride = 2 if i == 2 else 1
        x = F.conv2d(x, w[f"conv{i}.weight"], w[f"conv{i}.bias"], stride=stride, padding=1)
        x = F.group_norm(F.relu(x), 8, w[f"norm{i}.weight"], w[f"norm{i}.bias"])
        x = F.max_pool2d(x, 2)
    features = F.linear(x.flatten(1), w["fc1.weight"], w["fc1.bias"])
    return F.linear(features, w["head.weight"], w["head.bias"])


def batch_normalised(w: dict[str, Tensor], x: Tensor) -> Tensor:
    for i in (1, 2):
        x = F.conv2d(x, w[f"conv{i}.weight"], padding=1)
        mean, var = x.mean(dim=(0, 2, 3), keepdim=True), x.var((0, 2, 3), False, keepdim=True)
        x = (x - mean) / (var + 1e-5).sqrt()
        x = x * w[f"norm{i}.weight"][:, None, None] + w[f"norm{i}.bias"][:, None, None]
        x = F.max_pool2d(F.relu(x), 2)
    return F.linear(x.flatten(1), w["head.weight"], w["head.bias"])


@pytest.mark.parametrize(
    ("model", "shape", "reference"),
    [
        ("mnist-cnn", (1, 16, 16), two_convolutions(padding=2)),
        ("mnist-cnn(channels=[3, 5], hidden=7)", (2, 14, 9), two_convolutions(padding=2)),
        ("lenet", (1, 28, 28), two_convolutions(padding=0)),
        ("lenet(channels=[3, 5], hidden=7)", (3, 16, 21), two_convolutions(padding=0)),
        ("domainbed-cnn", (2, 14, 14), domainbed),
        ("domainbed-cnn(width=8)", (1, 5, 6), domainbed),
        ("fedilc-cnn", (3, 16, 16), fedilc),
        ("fedilc-cnn", (2, 14, 37), fedilc),
        ("bn-cnn(channels=(3, 5))", (2, 9, 8), batch_normalised),
    ],
)
def test_outputs_are_the_operations_one_by_one(
    model: str, shape: tuple[int, ...], reference: Callable[[dict[str, Tensor], Tensor], Tensor]
) -> None:
    net = build(model, shape, 4, keyed("weights"))
    x = torch.rand(3, *shape, generator=keyed("x"))
    with torch.no_grad():
        for name, p in net.named_parameters():  # norms begin as ones and zeros, which hide mistakes
            p.add_(torch.rand(p.shape, generator=keyed(name)), alpha=0.1)
        torch.testing.assert_close(net(x), reference(dict(net.named_parameters()), x))


def test_bn_cnn_has_running_statistics_that_move_in_training_only() -> None:
    net = bn_cnn((1, 8, 8), 2)
    x = torch.rand(16, 1, 8, 8, generator=keyed("x"))
    net.eval()(x)
    mean = net.get_buffer("norm1.running_mean")
    assert not mean.any()
    net.train()(x)
    with torch.no_grad():
        expected = 0.1 * net.get_submodule("conv1")(x).mean(dim=(0, 2, 3))
    torch.testing.assert_close(mean, expected)


@pytest.mark.parametrize(
    ("factory", "smallest"),
    [(mnist_cnn, 4), (lenet, 16), (domainbed_cnn, 1), (fedilc_cnn, 14), (bn_cnn, 4)],
)
def test_the_smallest_image(factory: Callable[..., nn.Module], smallest: int) -> None:
    net = factory((1, smallest, smallest), 3).eval()
    assert net(torch.zeros(2, 1, smallest, smallest)).shape == (2, 3)
    for shape in ((1, smallest - 1, 28), (1, 28, smallest - 1)):
        with pytest.raises(UnseenError, match=f"at least {smallest} by {smallest}"):
            factory(shape, 3)
    with pytest.raises(UnseenError, match=r"inputs of shape \[784\].*take mlp"):
        factory((784,), 3)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("mnist-cnn(channels=[32])", "list of 2"),
        ("lenet(channels=[20, -1])", r"channels\)\[1\]"),
        ("lenet(hidden=0)", "hidden"),
        ("domainbed-cnn(width=12)", "multiple of 8"),
        ("domainbed-cnn(width=0)", "width"),
        ("bn-cnn(channels=16)", "a list of positive"),
        ("bn-cnn(channels=[])", "at least one"),
    ],
)
def test_refuses(model: str, named: str) -> None:
    with pytest.raises(UnseenError, match=named):
        build(model, (1, 28, 28), 10, keyed("weights"))
