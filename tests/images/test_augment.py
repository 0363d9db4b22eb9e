"""Augmentation against Pillow, colorsys and literal loops, image by image, and its statistics."""

from __future__ import annotations

import colorsys
import math
import pickle
from itertools import permutations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.nn import functional as F

from unseen.core.turn import keyed
from unseen.errors import UnseenError
from unseen.methods.images.augment import (
    AUGMENTS,
    CHANGES,
    TRIES,
    Chain,
    ColourJitter,
    Flip,
    Grayscale,
    RandomResizedCrop,
    build,
    changed,
    turned,
)

CSAC = (
    "random-resized-crop(scale=(0.8, 1))+flip"
    "+colour-jitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4)+grayscale(p=0.1)"
)
#: Pillow rounds to bytes after each of the two directions, or once.
TWICE, ONCE = 1.01 / 255, 0.51 / 255


def bytes_of(count: int, height: int = 20, width: int = 26, channels: int = 3) -> Tensor:
    """Images with edges and flat parts, as bytes [count, channels, height, width]."""
    coarse = torch.randint(256, (count, channels, 5, 6), generator=keyed("coarse"))
    fine = torch.randint(40, (count, channels, height, width), generator=keyed("fine"))
    large = F.interpolate(coarse.float(), (height, width))
    return (large * 0.84 + fine).to(torch.uint8)


def picture(x: Tensor) -> Image.Image:
    return Image.fromarray(x.permute(1, 2, 0).contiguous().numpy())


def numbers(image: Image.Image) -> Tensor:
    array = torch.from_numpy(np.array(image.convert("RGB"), dtype=np.float32) / 255)
    return array.permute(2, 0, 1)


