"""scikit-learn's handwritten digits as six domains, each turned by another angle."""

import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.core.turn import keyed
from unseen.data.dataset import DataSet, Domain
from unseen.data.entry import Facts, Info

ANGLES = (0, 15, 30, 45, 60, 75)
FACTS = Facts.of("rotated-digits")
#: Images that one call of grid_sample turns, in its channel axis: one grid serves them.
CHUNK = 2048
#: Added before a grey level is cut off: corner weights that sum to 0.9999999 must not cost one.
NUDGE = 2**-10


def load(data_dir: str | Path | None = None) -> DataSet:
    """1,797 real digits in six disjoint domains "0", "15", ..., "75": float32 [N, 1, 8, 8].

    Note:
        The images are permuted once and dealt out in turn, as DomainBed does with MNIST, so that no
        digit appears at two angles. No file is needed: the images come with scikit-learn.
    """
    pixels, labels = handwritten()
    domains = disjoint(pixels.float() / 16, labels, "rotated-digits")
    return FACTS.data(domains, (*FACTS.classes,))


def disjoint(images: Tensor, labels: Tensor, purpose: str) -> tuple[Domain, ...]:
    """Permute images [N, H, W], deal them out in turn, and turn each share by its own angle.

    Args:
        images: uint8 or floating point.
        labels: Classes [N].
        purpose: What the permutation is drawn for.
    """
    order = torch.randperm(len(labels), generator=keyed(purpose))
    shares = [(angle, order[i :: len(ANGLES)]) for i, angle in enumerate(ANGLES)]
    return tuple(
        Domain(str(angle), rotate(images[rows], angle).unsqueeze(1), labels[rows])
        for angle, rows in shares
    )


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


def handwritten() -> tuple[Tensor, Tensor]:
    """Return grey levels from 0 to 16 [1797, 8, 8] in float64, and the digits [1797].

    Note:
        They are read from scikit-learn's file, since importing the library takes a second, in every
        process of a study.
    """
    library = find_spec("sklearn")
    assert library is not None and library.origin is not None  # a dependency
    table = np.loadtxt(Path(library.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    pixels, labels = torch.from_numpy(table).split([64, 1], dim=1)
    return pixels.reshape(-1, 8, 8), labels.flatten().long()


INFO = Info(**vars(FACTS), loader=load)
