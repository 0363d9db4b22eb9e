"""Nets that keep published names: names, shapes and counts, and outputs operation by operation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unseen import Client, Split, Training, method, play, start
from unseen.core.optimiser import SGD
from unseen.core.turn import keyed
from unseen.core.vector import Model
from unseen.data.networks import MODELS, build
from unseen.data.networks.alexnet import MeanPool
from unseen.engine.inprocess import InProcess
from unseen.errors import UnseenError
from unseen.methods.images.features import last_maps, layer_names, recorded

NAMES = ("resnet18", "resnet50", "densenet121", "alexnet", "alexnet-bn")
LARGE = (3, 224, 224)


def empty(name: str, shape: tuple[int, ...] = LARGE, outputs: int = 1000, **options) -> nn.Module:
    """The net without memory for its weights."""
    with torch.device("meta"):
        return MODELS[name](shape, outputs, **options)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@lru_cache(maxsize=2)
def net(expression: str, side: int = 64, bands: int = 3, outputs: int = 4) -> nn.Module:
    """A net in evaluation mode; norms begin as ones and zeros, which hide mistakes."""
    made = build(expression, (bands, side, side), outputs, keyed("weights")).eval()
    with torch.no_grad():
        for name, tensor in made.state_dict().items():
            if tensor.ndim == 1 and tensor.is_floating_point():
                tensor.add_(torch.rand(tensor.shape, generator=keyed(name)), alpha=0.1)
    return made


def pixels(n: int = 2, bands: int = 3, height: int = 64, width: int = 64) -> Tensor:
    return torch.randn(n, bands, height, width, generator=keyed("x"))


# --- sizes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tensors", "parameters", "digest"),
    [
        ("resnet18", 122, 11689512, "ce88913d6e5bbfc8"),
        ("resnet50", 320, 25557032, "218340f9d3037dea"),
        ("densenet121", 727, 7978856, "1d9598a858eb2c03"),
        ("alexnet", 16, 61100840, "14593b9569c66518"),
    ],
)
def test_names_and_shapes_are_torchvisions(
    name: str, tensors: int, parameters: int, digest: str
) -> None:
    """Counts as torchvision's documentation gives them; the digest is of the names and shapes of
    its state dicts in their order, taken from torchvision 0.28."""
    made = empty(name)
    assert count(made) == parameters
    found = [(key, list(tensor.shape)) for key, tensor in made.state_dict().items()]
    assert len(found) == tensors
    assert hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16] == digest


def test_alexnet_bn_counts() -> None:
    """conv w · (c k² + 1) and norm 2 w: 23 296 + 128, 307 392 + 384, 663 936 + 768, 884 992 + 512,
    590 080 + 512; fc1 4096 · 9217 + 8192, fc2 4096 · 4097 + 8192, fc3 10 · 4097.
    """
    made = empty("alexnet-bn", outputs=10)
    convolutions = 23424 + 307776 + 664704 + 885504 + 590592
    assert count(made) == convolutions + 37752832 + 8192 + 16781312 + 8192 + 40970 == 57063498
    names = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in made.named_parameters()))
    assert names == [
        *(f"features.{kind}{i}" for i in range(1, 6) for kind in ("conv", "bn")),
        *(f"classifier.{part}" for part in ("fc1", "bn6", "fc2", "bn7", "fc3")),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_eight_bands_change_the_first_convolution_alone(name: str) -> None:
    three, eight = (empty(name, (bands, 224, 224)).state_dict() for bands in (3, 8))
    differ = [key for key, tensor in three.items() if tensor.shape != eight[key].shape]
    assert differ == [next(iter(three))]
    assert eight[differ[0]].shape[1] == 8


STAGES = {
    "resnet18": {
        "conv1": (64, 112), "maxpool": (64, 56), "layer1": (64, 56), "layer2": (128, 28),
        "layer3": (256, 14), "layer4": (512, 7), "avgpool": (512, 1),
    },
    "resnet50": {
        "conv1": (64, 112), "maxpool": (64, 56), "layer1": (256, 56), "layer2": (512, 28),
        "layer3": (1024, 14), "layer4": (2048, 7), "avgpool": (2048, 1),
    },
    "densenet121": {
        "features.conv0": (64, 112), "features.pool0": (64, 56),
        "features.denseblock1": (256, 56), "features.transition1": (128, 28),
        "features.denseblock2": (512, 28), "features.transition2": (256, 14),
        "features.denseblock3": (1024, 14), "features.transition3": (512, 7),
        "features.denseblock4": (1024, 7), "features": (1024, 7),
    },
    "alexnet": {
        "features.0": (64, 55), "features.2": (64, 27), "features.3": (192, 27),
        "features.5": (192, 13), "features.6": (384, 13), "features.8": (256, 13),
        "features.10": (256, 13), "features.12": (256, 6), "avgpool": (256, 6),
    },
    "alexnet-bn": {
        "features.conv1": (64, 55), "features.maxpool1": (64, 27), "features.conv2": (192, 27),
        "features.maxpool2": (192, 13), "features.conv3": (384, 13), "features.conv4": (256, 13),
        "features.conv5": (256, 13), "features.maxpool5": (256, 6), "avgpool": (256, 6),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_maps_of_every_stage_at_224_pixels(name: str) -> None:
    made = empty(name).eval()
    with recorded(made, list(STAGES[name])) as take:
        assert made(torch.zeros(1, *LARGE, device="meta")).shape == (1, 1000)
        shapes = [tuple(maps.shape) for maps in take()]
    assert shapes == [(1, width, side, side) for width, side in STAGES[name].values()]


@pytest.mark.parametrize(
    ("name", "smallest"),
    [("resnet18", 1), ("resnet50", 1), ("densenet121", 29), ("alexnet", 63), ("alexnet-bn", 63)],
)
def test_the_smallest_image(name: str, smallest: int) -> None:
    made = empty(name, (3, smallest, smallest), 5).eval()
    assert made(torch.zeros(2, 3, smallest, smallest, device="meta")).shape == (2, 5)
    for shape in ((3, smallest - 1, 224), (3, 224, smallest - 1)):
        with pytest.raises(UnseenError, match=f"{name} takes .* at least {smallest} by {smallest}"):
            MODELS[name](shape, 5)
        if smallest > 1:
            with pytest.raises(RuntimeError):  # the bound is not too careful
                made(torch.zeros(2, *shape, device="meta"))
    with pytest.raises(UnseenError, match=r"inputs of shape \[784\]"):
        MODELS[name]((784,), 5)


# --- operations one by one -----------------------------------------------------------------

State = dict[str, Tensor]


def norm(w: State, name: str, x: Tensor) -> Tensor:
    mean, var, weight, bias = (
        w[f"{name}.{part}"].reshape(-1, *[1] * (x.ndim - 2))
        for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def residual(blocks: tuple[int, ...], convolutions: int) -> Callable[[State, Tensor], Tensor]:
    def forward(w: State, x: Tensor) -> Tensor:
        x = F.relu(norm(w, "bn1", F.conv2d(x, w["conv1.weight"], stride=2, padding=3)))
        x = F.max_pool2d(x, 3, 2, 1)
        for layer, count in enumerate(blocks, start=1):
            for block in range(count):
                at = f"layer{layer}.{block}"
                halved = 2 if layer > 1 and block == 0 else 1
                y = x
                for c in range(1, convolutions + 1):
                    kernel = w[f"{at}.conv{c}.weight"]
                    wide = kernel.shape[-1] == 3
                    first = c == (1 if convolutions == 2 else 2)
                    y = F.conv2d(y, kernel, stride=halved if first else 1, padding=int(wide))
                    y = norm(w, f"{at}.bn{c}", y)
                    y = F.relu(y) if c < convolutions else y
                if f"{at}.downsample.0.weight" in w:
                    x = F.conv2d(x, w[f"{at}.downsample.0.weight"], stride=halved)
                    x = norm(w, f"{at}.downsample.1", x)
                x = F.relu(x + y)
        x = x.mean((2, 3))
        if "bottleneck.0.weight" in w:
            x = F.linear(x, w["bottleneck.0.weight"], w["bottleneck.0.bias"])
            x = F.relu(norm(w, "bottleneck.1", x))
        return F.linear(x, w["fc.weight"], w["fc.bias"])

    return forward


def dense(w: State, x: Tensor) -> Tensor:
    f = "features"
    x = F.relu(norm(w, f"{f}.norm0", F.conv2d(x, w[f"{f}.conv0.weight"], stride=2, padding=3)))
    x = F.max_pool2d(x, 3, 2, 1)
    for block, depth in enumerate((6, 12, 24, 16), start=1):
        for layer in range(1, depth + 1):
            at = f"{f}.denseblock{block}.denselayer{layer}"
            y = F.conv2d(F.relu(norm(w, f"{at}.norm1", x)), w[f"{at}.conv1.weight"])
            y = F.conv2d(F.relu(norm(w, f"{at}.norm2", y)), w[f"{at}.conv2.weight"], padding=1)
            x = torch.cat([x, y], 1)
        if block < 4:
            at = f"{f}.transition{block}"
            x = F.conv2d(F.relu(norm(w, f"{at}.norm", x)), w[f"{at}.conv.weight"])
            x = F.avg_pool2d(x, 2)
    x = F.relu(norm(w, f"{f}.norm5", x)).mean((2, 3))
    return F.linear(x, w["classifier.weight"], w["classifier.bias"])


def alexnet(layers: tuple[str, ...], normed: bool) -> Callable[[State, Tensor], Tensor]:
    def forward(w: State, x: Tensor) -> Tensor:
        for i, layer in enumerate(layers, start=1):
            weight, bias = w[f"{layer}.weight"], w[f"{layer}.bias"]
            if i <= 5:
                x = F.conv2d(x, weight, bias, *((4, 2) if i == 1 else (1, 2 if i == 2 else 1)))
            else:
                x = F.linear(x, weight, bias)
            if i == 8:
                return x
            if normed:
                x = norm(w, f"{'features' if i <= 5 else 'classifier'}.bn{i}", x)
            x = F.relu(x)
            if i in (1, 2, 5):
                x = F.max_pool2d(x, 3, 2)
            if i == 5:
                x = F.adaptive_avg_pool2d(x, 6).flatten(1)
        return x

    return forward


PLAIN = (*(f"features.{i}" for i in (0, 3, 6, 8, 10)), *(f"classifier.{i}" for i in (1, 4, 6)))
NORMED = (*(f"features.conv{i}" for i in range(1, 6)), *(f"classifier.fc{i}" for i in (1, 2, 3)))


@pytest.mark.parametrize(
    ("expression", "reference", "height", "width"),
    [
        ("resnet18", residual((2, 2, 2, 2), 2), 64, 45),
        ("resnet18(head='csac')", residual((2, 2, 2, 2), 2), 33, 40),
        ("resnet50", residual((3, 4, 6, 3), 3), 40, 33),
        ("densenet121", dense, 40, 65),
        ("alexnet", alexnet(PLAIN, normed=False), 96, 71),
        ("alexnet-bn", alexnet(NORMED, normed=True), 71, 100),
    ],
)
def test_outputs_are_the_operations_one_by_one(
    expression: str, reference: Callable[[State, Tensor], Tensor], height: int, width: int
) -> None:
    made = net(expression)
    x = pixels(height=height, width=width)
    with torch.no_grad():
        torch.testing.assert_close(made(x), reference(made.state_dict(), x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "densenet121", "alexnet"])
def test_images_are_standardised_as_those_of_imagenet(name: str) -> None:
    """torchvision's weights are documented for mean=[0.485, 0.456, 0.406], std=[0.229, 0.224,
    0.225]; nothing of it is in the state dict, whose names stay torchvision's."""
    plain, made = net(name), net(f"{name}(standardise=True)")
    made.load_state_dict(plain.state_dict())
    x = pixels().sigmoid()
    by_hand = torch.empty_like(x)
    for band, (mean, std) in enumerate([(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]):
        by_hand[:, band] = (x[:, band] - mean) / std
    with torch.no_grad():
        torch.testing.assert_close(made(x), plain(by_hand))
        assert not torch.allclose(made(x), plain(x))
    with pytest.raises(UnseenError, match="three bands"):
        build(f"{name}(standardise=True)", (8, 64, 64), 4, keyed("weights"))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (6, 6), (7, 13), (3, 20)])
