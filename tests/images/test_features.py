"""Feature maps of named layers: which, what they hold, and that the hooks go."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unseen import Model, UnseenError
from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.methods.images.features import layer_names, recorded


def net() -> nn.Sequential:
    return build("bn-cnn", (1, 8, 8), 3, keyed("net")).eval()


def images(n: int = 4) -> torch.Tensor:
    return torch.rand(n, 1, 8, 8, generator=keyed("x"))


def hooks(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) for part in module.modules())


def test_the_default_is_the_last_convolutions():
    assert layer_names(net()) == ["conv1", "conv2"]
    assert layer_names(net(), last=1) == ["conv2"]
    assert layer_names(build("domainbed-cnn", (1, 8, 8), 3, keyed("net"))) == ["conv3", "conv4"]


def test_layers_are_named_as_in_the_net():
    assert layer_names(net(), ["pool1", "conv2"]) == ["pool1", "conv2"]
    assert layer_names(net(), "conv1") == ["conv1"]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (["conv3"], "unknown layer 'conv3'; did you mean 'conv[12]'.*conv1, conv2, flatten, head"),
        ([], "name at least one layer"),
        (["conv1", "conv1"], "each once"),
    ],
)
def test_layers_that_cannot_be_are_refused(layers, message):
    with pytest.raises(UnseenError, match=message):
        layer_names(net(), layers)


def test_a_net_without_convolutions_lists_its_layers():
    with pytest.raises(UnseenError, match=r"has none.*flatten, fc1, relu1, head"):
        layer_names(build("mlp(widths=[4])", (6,), 3, keyed("net")))


def test_maps_are_what_the_layers_gave():
    module, x = net(), images()
    with recorded(module, ["conv2", "conv1", ""]) as take:
        outputs = module(x)
        conv2, conv1, whole = take()
    assert torch.equal(conv1, module.conv1(x))
    between = module.pool1(module.relu1(module.norm1(conv1)))
    torch.testing.assert_close(conv2, module.conv2(between))
    assert torch.equal(whole, outputs)


def test_an_activation_in_place_leaves_the_maps_alone():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten())
    nn.init.constant_(module[0].bias, -1.0)  # some maps are negative, whatever the weights
    x = images()
    with recorded(module, ["0"]) as take:
        module(x)
        (maps,) = take()
    assert torch.equal(maps, module[0](x))
    assert bool((maps < 0).any())


def test_gradients_flow_through_the_maps():
    module, x = net(), images()
    with recorded(module, ["conv1"]) as take:
        module(x)
        take()[0].sum().backward()
    assert bool(module.conv1.weight.grad.any())
    assert module.conv2.weight.grad is None


def test_hooks_are_gone_after_the_block_and_after_an_error():
    module = net()
    with recorded(module, ["conv1", "conv2"]):
        assert hooks(module) == 2
    assert hooks(module) == 0
    with pytest.raises(RuntimeError, match="broken"), recorded(module, ["conv1"]):
        raise RuntimeError("broken")
    assert hooks(module) == 0


def test_outputs_that_are_no_maps_are_refused():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.pair, self.unused, self.flat = Pair(), nn.Conv2d(1, 1, 1), nn.Flatten()

        def forward(self, x):
            return self.flat(self.pair(x)[0])

    module = Idle()
    for name, message in [
        ("pair", "'pair' gives a tuple"),
        ("unused", "'unused' was not run"),
        ("flat", r"'flat' gives a tensor of shape \[4, 64\]"),
    ]:
        with recorded(module, [name]) as take:
            module(images())
            with pytest.raises(UnseenError, match=message):
                take()


def test_what_is_taken_is_taken_once():
    module = net()
    with recorded(module, ["conv1"]) as take:
        module(images())
        take()
        with pytest.raises(UnseenError, match="was not run"):
            take()


def test_a_pass_with_other_parameters_and_buffers_is_that_of_another_net():
    module, other = net(), build("bn-cnn", (1, 8, 8), 3, keyed("other")).eval()
    other.norm1.running_mean += 0.3
    model, theirs = Model(module), Model(other)
    before = model.vector.clone(), model.buffers.clone()
    with recorded(module, ["conv2"]) as take, torch.no_grad():
        outputs = model.at(theirs.vector, images(), theirs.buffers)
        (maps,) = take()
    with recorded(other, ["conv2"]) as take:
        torch.testing.assert_close(outputs, other(images()))
        torch.testing.assert_close(maps, take()[0])
    assert torch.equal(model.vector, before[0])
    assert torch.equal(model.buffers, before[1])