def literal_boxes(
    draws: Tensor, crop: RandomResizedCrop, height: int, width: int
) -> list[tuple[int, int, int, int]]:
    """torchvision's loop: ten tries, then the largest part in the middle; top, left, h, w."""
    found = []
    for n in range(draws.shape[1]):
        for t in range(TRIES):
            u = draws[:, n, t].tolist()
            area = height * width * (crop.scale[0] + (crop.scale[1] - crop.scale[0]) * u[0])
            low, high = math.log(crop.ratio[0]), math.log(crop.ratio[1])
            ratio = math.exp(low + (high - low) * u[1])
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                found.append((int(u[2] * (height - h + 1)), int(u[3] * (width - w + 1)), h, w))
                break
        else:
            w, h = width, height
            if width / height < crop.ratio[0]:
                h = round(w / crop.ratio[0])
            elif width / height > crop.ratio[1]:
                w = round(h * crop.ratio[1])
            found.append(((height - h) // 2, (width - w) // 2, h, w))
    return found


@pytest.mark.parametrize(
    ("crop", "height", "width"),
    [
        (RandomResizedCrop(), 20, 26),
        (RandomResizedCrop(scale=(0.8, 1.0)), 20, 26),
        (RandomResizedCrop(scale=(0.9, 1.0)), 12, 40),  # no try fits: the middle
        (RandomResizedCrop(scale=(0.9, 1.0)), 40, 12),
        (RandomResizedCrop(scale=(0.001, 0.01), ratio=(1.0, 1.0)), 9, 9),  # some of no pixel
    ],
)
def test_parts_are_those_of_torchvisions_loop(
    crop: RandomResizedCrop, height: int, width: int
) -> None:
    draws = torch.rand(4, 200, TRIES, generator=keyed("crop"), dtype=torch.float64)
    expected = literal_boxes(draws, crop, height, width)
    found = torch.stack(crop.boxes(200, height, width, keyed("crop")), dim=1)
    assert found.tolist() == [list(box) for box in expected]


@pytest.mark.parametrize("size", [None, 8, 20, 41])
def test_parts_are_resized_as_pillow_does(size: int | None) -> None:
    x = bytes_of(30)
    crop = RandomResizedCrop(size, scale=(0.1, 1.0))
    found = crop(x.float() / 255, keyed("crop"))
    shape = (size or 20, size or 26)
    assert found.shape == (30, 3, *shape)
    boxes = torch.stack(crop.boxes(30, 20, 26, keyed("crop")), dim=1).tolist()
    for image, out, (top, left, h, w) in zip(x, found, boxes, strict=True):
        part = picture(image).crop((left, top, left + w, top + h))
        expected = numbers(part.resize(shape[::-1], Image.Resampling.BILINEAR))
        torch.testing.assert_close(out, expected, atol=TWICE, rtol=0)


def test_the_whole_image_is_resized_and_no_more() -> None:
    whole = RandomResizedCrop(scale=(1.0, 1.0), ratio=(1.0, 1.0))
    x = bytes_of(4, 24, 24).float() / 255
    assert torch.equal(whole(x, keyed("whole")), x)
    for size in (9, 24, 50):
        crop = RandomResizedCrop(size, (1.0, 1.0), (1.0, 1.0))
        expected = F.interpolate(x, (size, size), mode="bilinear", antialias=True)
        torch.testing.assert_close(crop(x, keyed("whole")), expected, atol=1e-5, rtol=0)


def test_areas_shapes_and_places_are_spread_as_they_should() -> None:
    """Parts that always fit, so that no try is repeated."""
    crop = RandomResizedCrop(scale=(0.1, 0.3), ratio=(0.5, 2.0))
    top, left, tall, wide = (v.double() for v in crop.boxes(20_000, 400, 400, keyed("spread")))
    area, shape = tall * wide / 400**2, (wide / tall).log() / math.log(2)
    for values, mean, spread in ((area, 0.2, 0.2), (shape, 0.0, 2.0)):
        deviation = spread / math.sqrt(12)
        assert float(values.mean()) == pytest.approx(mean, abs=4 * deviation / math.sqrt(20_000))
        assert float(values.std()) == pytest.approx(deviation, rel=0.02)
    for start, side in ((top, tall), (left, wide)):
        assert float((start / (400 - side)).mean()) == pytest.approx(0.5, abs=0.01)
        assert bool((start >= 0).all()) and bool((start + side <= 400).all())


def test_flips_are_numpys_and_twice_is_nothing() -> None:
    x = bytes_of(200)
    found = build("flip(p=0.3)")(x, keyed("flip"))
    flipped = 0
    for image, out in zip(x.numpy(), found.numpy(), strict=True):
        same = np.array_equal(out, image)
        assert same or np.array_equal(out, image[:, :, ::-1])
        flipped += not same
    assert abs(flipped - 60) < 4 * math.sqrt(200 * 0.3 * 0.7)
    assert torch.equal(build("flip(p=1)+flip(p=1.0)")(x, keyed("flip")), x)
    assert torch.equal(build("flip")(build("flip")(x, keyed("flip")), keyed("flip")), x)
    assert torch.equal(Flip(0)(x, keyed("flip")), x)


def test_grey_images_are_pillows() -> None:
    x = bytes_of(100)
    found = Grayscale(1.0)(x.float() / 255, keyed("grey"))
    for image, out in zip(x, found, strict=True):
        torch.testing.assert_close(out, numbers(picture(image).convert("L")), atol=TWICE, rtol=0)
    some = Grayscale(0.25)(x.float() / 255, keyed("grey"))
    is_grey = [bool((out == out[:1]).all()) for out in some]
    assert abs(sum(is_grey) - 25) < 4 * math.sqrt(100 * 0.25 * 0.75)
    assert torch.equal(some[~torch.tensor(is_grey)], (x.float() / 255)[~torch.tensor(is_grey)])
    one = x[:, :1]
    assert torch.equal(build("grayscale(p=1)")(one, keyed("grey")), one)


@pytest.mark.parametrize(
    ("name", "enhance"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
    ],
)
@pytest.mark.parametrize("amount", [0.0, 0.6, 1.0, 1.4, 2.0])
def test_changes_are_pillows(name: str, enhance: type, amount: float) -> None:
    x = bytes_of(6)
    found = changed(name, x.float() / 255, torch.full((6, 1, 1, 1), amount))
    # Pillow's mean and grey are whole bytes, and its blends of bytes are cut, not rounded.
    slack = (1.01 + 0.51 * abs(1 - amount)) / 255
    for image, out in zip(x, found, strict=True):
        expected = numbers(enhance(picture(image)).enhance(amount))
        torch.testing.assert_close(out, expected, atol=slack, rtol=0)


@pytest.mark.parametrize("amount", [-0.5, -0.13, 0.0, 0.2, 0.5])
def test_hue_is_colorsyss(amount: float) -> None:
    x = bytes_of(2).double() / 255
    x[0, :, :2], x[0, :, 2:4] = 0.3, x[0, :1, 2:4]  # flat and grey pixels have no hue
    found = turned(x, torch.full((2, 1, 1, 1), amount, dtype=torch.float64))
    for image, out in zip(x, found, strict=True):
        for pixel, other in zip(
            image.flatten(1).T.tolist(), out.flatten(1).T.tolist(), strict=True
        ):
            h, s, v = colorsys.rgb_to_hsv(*pixel)
            assert other == pytest.approx(colorsys.hsv_to_rgb((h + amount) % 1, s, v), abs=1e-9)


def test_no_strength_is_no_change_bit_for_bit() -> None:
    x = torch.rand(9, 3, 7, 8, generator=keyed("x"))
    assert torch.equal(ColourJitter()(x, keyed("jitter")), x)
    assert torch.equal(build("colour-jitter")(bytes_of(9), keyed("jitter")), bytes_of(9))


def test_factors_are_uniform_about_one() -> None:
    x = torch.full((4000, 3, 1, 1), 0.5)
    found = ColourJitter(brightness=0.4)(x, keyed("factors"))[:, 0].flatten() / 0.5
    assert 0.6 <= float(found.min()) < 0.61 and 1.39 < float(found.max()) <= 1.4
    quantiles = found.sort().values[[999, 1999, 2999]]
    torch.testing.assert_close(quantiles, torch.tensor([0.8, 1.0, 1.2]), atol=0.03, rtol=0)
    dark = ColourJitter(brightness=3.0)(x, keyed("factors"))[:, 0].flatten()
    assert float(dark.min()) < 0.01 and float((dark == 1).float().mean()) == pytest.approx(
        0.5, abs=0.04
    )  # factors in [0, 4], cut where they exceed 2


def test_changes_come_in_every_order() -> None:
    """Each image is what the documented draws give one change after the other, in its order."""
    strengths = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.4}
    x = bytes_of(240, 6, 7).double() / 255
    found = ColourJitter(**strengths)(x, keyed("order"))
    generator = keyed("order")
    orders = torch.rand(240, 4, generator=generator).argsort(1).tolist()
    draws = torch.rand(4, 240, generator=generator)
    for n in range(240):
        out = x[n : n + 1]
        for k in orders[n]:
            low = -0.4 if CHANGES[k] == "hue" else 0.6
            amount = low + 0.8 * draws[k, n].double().view(1, 1, 1, 1)
            out = changed(CHANGES[k], out, amount)
        torch.testing.assert_close(found[n : n + 1], out, atol=1e-6, rtol=0)
    assert {tuple(order) for order in orders} == set(permutations(range(4)))


def test_bytes_are_numbers_rounded_once() -> None:
    x = bytes_of(16)
    augment = build(CSAC)
    as_bytes, as_numbers = augment(x, keyed("turn")), augment(x.float() / 255, keyed("turn"))
    assert as_bytes.dtype == torch.uint8 and as_numbers.dtype == torch.float32
    torch.testing.assert_close(as_bytes.float() / 255, as_numbers, atol=ONCE, rtol=0)


def test_draws_depend_on_the_generator_and_the_batchs_size_alone() -> None:
    x, before, copy = bytes_of(16), torch.get_rng_state(), bytes_of(16)
    augment = build(CSAC)
    first, again = augment(x, keyed("one")), augment(x, keyed("one"))
    assert torch.equal(first, again) and not torch.equal(first, augment(x, keyed("two")))
    assert torch.equal(torch.get_rng_state(), before) and torch.equal(x, copy)
    states = []
    for strong in (CSAC, CSAC.replace("0.4", "0.0").replace("0.1)", "0.9)")):
        generator = keyed("one")
        build(strong)(255 - x, generator)
        states.append(generator.get_state())
    assert torch.equal(states[0], states[1])
    same = x[:1].expand(16, -1, -1, -1)
    assert len({out.numpy().tobytes() for out in augment(same, keyed("one"))}) == 16


def test_a_chain_is_its_parts_in_their_order_and_pickles() -> None:
    x = torch.rand(8, 3, 12, 12, generator=keyed("x"))
    augment = build(CSAC)
    assert pickle.loads(pickle.dumps(augment)) == augment and hash(augment)
    assert [type(part) for part in augment.parts] == [
        RandomResizedCrop, Flip, ColourJitter, Grayscale
    ]  # fmt: skip
    generator, out = keyed("turn"), x
    for part in augment.parts:
        out = part(out, generator)
    assert torch.equal(augment(x, keyed("turn")), out)
    assert augment.parts[0] == RandomResizedCrop(scale=[0.8, 1])
    assert torch.equal(Chain(())(x, keyed("turn")), x)
    assert set(AUGMENTS) == {"random-resized-crop", "flip", "colour-jitter", "grayscale"}


def test_an_empty_batch_and_other_shapes_pass() -> None:
    augment = build(CSAC)
    assert augment(torch.zeros(0, 3, 8, 8), keyed("turn")).shape == (0, 3, 8, 8)
    assert augment(torch.zeros(2, 1, 5, 9), keyed("turn")).shape == (2, 1, 5, 9)
    crop_and_flip = build("random-resized-crop(size=4)+flip")
    eight = torch.randn(2, 8, 6, 6, generator=keyed("bands"))  # bands beyond [0, 1]
    assert crop_and_flip(eight, keyed("turn")).shape == (2, 8, 4, 4)


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("flop", "did you mean 'flip'"),
        ("flip(q=0.5)", "has no option 'q'"),
        ("flip(p=1.5)", r"flip\(p\) must be a number in \[0, 1\]"),
        ("grayscale(p=-1)", r"grayscale\(p\)"),
        ("colour-jitter(hue=0.6)", r"colour-jitter\(hue\) must be a number in \[0, 0.5\]"),
        ("random-resized-crop(scale=0.8)", "must be two numbers"),
        ("random-resized-crop(scale=(1, 0.8))", "smaller number first"),
        ("random-resized-crop(scale=(0, 1))", r"\(0, 1\]"),
        ("random-resized-crop(ratio=(1, 2, 3))", "must be two numbers"),
        ("random-resized-crop(size=0)", "size"),
        ("flip+", "cannot read the expression"),
    ],
)
def test_a_wrong_expression_is_refused_before_anything_is_drawn(
    expression: str, fault: str
) -> None:
    with pytest.raises(UnseenError, match=fault):
        build(expression)


@pytest.mark.parametrize(
    ("x", "fault"),
    [
        (torch.zeros(4, 13), r"found torch.float32 of shape \[4, 13\].*Leave it out"),
        (torch.zeros(4, 3, 8, 8, dtype=torch.int64), "found torch.int64"),
        (torch.zeros(4, 8, 8, 8), "found 8 channels"),
        (torch.full((4, 3, 8, 8), 1.5), r"pixels in \[0, 1\]; found values from 1.5 to 1.5"),
    ],
)
def test_what_is_no_image_is_refused(x: Tensor, fault: str) -> None:
    with pytest.raises(UnseenError, match=fault):
        build("colour-jitter(brightness=0.4)")(x, keyed("turn"))