def test_means_of_cells_are_torchs_with_their_gradient(height: int, width: int) -> None:
    x = torch.randn(2, 3, height, width, generator=keyed("x"), dtype=torch.float64)
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    made, expected = MeanPool(6)(mine), F.adaptive_avg_pool2d(other, 6)
    torch.testing.assert_close(made, expected)
    along = torch.randn(2, 3, 6, 6, generator=keyed("along"), dtype=torch.float64)
    torch.testing.assert_close(
        *(torch.autograd.grad(y, z, along)[0] for y, z in ((made, mine), (expected, other)))
    )


def test_alexnet_drops_before_its_first_two_linear_layers() -> None:
    made = empty("alexnet")
    dropping = {n: m.p for n, m in made.named_modules() if isinstance(m, nn.Dropout)}
    assert dropping == {"classifier.0": 0.5, "classifier.3": 0.5}
    quiet = empty("alexnet", dropout=0.0)
    assert {m.p for m in quiet.modules() if isinstance(m, nn.Dropout)} == {0.0}
    assert not any(isinstance(m, nn.Dropout) for m in empty("alexnet-bn").modules())


def test_first_weights_are_hes() -> None:
    """Standard deviation √(2 / fan): 3×3 convolutions of 512 channels, fan 4608; DenseNet's 1×1
    from 1024 to 512 channels, fan in 1024."""
    weight = net("resnet18").state_dict()["layer4.1.conv2.weight"]
    assert float(weight.std()) == pytest.approx((2 / 4608) ** 0.5, rel=0.01)
    weight = net("densenet121").state_dict()["features.transition3.conv.weight"]
    assert float(weight.std()) == pytest.approx((2 / 1024) ** 0.5, rel=0.01)


