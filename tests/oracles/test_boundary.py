"""FedDG's boundary term: regions by scipy, the contrast pair by pair, the gradient by autograd."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor, nn

from unseen.core import Client, Split, Turn
from unseen.core.labels import IGNORED
from unseen.core.losses import CrossEntropyDice
from unseen.core.turn import keyed
from unseen.core.vector import Model
from unseen.data.networks import build
from unseen.errors import UnseenError
from unseen.methods.gradient import Backprop, Episodic
from unseen.methods.gradient.boundary import Regions, dilated, nt_xent
from unseen.methods.images.bank import Bank
from unseen.methods.images.frequency import Window, mixed, pixel_range

SIDE, CLASSES = 8, 3


def masks(N: int = 3, seed: str = "masks") -> Tensor:
    """Blots of two classes."""
    y = torch.zeros(N, SIDE, SIDE, dtype=torch.int64)
    draws = torch.randint(1, SIDE - 3, (N, 2), generator=keyed(seed)).tolist()
    for i, (u, v) in enumerate(draws):
        y[i, u : u + 4, v : v + 3] = 1
        y[i, u + 1 : u + 3, v + 1] = 2
    return y


# --- regions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("times", [1, 5])
def test_masks_grow_as_scipy_has_it(seed: int, times: int) -> None:
    mask = np.random.default_rng(seed).random((9, 11)) < 0.15
    grown = dilated(torch.from_numpy(mask)[None], times)[0]
    assert np.array_equal(grown.numpy(), ndimage.binary_dilation(mask, iterations=times))
    shrunk = ~dilated(torch.from_numpy(~mask)[None], times, outside=True)[0]
    assert np.array_equal(shrunk.numpy(), ndimage.binary_erosion(mask, iterations=times))


def test_regions_are_the_released_ones() -> None:
    """The mask without its erosion by one; its dilation by five without the mask."""
    y = masks()
    features = torch.randn(3, 4, SIDE, SIDE, generator=keyed("features"))
    found = Regions.of(y, CLASSES).means(features)
    for c in (1, 2):
        for i in range(3):
            mask = (y[i] == c).numpy()
            border = mask & ~ndimage.binary_erosion(mask)
            around = ndimage.binary_dilation(mask, iterations=5) & ~mask
            for k, region in enumerate((border, around)):
                expected = features[i][:, torch.from_numpy(region)].mean(1)
                torch.testing.assert_close(found[2 * (c - 1) + k, i], expected)


def test_images_without_an_object_and_pixels_that_do_not_count() -> None:
    y = masks()
    y[1][y[1] == 2] = 1
    regions = Regions.of(y, CLASSES)
    assert regions.there.tolist() == [[True, True, True], [True, False, True]]
    assert float(regions.maps[2:, 1].abs().max()) == 0 or not regions.there[1, 1]
    y[0] = torch.where(y[0] == 0, IGNORED, y[0])
    ring = Regions.of(y, CLASSES).maps[1, 0] > 0
    assert ring.any() and bool((y[0][ring] == 2).all())  # all else around it is ignored
    z = torch.zeros(4, 1, 2)
    nothing = Regions.of(torch.zeros(1, 4, 4, dtype=torch.int64), CLASSES)
    assert float(nothing.contrast(z, z, 0.1)) == 0


# --- the contrast -----------------------------------------------------------------------------


def pair_by_pair(first: Tensor, second: Tensor, temperature: float) -> float:
    """As the sum is printed: over ordered pairs of one kind, against the other kind."""
    z, kinds = [*first, *second], [0] * len(first) + [1] * len(second)

    def s(a: int, b: int) -> float:
        cosine = float(z[a] @ z[b] / (z[a].norm() * z[b].norm()))
        return math.exp(cosine / temperature)

    terms = []
    for a in range(len(z)):
        others = sum(s(a, n) for n in range(len(z)) if kinds[n] != kinds[a])
        terms += [
            -math.log(s(a, p) / (s(a, p) + others))
            for p in range(len(z))
            if p != a and kinds[p] == kinds[a]
        ]
    return sum(terms) / len(terms)


def test_the_contrast_is_its_equation() -> None:
    draws = keyed("contrast")
    first, second = (torch.randn(n, 5, generator=draws, dtype=torch.float64) for n in (4, 3))
    for temperature in (0.05, 0.5):
        found = float(nt_xent(first, second, temperature))
        assert found == pytest.approx(pair_by_pair(first, second, temperature))


def test_the_contrast_by_hand() -> None:
    """Borders are one vector, what is around its opposite: −log [e / (e + 2 e⁻¹)] at τ = 1."""
    one = torch.tensor([[1.0, 0.0]]).repeat(2, 1)
    expected = -math.log(math.e / (math.e + 2 / math.e))
    assert float(nt_xent(one, -one, 1.0)) == pytest.approx(expected)
    assert float(nt_xent(one, -one, 0.05)) == pytest.approx(0, abs=1e-12)


# --- the step ---------------------------------------------------------------------------------


def client() -> Client:
    x = torch.rand(4, 1, SIDE, SIDE, generator=keyed("x"))
    split = Split(x, masks(4, "y"))
    return Client("a", split, split, CLASSES)


def opened(boundary: float, net: nn.Module, **options: object) -> tuple[Tensor, Tensor, float]:
    """Weights, and the gradient of one step of feddg, whose styles are the images' own."""
    own = client()
    model = Model(net, shape=(1, SIDE, SIDE))
    bank = Bank("feddg", Window(0), 4)
    turn = Turn(0, 0, 1, "train", "a", roster=("a", "b"))
    x, y = own.split("train").batch(slice(None))
    rows = (bank.describe(x) * 1.3).flatten()[None]
    gradient = Episodic(Backprop(CrossEntropyDice()), bank, boundary=boundary, **options)  # type: ignore[arg-type]
    model.module.train()
    with gradient.open(model, {"feddg": rows.repeat(2, 1)}, own, {}, turn) as step:
        value = step(x, y)
    return model.vector.clone(), model.gradient.clone(), float(value)


