"""Building by name: the same weights from the same generator, whatever the world around does."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from unseen.core.turn import keyed
from unseen.core.vector import Model
from unseen.data.networks import MODELS, build
from unseen.errors import UnseenError

OWN = """
import torch
from torch import nn

def asks_both(*, shape, outputs):
    return nn.Linear(shape[0], outputs)

def asks_one(outputs):
    return nn.Linear(7, outputs)

def asks_nothing(width=5):
    return nn.Linear(width, width)

def takes_anything(**options):
    return nn.Linear(3, 3, **options)

def asks_more(shape, outputs, secret):
    return nn.Linear(shape[0], outputs)

def fails():
    torch.rand(3)
    raise RuntimeError("on purpose")

def makes_a_tensor():
    return torch.zeros(3)

class Net(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.head = nn.Linear(shape[0], outputs)

one = Net((2,), 2)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_own_nets.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("my_own_nets", None)


def weights(model: str, key: str = "weights", shape: tuple[int, ...] = (1, 16, 16)) -> torch.Tensor:
    return torch.cat([p.flatten() for p in build(model, shape, 3, keyed(key)).parameters()])


#: Models that keep the names of published weights call their last layer as those do.
HEADS = {
    "resnet18": "fc",
    "resnet50": "fc",
    "densenet121": "classifier",
    "alexnet": "classifier.6",
    "alexnet-bn": "classifier.fc3",
    **dict.fromkeys(("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"), "_fc"),
}
SMALL = [name for name in MODELS if name not in {*HEADS, "unet"}]


@pytest.mark.parametrize("name", SMALL)
def test_every_small_model(name: str) -> None:
    net = build(name, (2, 16, 16), 3, keyed("weights"))
    assert net(torch.rand(4, 2, 16, 16)).shape == (4, 3)
    last = list(net.named_modules())[-1]
    assert last[0] == "head"
    assert isinstance(last[1], nn.Linear)
    assert (last[1].out_features, last[1].bias is not None) == (3, True)
    assert Model(net).layout.part("head").stop == sum(p.numel() for p in net.parameters())
    again = pickle.loads(pickle.dumps(net))
    for mine, other in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("name", HEADS)
def test_every_large_model(name: str) -> None:
    with torch.device("meta"):
        net = MODELS[name]((2, 64, 64), 3)
        assert net(torch.rand(4, 2, 64, 64)).shape == (4, 3)
    last = list(net.named_modules())[-1]
    assert last[0] == HEADS[name]
    assert isinstance(last[1], nn.Linear)
    assert [n for n, _ in net.named_parameters()][-1] == f"{HEADS[name]}.bias"
    pickle.dumps(net)


@pytest.mark.parametrize("name", ["mnist-cnn", "lenet", "domainbed-cnn", "bn-cnn"])
def test_channels_last_gives_the_same_outputs(name: str) -> None:
    net = build(name, (2, 16, 16), 3, keyed("weights")).eval()
    x = torch.rand(4, 2, 16, 16, generator=keyed("x"))
    expected = net(x)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.testing.assert_close(Model(net)(x), expected)


@pytest.mark.parametrize("name", [*SMALL, "resnet18"])
def test_weights_depend_on_the_generator_alone(name: str) -> None:
    first = weights(name)
    torch.rand(17)  # moves the global generator
    assert torch.equal(weights(name), first)
    assert not torch.equal(weights(name, "others"), first)


def test_one_generator_gives_two_models_two_draws() -> None:
    generator = keyed("weights")
    one, two = (build("logistic", (4,), 3, generator) for _ in range(2))
    assert not torch.equal(one.get_parameter("head.weight"), two.get_parameter("head.weight"))


@pytest.mark.parametrize("model", ["lenet", "my_own_nets:Net"])
def test_the_global_generator_stays_where_it_was(own: None, model: str) -> None:
    before = torch.get_rng_state()
    build(model, (1, 16, 16), 3, keyed("weights"))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_global_generator_stays_where_it_was_after_a_failure(own: None) -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="on purpose"):
        build("my_own_nets:fails", (4,), 3, keyed("weights"))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("factory", "sizes"),
    [
        ("asks_both", (4, 3)),
        ("Net", (4, 3)),
        ("asks_one", (7, 3)),
        ("asks_nothing", (5, 5)),
        ("takes_anything", (3, 3)),
    ],
)
def test_own_factories_get_what_they_ask_for(
    own: None, factory: str, sizes: tuple[int, int]
) -> None:
    net = build(f"my_own_nets:{factory}", (4,), 3, keyed("weights"))
    (weight,) = (p for p in net.parameters() if p.ndim == 2)
    assert weight.shape == (sizes[1], sizes[0])
    again = build(f"my_own_nets:{factory}", (4,), 3, keyed("weights"))
    assert torch.equal(next(again.parameters()), next(net.parameters()))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("my_own_nets:asks_more", "asks for secret"),
        ("my_own_nets:makes_a_tensor", r"must make a torch\.nn\.Module; it made Tensor"),
        ("my_own_nets:one", "a new model each time; found"),
        ("my_own_nets:Nett", "did you mean 'Net'"),
        ("mnist", "did you mean 'mnist-cnn'"),
        ("mlp(width=[3])", r"did you mean 'widths'\? Its options: widths=\(64, 64\), dropout=0\.0"),
        ("logistic(widths=[3])", "no options"),
        ("mlp+lenet", "one part"),
        ("mlp([3])", "given by keyword"),
    ],
)
def test_refuses_models(own: None, model: str, said: str) -> None:
    with pytest.raises(UnseenError, match=said):
        build(model, (4,), 3, keyed("weights"))


@pytest.mark.parametrize(("shape", "outputs"), [((), 3), ((0, 4), 3), ((4.0,), 3), ((4,), 0)])
def test_refuses_shapes(shape: tuple[int, ...], outputs: int) -> None:
    with pytest.raises(UnseenError, match=r"shape|outputs"):
        build("mlp", shape, outputs, keyed("weights"))


def test_fedilcs_net_for_eicu_is_the_released_one() -> None:
    expression = "mlp(widths=[1024, 1024, 512], init='xavier', logits=1, features='linear')"
    net = build(expression, (1399,), 2, keyed("a net"))
    layers = [nn.Linear(1399, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 512), nn.Linear(512, 1)]
    weights = [t for name, t in net.state_dict().items() if name.endswith("weight")]
    for layer, weight in zip(layers, weights, strict=True):
        nn.init.zeros_(layer.bias)
        layer.weight.data.copy_(weight)
        bound = (6 / sum(weight.shape)) ** 0.5  # Glorot's
        assert bound * 0.99 < float(weight.abs().max()) <= bound
    assert not any(t.any() for name, t in net.state_dict().items() if name.endswith("bias"))
    main = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    x = torch.randn(4, 1399, generator=keyed("x"))
    torch.testing.assert_close(net(x), layers[3](main(x)))
    rectified = build("mlp(widths=[1024, 1024, 512], logits=1)", (1399,), 2, keyed("a net"))
    assert "relu3" in dict(rectified.named_children())
