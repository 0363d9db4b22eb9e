"""CSAC against its equations: attention by hand, MMD by loops, calibration in plain torch."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.residual import nets
from support.sites import images
from torch import Tensor, nn

from unseen import Client, Model, Split, Training
from unseen.core.optimiser import SGD, Adam
from unseen.core.turn import Turn, keyed
from unseen.methods.csac import Calibration
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.alignment import Projections, attention
from unseen.methods.gradient.discrepancy import mmd, mse, squared_distances
from unseen.methods.local.batches import batches
from unseen.methods.local.train import Train

NAMES = ["site-a", "site-b", "site-c"]
TURN = Turn(seed=0, round=3, rounds=9, exchange="train", client="site-a")
RECIPE = Training(SGD(0.05, momentum=0.5), batch_size=8)


# Attention, Eqs. 7-9


def test_attention_by_hand_on_2_by_2_by_2():
    one, none = [[1.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]
    A = [[one, none], [[[0.0, 0.0], [0.0, 2.0]], one]]
    B = [[one, none], [none, [[4.0, 0.0], [0.0, 0.0]]]]
    fused, own = (torch.tensor(maps)[:, None] for maps in (A, B))
    # avg(AᵀB), 16 entries: A1ᵀB1 all 1; A1ᵀB2 all 0; A2ᵀB1 sums to 2·4; A2ᵀB2 to 4·4.
    position = [(1.0, 0.0), (0.5, 1.0)]
    # avg(ABᵀ), 4 entries: A1B1ᵀ sums to 4; A1B2ᵀ to 4; A2B1ᵀ to 6; A2B2ᵀ to 4.
    channel = [(1.0, 1.0), (1.5, 1.0)]

    def softmax(row):
        return [math.exp(e) / sum(map(math.exp, row)) for e in row]

    p, c = torch.tensor([*map(softmax, position)]), torch.tensor([*map(softmax, channel)])
    torch.testing.assert_close(attention(fused, own, "position"), p)
    torch.testing.assert_close(attention(fused, own, "channel"), c)
    torch.testing.assert_close(attention(fused, own), (p + c) / 2)
    assert torch.equal(attention(fused, own, "none"), torch.full((2, 2), 0.5))


def literal_attention(fused: list[Tensor], own: list[Tensor], kind: str) -> Tensor:
    """Eqs. 7-9 with every attention map formed, for lists of maps [N, c, g, w]."""
    R, N = len(fused), len(fused[0])
    energies = {name: fused[0].new_empty(R, R) for name in ("position", "channel")}
    for name, energy in energies.items():
        for left in range(R):
            for right in range(R):
                each = []
                for n in range(N):
                    A, B = fused[left][n].flatten(1), own[right][n].flatten(1)
                    each.append((A.T @ B if name == "position" else A @ B.T).mean())
                energy[left, right] = sum(each) / N
    alpha = {name: energy.exp() / energy.exp().sum(1, True) for name, energy in energies.items()}
    if kind == "none":
        return fused[0].new_full((R, R), 1 / R)
    return (alpha["position"] + alpha["channel"]) / 2 if kind == "both" else alpha[kind]


@pytest.mark.parametrize("kind", ["both", "position", "channel", "none"])
def test_attention_is_the_average_of_the_whole_maps(kind):
    generator = keyed("maps")
    fused, own = (torch.randn(3, 5, 4, 2, 3, generator=generator) for _ in range(2))
    alpha = attention(fused, own, kind)
    torch.testing.assert_close(alpha, literal_attention([*fused], [*own], kind))
    torch.testing.assert_close(alpha.sum(1), torch.ones(3))


def test_attention_of_large_features_neither_overflows_nor_ties():
    fused, own = (torch.randn(2, 3, 4, 2, 2, generator=keyed(n)) * 1e8 for n in "ab")
    for kind in ("both", "position", "channel"):
        alpha = attention(fused, own, kind)
        assert torch.isfinite(alpha).all()
        torch.testing.assert_close(alpha.sum(1), torch.ones(2))


# The discrepancies


def literal_mmd(x: Tensor, y: Tensor, estimator: str) -> Tensor:
    """One pair of samples [N, D], point by point."""
    N = len(x)
    points = [*x, *y]
    squared = [[((a - b) ** 2).sum() for b in points] for a in points]
    mean = float(sum(sum(row) for row in squared).detach()) / (2 * N) ** 2

    def k(i: int, j: int) -> Tensor:
        widths = [3.0**e * mean for e in (-3, -2, -1, 0, 1)]
        return sum(torch.exp(-squared[i][j] / (2 * width)) for width in widths)

    total = torch.zeros((), dtype=x.dtype)
    for i in range(N):
        for j in range(N):
            if estimator == "biased":
                total = total + (k(i, j) + k(N + i, N + j)) / N**2
            elif i != j:
                total = total + (k(i, j) + k(N + i, N + j)) / (N * (N - 1))
            total = total - 2 * k(i, N + j) / N**2
    return total


def samples(N: int = 6, D: int = 7, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = keyed("samples")
    x = torch.randn(2, N, D, generator=generator, dtype=dtype)
    y = torch.randn(3, N, D, generator=generator, dtype=dtype) * 1.5 + 0.7
    return x, y


@pytest.mark.parametrize("estimator", ["unbiased", "biased"])
def test_mmd_and_its_gradient_are_the_double_loop(estimator):
    x, y = (part.requires_grad_() for part in samples())
    found = mmd(x, y, estimator)
    pairs = [[literal_mmd(a, b, estimator) for b in y] for a in x]
    expected = torch.stack([torch.stack(row) for row in pairs])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)
    weights = torch.randn(2, 3, generator=keyed("weights"), dtype=torch.float64)
    ours = torch.autograd.grad((weights * found).sum(), (x, y))
    theirs = torch.autograd.grad((weights * expected).sum(), (x, y))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(("scale", "offset"), [(1, 1000), (1e8, 0), (1e-8, 0), (1e6, 1e9)])
def test_mmd_in_float32_is_that_of_float64_for_large_and_far_features(scale, offset):
    x, y = samples(dtype=torch.float32)
    x, y = x * scale + offset, y * scale + offset
    expected = torch.stack(
        [torch.stack([literal_mmd(a, b, "unbiased") for b in y.double()]) for a in x.double()]
    )
    torch.testing.assert_close(mmd(x, y), expected.float(), rtol=2e-4, atol=2e-5)


def test_layers_of_very_different_size_do_not_blur_each_other():
    x, y = samples(dtype=torch.float32)
    x[0], y[0] = x[0] * 1e4 + 3e4, y[0] * 1e4
    expected = literal_mmd(x[1].double(), y[1].double(), "unbiased").float()
    torch.testing.assert_close(mmd(x, y)[1, 1], expected, rtol=1e-4, atol=1e-6)


def test_a_sample_and_itself():
    x, _ = samples()
    assert mmd(x, x, "biased").diagonal().abs().max() < 1e-12
    still = torch.ones(1, 4, 3, requires_grad=True)
    value = mmd(still, torch.ones(1, 4, 3))
    assert torch.equal(value, torch.zeros(1, 1))
    value.sum().backward()
    assert torch.equal(still.grad, torch.zeros(1, 4, 3))


def test_distances_have_the_gradient_they_should():
    x, y = (part.requires_grad_() for part in samples(4, 3))
    assert torch.autograd.gradcheck(lambda x, y: squared_distances(x + 5, y), (x, y))
    xx, yy, xy = squared_distances(x, y)
    for found, a, b in [(xx[1], x[1], x[1]), (yy[2], y[2], y[2]), (xy[1, 2], x[1], y[2])]:
        torch.testing.assert_close(found, torch.cdist(a, b).square(), rtol=1e-9, atol=1e-12)


def test_mse_is_torchs():
    x, y = samples()
    assert mse(x, y)[1, 2] == pytest.approx(float(F.mse_loss(x[1], y[2])))


# Projections, Eq. 5


@pytest.mark.parametrize(
    ("sizes", "kernels"),
    [
        ([(32, 28, 28), (64, 14, 14)], [(3, 3), (1, 1)]),  # MNIST CNN
        ([(128, 28, 28), (256, 14, 14), (512, 7, 7)], [(22, 22), (3, 3), (1, 1)]),  # ResNet-18
        ([(384, 13, 13), (256, 13, 13), (256, 6, 6)], [(8, 8), (8, 8), (1, 1)]),  # AlexNet
        ([(3, 4, 5), (2, 2, 5)], [(3, 1), (1, 1)]),
    ],
)
def test_projections_are_convolutions_to_the_smallest_size(sizes, kernels):
    maps = [torch.randn(2, *size, generator=keyed("maps")) for size in sizes]
    project = Projections.of(maps, channels=4)
    count = sum(4 * size[0] * h * w + 4 for size, (h, w) in zip(sizes, kernels, strict=True))
    assert project.layout.size == 2 * count
    vector = project.draw(keyed("projections"), maps[0])
    views = project.layout.views(vector)
    smallest = tuple(min(axis) for axis in zip(*sizes, strict=True))[1:]
    for side in ("fused", "own"):
        found = project(vector, side, maps)
        assert found.shape == (len(sizes), 2, 4, *smallest)
        for i, (m, kernel) in enumerate(zip(maps, kernels, strict=True)):
            halved = [k == 3 for k in kernel]
            conv = nn.Conv2d(m.shape[1], 4, kernel, [1 + h for h in halved], [*map(int, halved)])
            with torch.no_grad():
                conv.weight.copy_(views[f"{side}.{i}.weight"])
                conv.bias.copy_(views[f"{side}.{i}.bias"])
                torch.testing.assert_close(found[i], conv(m), rtol=1e-4, atol=1e-5)
            bound = 1 / (m.shape[1] * kernel[0] * kernel[1]) ** 0.5
            for part in ("weight", "bias"):
                assert views[f"{side}.{i}.{part}"].abs().max() <= bound
            assert views[f"{side}.{i}.weight"].abs().max() > 0.5 * bound
    assert not torch.equal(views["fused.0.weight"], views["own.0.weight"])


def test_smallest_channels_are_those_of_the_narrowest_layer():
    maps = [torch.zeros(2, 8, 4, 4), torch.zeros(2, 6, 2, 2)]
    project = Projections.of(maps, "smallest")
    assert project.layout.shapes[0] == (6, 8, 3, 3)


# Calibration, Eqs. 5-11, as one would write it with modules and torch.optim


def doubled(client: Client) -> Client:
    split = client.split("train")
    return Client(client.name, Split(split.x.double(), split.y), None, client.classes)


def maps_of(net: nn.Module, layers: list[str], x: Tensor) -> tuple[list[Tensor], Tensor]:
    found: dict[str, Tensor] = {}
    modules = dict(net.named_modules())
    handles = [
        modules[n].register_forward_hook(lambda m, i, o, n=n: found.__setitem__(n, o.clone()))
        for n in layers
    ]
    outputs = net(x)
    for handle in handles:
        handle.remove()
    return [found[n] for n in layers], outputs


def convolutions(project: Projections, vector: Tensor, side: str) -> nn.ModuleList:
    convs = nn.ModuleList()
    views = project.layout.views(vector)
    for i, (stride, padding) in enumerate(zip(project.strides, project.paddings, strict=True)):
        weight, bias = views[f"{side}.{i}.weight"], views[f"{side}.{i}.bias"]
        c, C, *kernel = weight.shape
        conv = nn.Conv2d(C, c, kernel, stride, padding).double()
        with torch.no_grad():
            conv.weight.copy_(weight)
            conv.bias.copy_(bias)
        convs.append(conv)
    return convs


def literal_calibration(fused, own, layers, client, recipe, options) -> list[float]:
    """Trains `fused` in place over the recipe's batches; returns each batch's loss."""
    o = {
        "lam": 0.6, "strategy": "cross-layer", "attention": "both", "metric": "mmd",
        "estimator": "unbiased", "cross_entropy": True, "logits": False, "channels": 32,
        "projections": "trained", "attention_gradient": False,
    } | options  # fmt: skip
    split = client.split("train")
    own.eval()
    maps, _ = maps_of(own, layers, split.x[:2])
    project = Projections.of(maps, o["channels"])
    drawn = project.draw(TURN.generator("projections"), split.x)
    A, B = convolutions(project, drawn, "fused"), convolutions(project, drawn, "own")
    sgd = dict(lr=recipe.optimiser.lr, momentum=recipe.optimiser.momentum)
    optimiser = torch.optim.SGD(fused.parameters(), **sgd)
    other = torch.optim.SGD([*A.parameters(), *B.parameters()], **sgd)

    def distance(x, y):
        if o["metric"] == "mse":
            return F.mse_loss(x, y)
        return literal_mmd(x, y, o["estimator"])

    losses = []
    for index in batches(split, recipe, TURN):
        x, y = split.batch(index)
        with torch.no_grad():
            theirs, target = maps_of(own, layers, x)
        fused.train()
        ours, outputs = maps_of(fused, layers, x)
        left = [conv(m) for conv, m in zip(A, ours, strict=True)]
        right = [conv(m) for conv, m in zip(B, theirs, strict=True)]
        alpha = literal_attention(left, right, o["attention"])
        if o["strategy"] == "same-layer":
            alpha = torch.eye(len(layers))
        if o["strategy"] == "none":
            alpha = torch.zeros(len(layers), len(layers))
        align = torch.zeros((), dtype=torch.float64)
        for i, a in enumerate(left):
            for j, b in enumerate(right):
                weight = alpha[i, j] if o["attention_gradient"] else alpha[i, j].item()
                align = align + weight * distance(a.flatten(1), b.flatten(1))
        if o["logits"]:
            align = align + distance(outputs, target)
        loss = o["lam"] * align
        if o["cross_entropy"]:
            loss = loss + F.cross_entropy(outputs, y)
        optimiser.zero_grad()
        other.zero_grad()
        loss.backward()
        optimiser.step()
        if o["projections"] == "trained":
            other.step()
        losses.append(float(loss.detach()) * len(y))
    return losses


ABLATIONS = {
    "default": {},
    "lam": {"lam": 2.0},
    "same-layer": {"strategy": "same-layer"},
    "without-position": {"attention": "channel"},
    "without-channel": {"attention": "position"},
    "without-attention": {"attention": "none"},
    "without-cross-entropy": {"cross_entropy": False},
    "mse": {"metric": "mse"},
    "biased": {"estimator": "biased"},
    "logits": {"logits": True},
    "logits-mse": {"logits": True, "metric": "mse"},
    "logits-alone": {"strategy": "none", "logits": True},
    "logits-alone-far": {"strategy": "none", "logits": True, "lam": 60.0},
    "logits-alone-mse": {"strategy": "none", "logits": True, "metric": "mse"},
    "fixed": {"projections": "fixed"},
    "smallest": {"channels": "smallest"},
    "attention-gradient": {"attention_gradient": True},
}


@pytest.mark.parametrize("which", ABLATIONS)
@pytest.mark.parametrize("kind", ["bn-cnn", "residual"])
def test_every_ablation_is_the_loop_written_out(kind: str, which: str):
    options = ABLATIONS[which]
    fused, own, layers = nets(kind)
    fused, own = fused.double(), own.double()
    client, recipe = doubled(images(1)["site-a"]), RECIPE
    model, theirs = Model(copy.deepcopy(fused)), Model(copy.deepcopy(own))
    memory = {"own.model": theirs.vector.clone(), "own.buffers": theirs.buffers.clone()}
    kept = {name: value.clone() for name, value in memory.items()}
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    local = Train(Calibration(recipe, layers=tuple(layers), **options), recipe)
    reply, after = local(model, inbox, client, memory, TURN)

    losses = literal_calibration(fused, own, layers, client, recipe, options)
    expected = Model(fused)
    torch.testing.assert_close(model.vector, expected.vector, rtol=1e-8, atol=1e-11)
    torch.testing.assert_close(model.buffers, expected.buffers, rtol=1e-8, atol=1e-11)
    assert reply.scalars["loss"] == pytest.approx(sum(losses) / len(client.split("train")))
    assert set(reply.scalars) == {"examples", "steps", "loss"}
    assert reply.rows.keys() == {"model", "buffers"}
    for name, value in kept.items():
        assert torch.equal(after[name], value)


def test_the_ablations_are_all_different():
    results = {}
    for which, options in ABLATIONS.items():
        fused, own, layers = nets("bn-cnn")
        model, theirs = Model(fused), Model(own)
        memory = {"own.model": theirs.vector, "own.buffers": theirs.buffers}
        inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
        local = Train(Calibration(RECIPE, layers=tuple(layers), **options), RECIPE)
        local(model, inbox, images(1)["site-a"], memory, TURN)
        results[which] = model.vector.clone()
    names = list(results)
    for i, a in enumerate(names):
        for b in names[:i]:
            assert not torch.equal(results[a], results[b]), (a, b)


def calibrated(turn: Turn = TURN, recipe: Training = RECIPE, **options) -> Tensor:
    fused, own, _ = nets("bn-cnn")
    model, theirs = Model(fused), Model(own)
    memory = {"own.model": theirs.vector, "own.buffers": theirs.buffers}
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    Train(Calibration(recipe, **options), recipe)(model, inbox, images(1)["site-a"], memory, turn)
    return model.vector.clone()


@pytest.mark.parametrize("options", [{"lam": 0}, {"strategy": "none"}])
def test_without_alignment_a_step_is_plain_bit_for_bit(options):
    fused, _, _ = nets("bn-cnn")
    model = Model(fused)
    Train(Backprop(), RECIPE)(model, {}, images(1)["site-a"], {}, TURN)
    assert torch.equal(calibrated(**options), model.vector)


def test_projections_are_drawn_anew_for_each_client_and_round():
    one = Training(SGD(0.05), epochs=None, steps=1, batch_size=24)  # order of rows aside
    base = calibrated(recipe=one)
    assert torch.equal(base, calibrated(recipe=one))
    for turn in (replace(TURN, client="site-b"), replace(TURN, round=4)):
        difference = (base - calibrated(turn, one)).abs().max()
        plain_difference = (calibrated(lam=0, recipe=one) - calibrated(turn, one, lam=0)).abs()
        assert difference > 10 * plain_difference.max()


def test_projections_take_the_trainings_optimiser():
    recipes = [Training(opt, batch_size=8) for opt in (SGD(0.05), Adam(0.01))]
    for recipe in recipes:
        trained = calibrated(recipe=recipe)
        assert torch.isfinite(trained).all()
        assert not torch.equal(trained, calibrated(recipe=recipe, projections="fixed"))


def test_hooks_are_gone_even_after_an_error():
    fused, own, _ = nets("bn-cnn")
    model, theirs = Model(fused), Model(own)
    memory = {"own.model": theirs.vector, "own.buffers": theirs.buffers}
    gradient, client = Calibration(RECIPE), images(1)["site-a"]
    with (
        pytest.raises(RuntimeError),
        gradient.open(model, {}, client, memory, TURN) as step,
    ):
        assert any(part._forward_hooks for part in fused.modules())
        step(torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.long))
    assert not any(part._forward_hooks for part in fused.modules())


# The method
