"""EfficientNet-Lite against the package whose names of tensors it has, and against its formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.data.networks.efficientnet import EfficientNetLite, Same

#: Sides that are odd and even at the layers where 224, 240 and 260 are, by which theirs is padded.
SIZES = {"efficientnet-lite0": 32, "efficientnet-lite1": 48, "efficientnet-lite2": 36}
#: As Keras counts the authors' models of 1000 classes, without BatchNorm's statistics.
PARAMETERS = {
    "efficientnet-lite0": 4_652_008,
    "efficientnet-lite1": 5_416_680,
    "efficientnet-lite2": 6_092_072,
}


def network(name: str, shape: tuple[int, ...], outputs: int) -> EfficientNetLite:
    """The network with statistics of BatchNorm and maps that are not those it begins with."""
    module = build(name, shape, outputs, keyed("a net"))
    draws = keyed("statistics")
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor in (layer.weight.data, layer.running_var):
                tensor.uniform_(0.5, 1.5, generator=draws)  # type: ignore[union-attr]
            for tensor in (layer.bias.data, layer.running_mean):
                tensor.normal_(0, 0.1, generator=draws)  # type: ignore[union-attr]
    assert isinstance(module, EfficientNetLite)
    return module.eval()


@pytest.mark.parametrize("name", SIZES)
def test_the_numbers_are_those_of_the_package(name: str) -> None:
    theirs = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    side = SIZES[name]
    ours, other = network(name, (3, side, side), 5), theirs.from_name(name, num_classes=5).eval()
    other.load_state_dict(ours.state_dict())
    x = torch.rand(2, 3, side, side, generator=keyed("images"))
    with torch.no_grad():
        assert torch.equal(ours(x), other((255 * x - 127) / 128))


@pytest.mark.parametrize("name", SIZES)
def test_the_parameters_are_as_many_as_the_authors_have(name: str) -> None:
    module = build(name, (3, 32, 32), 1000, keyed("a net"))
    assert sum(tensor.numel() for tensor in module.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("length", [1, 7, 8, 9])
@pytest.mark.parametrize("kernel", [3, 5])
def test_padding_is_tensorflows(length: int, kernel: int) -> None:
    """out[i] = Σ_j w[j] x[2 i + j − ⌊p/2⌋], p = max((⌈n/2⌉ − 1) 2 + k − n, 0), by hand."""
    layer = Same(1, 1, kernel, stride=2)
    x = torch.rand(length, generator=keyed("a line"))
    weight = layer.weight.detach()[0, 0].sum(0)  # the same line in every row, on one row
    count = math.ceil(length / 2)
    before = max((count - 1) * 2 + kernel - length, 0) // 2

    def at(i: int) -> Tensor:
        inside = [j for j in range(kernel) if 0 <= 2 * i + j - before < length]
        return torch.stack([weight[j] * x[2 * i + j - before] for j in inside]).sum()

    rows = x.expand(1, 1, 4 * kernel, length)
    middle = layer(rows)[0, 0, kernel]
    torch.testing.assert_close(middle, torch.stack([at(i) for i in range(count)]))


def test_grey_images_are_taken_as_colours_that_are_equal() -> None:
    grey, colour = (network("efficientnet-lite0", (bands, 32, 32), 3) for bands in (1, 3))
    grey.load_state_dict(colour.state_dict())
    x = torch.rand(2, 1, 32, 32, generator=keyed("images"))
    with torch.no_grad():
        torch.testing.assert_close(grey(x), colour(x.expand(-1, 3, -1, -1)))