def network() -> nn.Module:
    return build("unet(widths=[16, 8], norm='none')", (1, SIDE, SIDE), CLASSES, keyed("net"))


def test_the_step_adds_the_gradient_of_the_term() -> None:
    """Against autograd through one expression of both passes, w' taken as w plus a constant."""
    options = {"inner_lr": 0.05, "interpolation": "swap", "temperature": 1.0}
    weights, plain, before = opened(0.0, network(), **options)
    same, found, after = opened(0.7, network(), **options)
    assert weights.equal(same)  # the step leaves the weights as they were
    own = client()
    x, y = own.split("train").batch(slice(None))
    net = network()
    names = [name for name, _ in net.named_parameters()]
    w = {name: p.detach().clone().requires_grad_(True) for name, p in net.named_parameters()}
    slope = torch.autograd.grad(
        CrossEntropyDice().value(torch.func.functional_call(net, w, x), y), list(w.values())
    )
    moved = {n: w[n] - 0.05 * g for n, g in zip(names, slope, strict=True)}
    regions = Regions.of(y, CLASSES)

    def means(values: dict[str, Tensor], images: Tensor) -> Tensor:
        seen: list[Tensor] = []
        hook = net.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))  # type: ignore[operator]
        torch.func.functional_call(net, values, images)
        hook.remove()
        return regions.means(seen[0])

    # The draw of styles is the step's own: take its images as it makes them.
    draws = Turn(0, 0, 1, "train", "a", roster=("a", "b")).generator("feddg")
    bank = Bank("feddg", Window(0), 4)
    pool = (bank.describe(x) * 1.3).flatten()[None].reshape(-1, 1)
    other = bank.draw(pool, len(x), draws)

    foreign = mixed(x, other, torch.ones(len(x)), Window(0)).clamp(*pixel_range(own.split("train")))
    term = 0.7 * regions.contrast(means(w, x), means(moved, foreign), 1.0)
    expected = torch.autograd.grad(
        term, list(w.values()), allow_unused=True, materialize_grads=True
    )
    flat = torch.cat([g.flatten() for g in expected])
    own_order = Model(network(), shape=(1, SIDE, SIDE)).layout.pack(
        dict(zip(names, expected, strict=True))
    )
    assert float(flat.abs().max()) > 1e-3
    torch.testing.assert_close(2 * (found - plain), own_order, rtol=1e-3, atol=1e-5)
    assert 2 * (after - before) == pytest.approx(float(term.detach()), rel=1e-4)


def test_no_term_is_the_method_bit_for_bit() -> None:
    _, first, _ = opened(0.0, network())
    _, second, _ = opened(0.0, network(), temperature=0.3)
    assert first.equal(second)


def test_statistics_are_those_of_the_first_pass() -> None:
    nets = [build("unet(widths=[4])", (1, SIDE, SIDE), CLASSES, keyed("net")) for _ in range(2)]
    for net, boundary in zip(nets, (0.0, 0.5), strict=True):
        opened(boundary, net)
    for (_, a), (_, b) in zip(nets[0].named_buffers(), nets[1].named_buffers(), strict=True):
        assert a.equal(b) or not a.is_floating_point()


def test_features_must_be_of_the_masks_size() -> None:
    class Coarse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, CLASSES, 1)

        def forward(self, x: Tensor) -> Tensor:
            small = nn.functional.avg_pool2d(x, 2)
            return nn.functional.interpolate(self.conv(small), scale_factor=2.0)

    with pytest.raises(UnseenError, match=r"takes \[4, 4\], and masks are \[8, 8\]"):
        opened(0.1, Coarse())
    with pytest.raises(UnseenError, match="the network has none"):
        opened(0.1, nn.Flatten())


def test_a_mask_that_fills_the_image_has_no_surroundings() -> None:
    y = torch.ones(1, 4, 4, dtype=torch.int64)
    assert not Regions.of(y, 2).there.any()
    assert replace(Regions.of(y, 2)).maps.shape == (2, 1, 4, 4)