# --- CSAC ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "features"), [("resnet18", 512), ("resnet50", 2048)])
def test_csacs_head_of_a_resnet(name: str, features: int) -> None:
    """features → 256 with BatchNorm and ReLU → C."""
    made = empty(name, outputs=7, head="csac")
    body = count(empty(name, outputs=7)) - 7 * (features + 1)
    assert count(made) == body + 256 * (features + 1) + 2 * 256 + 7 * 257
    assert made.get_parameter("fc.weight").shape == (7, 256)


def test_csacs_head_of_alexnet() -> None:
    """4096 → C, weights uniform on ± 0.1 √(6 / (4096 + C)), bias zero."""
    made = build("alexnet(head='csac')", LARGE, 4, keyed("weights")).state_dict()
    bound = 0.1 * (6 / 4100) ** 0.5
    assert float(made["classifier.6.weight"].abs().max()) == pytest.approx(bound, rel=1e-3)
    assert not made["classifier.6.bias"].any()


CSACS = [
    ("resnet18", ["layer2", "layer3", "layer4"], [(128, 28), (256, 14), (512, 7)]),
    ("alexnet", ["features.6", "features.8", "features.10"], [(384, 13), (256, 13), (256, 13)]),
    ("alexnet", ["features.7", "features.9", "features.12"], [(384, 13), (256, 13), (256, 6)]),
]


