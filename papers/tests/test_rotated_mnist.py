"""Rotation of MNIST against Pillow, and against another group's images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unseen.data import load
from unseen.data.digits import rotate
from unseen_papers.data.mnist import read


def by_pillow(images: Tensor, degrees: float) -> Tensor:
    turned = [
        np.array(Image.fromarray(i.numpy()).rotate(degrees, Image.Resampling.BILINEAR))
        for i in images
    ]
    return torch.from_numpy(np.stack(turned))


def test_digits_agree_with_pillow(real_data: Path) -> None:
    images, _ = read(real_data, "t10k")
    rims = torch.cat([images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1]], dim=1)
    images = images[rims.amax(dim=1) == 0][:2000]
    for degrees in (15, 45, 75):
        difference = (rotate(images, degrees).int() - by_pillow(images, degrees).int()).abs()
        assert int(difference.max()) <= 1
        assert float((difference == 0).double().mean()) > 0.9995


def test_the_sense_of_rotation_is_that_of_ghifary(real_data: Path) -> None:
    """Their view at +a must look like ours at +a, for every digit class, not like ours at -a."""
    views = load("rotated-mnist", real_data, protocol="ghifary").domains
    upright = views[0].x.squeeze(1)
    for view, degrees in zip(views[1:], (15, 30, 45, 60, 75), strict=True):
        theirs = view.x.squeeze(1)
        right, wrong = (
            (rotate(upright, sign * degrees) - theirs).square().mean() for sign in (1, -1)
        )
        assert float(right) < 0.25 * float(wrong), view.name
