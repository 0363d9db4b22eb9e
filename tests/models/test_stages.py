"""Networks cut into a frozen part and the rest; which tensors of the rest train."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from unseen.core import Model
from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.data.networks.partial import FrozenNorm, LowRank, choice, with_frozen_norms
from unseen.data.networks.stages import cut, folded
from unseen.errors import UnseenError

NETS = ("efficientnet-lite0", "resnet18")
X = torch.rand(3, 3, 32, 32, generator=keyed("images"))


def whole(name: str) -> nn.Module:
    module = build(name, (3, 32, 32), 4, keyed("a net"))
    module.train()
    with torch.no_grad():
        module(X)  # statistics that are not those of a fresh net
    return module.eval()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("freeze", ["trunk", "blocks[:1]", "blocks[:7]"])
def test_the_parts_are_the_whole(name: str, freeze: str) -> None:
    network = whole(name)
    before, names = network(X), network.state_dict()
    trunk, rest = cut(network, freeze)
    assert torch.equal(rest(trunk(X)), before)
    assert {*trunk.state_dict()} | {*rest.state_dict()} == {*names}
    assert not {*trunk.state_dict()} & {*rest.state_dict()}
    assert not any(tensor.requires_grad for tensor in trunk.parameters())
    rest.train()
    assert not trunk.training
    if freeze == "trunk":
        assert sum(t.numel() for t in rest.parameters()) == trunk(X).shape[1] * 4 + 4


@pytest.mark.parametrize("name", NETS)
def test_folding_changes_no_more_than_rounding(name: str) -> None:
    trunk, _ = cut(whole(name), "trunk")
    merged = folded(trunk, X)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in merged.modules())
    torch.testing.assert_close(merged(X), trunk(X), rtol=1e-3, atol=1e-4)


def test_batchnorm_that_does_not_follow_its_neighbour_is_not_folded() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
            self.norm.running_mean += 1  # type: ignore[operator]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.conv(torch.relu(self.norm(x))))

    odd = Odd().eval()
    kept = folded(odd, X)
    assert isinstance(kept.norm, nn.BatchNorm2d) and torch.equal(kept(X), odd(X))


@pytest.mark.parametrize("freeze", ["blocks[:0]", "blocks[:17]", "half"])
def test_what_cannot_be_cut_is_refused(freeze: str) -> None:
    with pytest.raises(UnseenError, match=r"'trunk' or 'blocks\[:n\]' with n from 1 to 16"):
        cut(whole("efficientnet-lite0"), freeze)


def test_a_network_without_stages_is_refused() -> None:
    with pytest.raises(UnseenError, match="takes a network that is a chain of stages"):
        cut(build("lenet", (3, 32, 32), 4, keyed("a net")), "trunk")


def names_of(module: nn.Module) -> set[str]:
    return {*Model(module).layout.names}


def test_norms_and_biases_train_and_nothing_else() -> None:
    network = choice("norms")(whole("efficientnet-lite0"))
    names = names_of(network)
    layers = dict(network.named_modules())
    owners = {name.rpartition(".")[0] for name in names} - {"_fc"}
    assert {"_fc.weight", "_fc.bias", "_bn0.weight", "_blocks.3._bn2.bias"} <= names
    assert all(isinstance(layers[owner], nn.BatchNorm2d) for owner in owners)
    assert len(owners) == sum(isinstance(x, nn.BatchNorm2d) for x in layers.values())


def test_adapters_begin_as_nothing_and_learn() -> None:
    network = whole("efficientnet-lite0")
    before, frozen = network(X), copy.deepcopy(network.state_dict())
    adapted = choice("adapters(rank=2)")(network)
    assert torch.equal(adapted(X), before)
    model = Model(adapted)
    assert {name.rpartition(".")[2] for name in model.layout.names} == {
        "down", "up", "weight", "bias"
    }  # fmt: skip
    pointwise = [layer for layer in adapted.modules() if isinstance(layer, LowRank)]
    size = sum(2 * (layer.in_channels + layer.out_channels) for layer in pointwise)
    assert model.layout.size == size + 1280 * 4 + 4
    loss = model(X).square().sum()
    loss.backward()
    with torch.no_grad():
        model.vector -= 1e-3 * model.gradient
    assert not torch.allclose(adapted(X), before)
    after = adapted.state_dict()
    kept = [name for name in frozen if not name.startswith("_fc")]
    assert all(torch.equal(after[name], frozen[name]) for name in kept)


def test_an_adapter_adds_the_product_of_its_factors() -> None:
    inner = nn.Conv2d(6, 5, 1)
    layer, x = LowRank(inner, 2), torch.rand(2, 6, 4, 4, generator=keyed("maps"))
    nn.init.normal_(layer.up, generator=keyed("up"))
    expected = inner(x) + torch.einsum("or,ri,nihw->nohw", layer.up, layer.down, x)
    torch.testing.assert_close(layer(x), expected)


def test_frozen_norms_train_their_maps_by_the_first_statistics() -> None:
    network = whole("resnet18")
    before, names = network(X), {*network.state_dict()}
    frozen = with_frozen_norms(network)
    frozen.train()
    assert torch.equal(frozen(X), before) and {*frozen.state_dict()} == names
    model = Model(frozen)
    assert model.buffer_layout.size == 0 and "bn1.weight" in model.layout.names
    assert not any(name.endswith("running_mean") for name in model.layout.names)
    assert "bn1.weight" in names_of(choice("norms")(frozen))
    assert any(isinstance(layer, FrozenNorm) for layer in frozen.modules())


@pytest.mark.parametrize("train", ["norms", "adapters"])
def test_there_must_be_something_to_train(train: str) -> None:
    with pytest.raises(UnseenError, match="what trains of the network has none"):
        choice(train)(nn.Sequential(nn.Linear(2, 2)))


def test_unknown_choices_name_the_nearest() -> None:
    with pytest.raises(UnseenError, match="did you mean 'norms'"):
        choice("norm")
