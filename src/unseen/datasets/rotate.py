"""Rotation of a stack of images by one angle."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

#: Images that one call of grid_sample turns, in its channel axis: all share the angle, so one
#: grid serves them and its corner weights are computed once.
CHUNK = 2048
#: Added before a grey level is cut off: corner weights that sum to 0.9999999 must not cost one.
NUDGE = 2**-10


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Turn each image counter-clockwise about its centre by bilinear interpolation.

    Output pixel (u, v), counted from the centre to the right and down, takes the value of the input
    at (u cos a − v sin a, u sin a + v cos a).

    Args:
        images: [N, H, W], uint8 or floating point.
        degrees: The angle.

    Returns:
        Images of the same shape and type; pixels from beyond the edge are 0. uint8 values are cut
        off, not rounded, as Pillow does: on images with an empty rim nearly all pixels agree with
        `PIL.Image.rotate(a, BILINEAR)`, the rest differ by 1.

    Example:
        >>> rotate(torch.tensor([[[1, 2], [3, 4]]], dtype=torch.uint8), 90).tolist()
        [[[2, 4], [1, 3]]]
    """
    if degrees % 360 == 0:
        return images.clone()
    _, H, W = images.shape
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # The grid's coordinates run from -1 to 1 along each side, so the sides' ratio enters.
    affine = torch.tensor([[[cos, -sin * H / W, 0], [sin * W / H, cos, 0]]], dtype=torch.float64)
    grid = F.affine_grid(affine, [1, 1, H, W], align_corners=False).float()
    turned = torch.empty_like(images)
    for begin in range(0, len(images), CHUNK):
        chunk = images[begin : begin + CHUNK].float().unsqueeze(0)
        values = F.grid_sample(chunk, grid, align_corners=False).squeeze(0)
        whole = not images.is_floating_point()
        turned[begin : begin + CHUNK] = (values + NUDGE).floor() if whole else values
    return turned
