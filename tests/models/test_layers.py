"""Max pooling before ReLU is the literal order to the bit, and hooks see the literal order."""

import pytest
import torch
from torch import Tensor, nn

from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.data.networks.layers import Sequential


def literal(module: nn.Module) -> None:
    """Make every container run its layers as they stand."""
    for part in module.modules():
        if isinstance(part, Sequential):
            part.__class__ = nn.Sequential


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("lenet", (1, 28, 28)),
        ("mnist-cnn", (1, 28, 28)),
        ("bn-cnn", (3, 11, 9)),
        ("fedilc-cnn", (3, 16, 16)),
        ("alexnet(dropout=0.0)", (3, 63, 63)),
        ("alexnet-bn", (3, 63, 63)),
        ("densenet121", (3, 32, 32)),
    ],
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_same_bits_as_in_the_literal_order(
    model: str, shape: tuple[int, int, int], channels_last: bool
) -> None:
    nets = [build(model, shape, 4, keyed("weights")) for _ in range(2)]
    literal(nets[1])
    x = torch.randn(6, *shape, generator=keyed("images"))
    x[0], x[1] = 0.0, -1.0  # ties, and windows without a positive number
    results = []
    for net in nets:
        if channels_last:
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        outputs = net(x)
        outputs.square().sum().backward()
        results.append([outputs, *(p.grad for p in net.parameters())])
    for mine, expected in zip(*results, strict=True):
        assert mine.numpy(force=True).tobytes() == expected.numpy(force=True).tobytes()


def test_a_hook_sees_the_layers_as_they_stand() -> None:
    net = Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(), nn.MaxPool2d(2))
    seen: dict[str, Tensor] = {}
    x = torch.randn(1, 1, 8, 8, generator=keyed("x"))
    handle = net[0].register_forward_hook(lambda _, __, out: seen.update(relu=out))
    net(x)
    assert torch.equal(seen["relu"], x.relu())
    handle.remove()
    net[1].register_forward_pre_hook(lambda _, inputs: seen.update(pool=inputs[0]))
    net(x)
    assert torch.equal(seen["pool"], x.relu())
