"""Rotated MNIST of Ghifary et al.: the same 1,000 digits seen at six angles."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from unseen.datasets.dataset import DataSet, Domain
from unseen.datasets.digits import ANGLES
from unseen.datasets.files import find
from unseen.datasets.pickles import UNREADABLE, ArrayUnpickler
from unseen.errors import UnseenError

NAMES = ("mnist_6rot_16x16_float32.npz", "MNIST_6rot.pkl.gz")
FOLDERS = (".", "rotated_mnist_mtae", "rotated-mnist", "mnist")
SOURCE = "the code of Ghifary et al. 2015 (github.com/ghif/mtae), derived from MNIST"
LICENCE = "CC BY-SA 3.0 (derived from MNIST)"
OBTAIN = (
    "MNIST_6rot.pkl.gz lies in the authors' repository ghif/mtae on GitHub; it is read as it is, "
    "or as an npz file with x float32 [6, 1000, 16, 16] and y [6, 1000]."
)
CITATION = """@inproceedings{ghifary2015domain,
  author = {Ghifary, Muhammad and Kleijn, W. Bastiaan and Zhang, Mengjie and Balduzzi, David},
  title = {Domain Generalization for Object Recognition with Multi-task Autoencoders},
  booktitle = {International Conference on Computer Vision},
  pages = {2551--2559},
  year = {2015}
}"""


def load(data_dir: str | Path | None) -> DataSet:
    """Six domains "M0" ... "M75" of the same 1,000 digits, 100 of each: float32 [N, 1, 16, 16].

    Since every digit is in every domain, a model that has memorised its training digits has seen
    the target's: the disjoint protocol of DomainBed is the harder one.

    Source:
        Ghifary et al., "Domain generalization for object recognition with multi-task autoencoders",
        2015.
    """
    path = locate(data_dir)
    try:
        views = [
            (torch.as_tensor(x).float().reshape(-1, 1, 16, 16), torch.as_tensor(y).long().flatten())
            for x, y in (_from_npz(path) if path.suffix == ".npz" else _from_pickle(path))
        ]
    except UNREADABLE as error:
        raise UnseenError(
            f"{path} does not hold pairs of images and labels: {error}. {OBTAIN}"
        ) from error
    if len(views) != len(ANGLES):
        raise UnseenError(f"{path} holds {len(views)} views; {len(ANGLES)} angles are expected.")
    domains = [Domain(f"M{a}", x, y) for a, (x, y) in zip(ANGLES, views, strict=True)]
    classes = tuple(map(str, range(10)))
    return DataSet("rotated-mnist", tuple(domains), classes, SOURCE, LICENCE, CITATION)


def locate(data_dir: str | Path | None) -> Path:
    """Return the file of the views; an error says where it was looked for."""
    return find(data_dir, NAMES, FOLDERS, dataset="rotated-mnist", obtain=OBTAIN)


def sketch(folder: Path) -> None:
    """Write a synthetic stand-in: 100 bars for each digit, moved a pixel on from view to view."""
    import numpy as np

    y = np.arange(1000, dtype=np.int64) % 10
    shapes = np.zeros((10, 16, 16), np.float32)
    for digit in range(10):
        shapes[digit, 3 : 4 + digit, 2 + digit : 4 + digit] = 1
    x = np.stack([np.roll(shapes[y], view, axis=1) for view in range(len(ANGLES))])
    root = folder / FOLDERS[1]
    root.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(root / NAMES[0], x=x, y=np.tile(y, (len(ANGLES), 1)))


def _from_npz(path: Path) -> Iterable[Any]:
    import numpy as np

    with np.load(path, allow_pickle=False) as arrays:
        return zip(arrays["x"], arrays["y"], strict=True)


def _from_pickle(path: Path) -> Iterable[Any]:
    content = gzip.decompress(path.read_bytes())
    pairs: Iterable[Any] = ArrayUnpickler(io.BytesIO(content)).load()
    return pairs