@pytest.mark.parametrize(("name", "layers", "maps"), CSACS)
def test_the_layers_that_csac_names(
    name: str, layers: list[str], maps: list[tuple[int, int]]
) -> None:
    made = empty(name).eval()
    assert layer_names(made, layers) == layers
    with recorded(made, layers) as take:
        made(torch.zeros(1, *LARGE, device="meta"))
        assert [tuple(m.shape[1:]) for m in take()] == [(w, s, s) for w, s in maps]
    if layers[0] == "features.6":
        assert layer_names(made, None, last=3) == layers


def test_csac_trains_a_resnet_by_its_last_three_stages() -> None:
    clients = {}
    for name in ("a", "b"):
        x = torch.rand(4, 3, 64, 64, generator=keyed(name))
        split = Split(x, torch.tensor([0, 1, 0, 1]))
        clients[name] = Client(name, split, split, 2)
    expression = "csac(acquisition=1, channels=4, layers=['layer2', 'layer3', 'layer4'])"
    federated = method(expression, Training(SGD(0.01), batch_size=4))
    model = Model(build("resnet18(head='csac')", (3, 64, 64), 2, keyed("net")), "cpu", (3, 64, 64))
    before = model.vector.clone()
    state = start(federated, model, ["a", "b"], 0)
    state, outcomes = play(federated, state, InProcess(model, clients), ["a", "b"], 2)
    assert torch.isfinite(state.inbox["model"]).all()
    assert not torch.equal(state.inbox["model"], before)
    assert (outcomes[-1].table["loss"] > 0).all()


@pytest.mark.parametrize(("name", "layer"), [("resnet18", "layer4"), ("densenet121", "relu")])
def test_the_last_maps_of_a_net(name: str, layer: str) -> None:
    model = Model(net(name))
    assert last_maps(model, pixels(height=96, width=96)) == layer


# --- binding -------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["resnet18", "densenet121", "alexnet-bn"])
def test_binding_to_a_vector_changes_no_bit(name: str, memory: torch.memory_format) -> None:
    made = build(name, (3, 64, 64), 4, keyed("weights")).eval()
    made.to(memory_format=memory)  # type: ignore[call-overload]
    x = pixels(height=64, width=64).contiguous(memory_format=memory)
    with torch.no_grad():
        expected = made(x)
        model = Model(made)
        assert torch.equal(model(x), expected)
        vector, buffers = model.vector.clone(), model.buffers.clone()
        model.bind(torch.zeros_like(vector), torch.zeros_like(buffers))
        assert not torch.equal(model(x), expected)
        model.bind(vector, buffers)
        assert torch.equal(model(x), expected)
    assert model.layout.size == count(made)
    assert model.layout.part([n for n, _ in made.named_modules()][-1]).stop == model.layout.size


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("resnet18(head='csca')", "did you mean 'csac'"),
        ("alexnet(head='fc')", r"alexnet\(head\)"),
        ("alexnet(dropout=1)", r"alexnet\(dropout\)"),
        ("densenet121(head='csac')", "no option 'head'"),
        ("resnet34", "did you mean 'resnet"),
    ],
)
def test_refuses(expression: str, said: str) -> None:
    with pytest.raises(UnseenError, match=said):
        build(expression, LARGE, 4, keyed("weights"))
