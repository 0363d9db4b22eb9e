"""Convolutions as products are torch's own for many models: their values and their gradients."""

from functools import partial
from typing import Any

import pytest
import torch
from support.alone import played
from torch import nn
from torch.func import functional_call, vmap

from unseen import Client, InProcess, Split, Training
from unseen.core.optimiser import SGD
from unseen.core.turn import keyed
from unseen.engine import batch_layers
from unseen.engine.batch_layers import by_products, convolved, instead, plain
from unseen.engine.model_batch import alike
from unseen.engine.stacked import Stacked

PLAIN: list[dict[str, Any]] = [
    {"kernel_size": 5},
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 2)},
    {"kernel_size": 3, "bias": False, "padding": 1},
    {"kernel_size": 1},
]


def passed(
    layer: nn.Conv2d, tensors: dict[str, torch.Tensor], x: torch.Tensor
) -> list[torch.Tensor]:
    """Return the outputs of M layers, and the gradients of their weighted sum."""
    leaves = [*tensors.values(), x]
    each = vmap(lambda own, batch: functional_call(layer, own, (batch,)))(tensors, x)
    weights = torch.randn(each.shape, generator=keyed("weights"), dtype=torch.double)
    return [each, *torch.autograd.grad((each * weights).sum(), leaves)]


@pytest.mark.parametrize("options", PLAIN)
@pytest.mark.parametrize("limit", [batch_layers.PATCHES, 0])
def test_products_are_convolutions(
    options: dict[str, Any], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit of memory it is torch's convolution again, padding and stride included."""
    monkeypatch.setattr(batch_layers, "PATCHES", limit)
    layer = nn.Conv2d(3, 4, **options).double()
    draw = partial(torch.randn, generator=keyed("draws"), dtype=torch.double)
    tensors = {
        name: draw(5, *value.shape).requires_grad_() for name, value in layer.named_parameters()
    }
    x = draw(5, 6, 3, 9, 8).requires_grad_()
    expected = passed(layer, tensors, x)
    with instead({layer: partial(convolved, layer)}):
        mine = passed(layer, tensors, x)
    for own, theirs in zip(mine, expected, strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv1d(4, 4, 3),
        nn.Linear(4, 4),
    ],
)
def test_other_layers_keep_their_forward(layer: nn.Module) -> None:
    network = nn.Sequential(layer, nn.Conv2d(4, 4, 3))
    assert not plain(layer)
    assert list(by_products(network, torch.device("cuda"))) == [network[1]]
    assert by_products(network, torch.device("cpu")) == {}


def test_training_by_products_is_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU trains them: one step each, between which lies the rounding of a gradient.

    After more steps BatchNorm on small batches has made any difference of it.
    """
    replaced = list[nn.Module]()

    def of_a_gpu(module: nn.Module, _: torch.device) -> dict[nn.Module, Any]:
        forwards = by_products(module, torch.device("cuda"))
        replaced.extend(forwards)
        return dict(forwards)

    monkeypatch.setattr(batch_layers, "by_products", of_a_gpu)
    clients = {}
    for name, size in (("a", 20), ("b", 9), ("c", 13)):
        x = torch.rand(size, 1, 8, 8, generator=keyed(name))
        clients[name] = Client(name, Split(x, x.flatten(1).sum(1).long() % 3), None, 3)
    training = Training(SGD(0.1), epochs=1, batch_size=32)
    ends = [
        played("fedavg", clients, 1, 3, "bn-cnn(channels=[3, 4])", training, kind).state
        for kind in (InProcess, partial(Stacked, always=True))
    ]  # fmt: skip
    expected, mine = (end.inbox["model"] for end in ends)
    assert float((mine - expected).abs().max() / expected.abs().max()) < 2e-5
    assert replaced


def test_no_model_waits_for_one_of_twice_its_steps() -> None:
    assert alike("abcdef", [2, 3, 4, 5, 10, 11]) == ["abc", "de", "f"]
    assert alike("ab", [0, 1]) == ["ab"] and alike("ab", [0, 3]) == ["a", "b"]
