"""AugMix's operations against Pillow and linear images, and its chains image by image."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from unseen import UnseenError
from unseen.core.turn import keyed
from unseen.methods.images.augmix import AFFINE, PIXELWISE, AugMix, pixelwise, warped


def grey(name="grey", size=(9, 12)) -> torch.Tensor:
    """A uint8 image [1, 1, H, W] as floats."""
    return torch.randint(40, 200, (1, 1, *size), generator=keyed(name)) / 255


def pillow(x: torch.Tensor) -> Image.Image:
    return Image.fromarray((x[0, 0] * 255).round().to(torch.uint8).numpy())


@pytest.mark.parametrize(("level", "bits"), [(0.3, 4), (2.4, 4), (2.6, 3), (5.1, 2)])
def test_posterize_is_pillows(level, bits):
    x = torch.arange(256).view(1, 1, 16, 16) / 255
    found = pixelwise("posterize", x, torch.tensor([level]))
    expected = np.asarray(ImageOps.posterize(pillow(x), bits))
    assert np.array_equal((found[0, 0] * 255).round().numpy(), expected)


def test_solarize_is_pillows():
    x = torch.arange(256).view(1, 1, 16, 16) / 255
    found = pixelwise("solarize", x, torch.tensor([2.0]))
    expected = np.asarray(ImageOps.solarize(pillow(x), 204))  # 0.8 · 255
    assert np.array_equal((found[0, 0] * 255).round().numpy(), expected)


def test_autocontrast_is_pillows_but_for_its_rounding():
    x = grey()
    found = pixelwise("autocontrast", x, torch.tensor([1.0]))
    expected = np.asarray(ImageOps.autocontrast(pillow(x))) / 255
    np.testing.assert_allclose(found[0, 0].numpy(), expected, atol=1.01 / 255)
    assert (float(found.min()), float(found.max())) == (0, 1)


def test_equalize_gives_every_value_its_rank():
    values = torch.rand(50, generator=keyed("values"))
    found = pixelwise("equalize", values.view(1, 1, 5, 10), torch.tensor([1.0])).flatten()
    assert torch.equal(found[values.argsort()], torch.arange(50) / 49)
    sparse = torch.tensor([0.0, 0, 0, 0.2, 0.2, 0.9]).view(1, 1, 2, 3)
    found = pixelwise("equalize", sparse, torch.tensor([1.0])).flatten()
    torch.testing.assert_close(found, torch.tensor([0, 0, 0, 3 / 5, 3 / 5, 1]))


@pytest.mark.parametrize("name", PIXELWISE)
def test_images_of_one_value_stay_finite(name):
    flat = torch.full((2, 3, 4, 4), 0.4)
    found = pixelwise(name, flat, torch.tensor([1.0, 2.0]))
    assert torch.isfinite(found).all()
    if name in ("autocontrast", "equalize"):
        assert torch.equal(found, flat)


@pytest.mark.parametrize("size", [(16, 16), (16, 24)])
@pytest.mark.parametrize("level", [-2.0, 1.5])
@pytest.mark.parametrize("name", AFFINE)
def test_affine_operations_move_linear_images_as_the_formulas_say(name, level, size):
    """Bilinear interpolation is exact on f = a u + b v, whose values tell where a pixel came from.

    u, v are pixels from the centre, to the right and downwards.
    """
    h, w = size
    v, u = torch.meshgrid(
        torch.arange(h) - (h - 1) / 2, torch.arange(w) - (w - 1) / 2, indexing="ij"
    )
    x = torch.stack([u, v])[None].double()
    found = warped(x, torch.tensor([AFFINE.index(name)]), torch.tensor([level]))[0]
    a = math.radians(3 * level)
    come_from = {
        "rotate": (u * math.cos(a) + v * math.sin(a), v * math.cos(a) - u * math.sin(a)),
        "shear-x": (u + 0.03 * level * v, v),
        "shear-y": (u, v + 0.03 * level * u),
        "translate-x": (u + level * w / 30, v),
        "translate-y": (u, v + level * h / 30),
    }[name]
    inner = (slice(4, h - 4), slice(4, w - 4))
    for channel, expected in zip(found, come_from, strict=True):
        torch.testing.assert_close(channel[inner], expected.double()[inner], rtol=0, atol=1e-5)


def test_a_batch_is_augmented_as_its_images_one_by_one():
    """The same draws, applied to each image by itself, written out as Algorithm 1 is."""
    x, N = torch.rand(7, 3, 10, 10, generator=keyed("x")), 7
    found = AugMix(3.0)(x, keyed("draws"))
    g = keyed("draws")
    e = -torch.rand(3, N, generator=g).log()
    m, depth = torch.rand(N, generator=g), torch.randint(1, 4, (3, N), generator=g)
    mix = torch.zeros_like(x)
    for i in range(3):
        steps = []
        for _ in range(3):
            kind = torch.randint(9, (N,), generator=g)
            level = 0.1 + 2.9 * torch.rand(N, generator=g)
            steps.append((kind, level, torch.randint(2, (N,), generator=g) * 2 - 1))
        for n in range(N):
            image = x[n : n + 1]
            for kind, level, sign in steps[: int(depth[i, n])]:
                k, own = int(kind[n]), level[n : n + 1]
                if k < 5:
                    image = warped(image, kind[n : n + 1], own * sign[n])
                else:
                    image = pixelwise(PIXELWISE[k - 5], image, own)
            mix[n] += e[i, n] / e[:, n].sum() * image[0]
    expected = torch.stack([m[n] * x[n] + (1 - m[n]) * mix[n] for n in range(N)])
    torch.testing.assert_close(found, expected)
    assert found.amin() >= 0
    assert found.amax() <= 1
    assert (found - x).flatten(1).abs().amax(1).min() > 1e-3


def test_severity_is_bounded():
    with pytest.raises(UnseenError, match=r"augmix\(severity\)"):
        AugMix(0)
