"""Linear models and perceptrons: sizes counted by hand, initialisation against its formula."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.data.networks.digit_nets import logistic, mlp
from unseen.errors import UnseenError
from unseen.expression import Call, text


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_logistic_counts() -> None:
    """28 · 28 · 10 + 10 = 7850."""
    assert count(logistic((1, 28, 28), 10)) == 7850


def test_logistic_is_an_affine_map() -> None:
    net = logistic((2, 3), 4)
    x = torch.randn(5, 2, 3, generator=keyed("x"))
    W, b = net.get_parameter("head.weight"), net.get_parameter("head.bias")
    torch.testing.assert_close(net(x), x.reshape(5, 6) @ W.T + b)


def test_mlp_counts() -> None:
    """FedILC's net for Color-MNIST, 392-390-390-1:

    392 · 390 + 390 = 153 270;  390 · 390 + 390 = 152 490;  390 + 1 = 391;  in all 306 151.
    """
    net = mlp((2, 14, 14), 1, widths=[390, 390], init="xavier")
    assert [count(net.get_submodule(n)) for n in ("fc1", "fc2", "head")] == [153270, 152490, 391]
    assert count(net) == 306151
    assert net(torch.zeros(7, 2, 14, 14)).shape == (7, 1)


def test_mlp_is_affine_and_relu_in_turn() -> None:
    net = mlp((3,), 2, widths=(4, 5))
    x = torch.randn(6, 3, generator=keyed("x"))
    named = dict(net.named_parameters())
    assert list(named) == [f"{n}.{t}" for n in ("fc1", "fc2", "head") for t in ("weight", "bias")]
    h = x
    for layer in ("fc1", "fc2"):
        h = (h @ named[f"{layer}.weight"].T + named[f"{layer}.bias"]).clamp(min=0)
    torch.testing.assert_close(net(x), h @ named["head.weight"].T + named["head.bias"])


def test_xavier_is_glorots_uniform_distribution() -> None:
    """U(-a, a) with a² = 6 / (fan in + fan out) has variance a² / 3."""
    net = build("mlp(widths=[390, 390], init='xavier')", (2, 14, 14), 1, keyed("weights"))
    for name, fans in (("fc1", 392 + 390), ("fc2", 390 + 390), ("head", 390 + 1)):
        W, b = (net.get_parameter(f"{name}.{t}").detach() for t in ("weight", "bias"))
        assert float(W.abs().max()) <= (6 / fans) ** 0.5
        assert not b.any()
        # The relative error of a variance from n uniform draws is sqrt(0.8 / n); five of them.
        tolerance = 5 * (0.8 / W.numel()) ** 0.5
        assert float(W.var(correction=0)) == pytest.approx(2 / fans, rel=tolerance)


def test_dropout_drops_in_training_only() -> None:
    net = mlp((1,), 1, widths=(1000,), dropout=0.5)
    dropped: list[float] = []

    def look(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        dropped.append(float((output == 0).double().mean()))

    net.get_submodule("dropout1").register_forward_hook(look)
    with torch.no_grad():
        net.get_parameter("fc1.bias").fill_(100.0)  # so that ReLU itself makes no zeros
        net.train()(torch.zeros(10, 1))
        net.eval()(torch.zeros(10, 1))
    # 10 000 coins: five standard deviations are 5 · 0.5 / 100.
    assert dropped[0] == pytest.approx(0.5, abs=0.025)
    assert dropped[1] == 0
    assert not any(isinstance(layer, nn.Dropout) for layer in mlp((1,), 1).children())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"widths": 64}, "widths"),
        ({"widths": [64, 0]}, r"widths\)\[1\]"),
        ({"widths": [64.0]}, r"widths\)\[0\]"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": -0.1}, "dropout"),
        ({"init": "xaver"}, "'xavier'"),
    ],
)
def test_refuses(options: dict[str, object], named: str) -> None:
    with pytest.raises(UnseenError, match=named):
        build(text((Call("mlp", options),)), (3,), 2, keyed("weights"))
