"""Rotation against Pillow, against exact quarter turns, and against another group's images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from unseen.core.turn import keyed
from unseen.data.digits import CHUNK, rotate


def blobs(n: int, height: int, width: int) -> Tensor:
    """Random grey images [n, H, W] with an empty rim, so that edges play no part."""
    images = torch.zeros(n, height, width, dtype=torch.uint8)
    inside = torch.randint(
        256, (n, height - 4, width - 4), generator=keyed("blobs"), dtype=torch.uint8
    )
    images[:, 2:-2, 2:-2] = inside
    return images


def by_pillow(images: Tensor, degrees: float) -> Tensor:
    turned = [
        np.array(Image.fromarray(i.numpy()).rotate(degrees, Image.Resampling.BILINEAR))
        for i in images
    ]
    return torch.from_numpy(np.stack(turned))


@pytest.mark.parametrize("degrees", [15, 30, 45, 60, 75, -20, 200])
@pytest.mark.parametrize("shape", [(28, 28), (20, 31)])
def test_grey_levels_are_those_of_pillow(degrees: float, shape: tuple[int, int]) -> None:
    images = blobs(200, *shape)
    difference = (rotate(images, degrees).int() - by_pillow(images, degrees).int()).abs()
    assert int(difference.max()) <= 1
    assert float((difference == 0).double().mean()) > 0.999


@pytest.mark.parametrize("quarter", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_quarter_turns_move_pixels_counter_clockwise(quarter: int, dtype: torch.dtype) -> None:
    images = torch.randint(256, (3, 8, 8), generator=keyed("quarter")).to(dtype)
    expected = torch.rot90(images, quarter, (1, 2))
    torch.testing.assert_close(rotate(images, 90 * quarter), expected, atol=1e-3, rtol=0)


def test_the_input_is_left_alone_also_at_angle_0() -> None:
    images = blobs(2, 8, 8)
    before = images.clone()
    rotate(images, 0).zero_()
    rotate(images, 45).zero_()
    assert torch.equal(images, before)


def test_chunks_do_not_show() -> None:
    images = blobs(CHUNK + 3, 8, 8)
    parts = torch.cat([rotate(images[:1500], 30), rotate(images[1500:], 30)])
    assert torch.equal(rotate(images, 30), parts)
