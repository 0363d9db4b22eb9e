"""MNIST: its four files, and the digits rotated as DomainBed or Ghifary et al. do."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.core.turn import keyed
from unseen.datasets.dataset import DataSet, Domain
from unseen.datasets.digits import ANGLES, disjoint
from unseen.datasets.entry import Info
from unseen.datasets.files import either, find
from unseen.datasets.pickles import UNREADABLE, ArrayUnpickler
from unseen.datasets.rotate import rotate
from unseen.errors import UnseenError, choice, number

FOLDERS = (".", "mnist", "MNIST/raw")
SOURCE = "the MNIST database of handwritten digits (LeCun, Cortes, Burges), 70,000 images"
LICENCE = "CC BY-SA 3.0"
OBTAIN = (
    "The four files of the MNIST database of Y. LeCun, C. Cortes and C. Burges are wanted as "
    "distributed; torchvision's MNIST class also downloads them."
)
CITATION = """@article{lecun1998gradient,
  author = {LeCun, Yann and Bottou, L{\\'e}on and Bengio, Yoshua and Haffner, Patrick},
  title = {Gradient-based learning applied to document recognition},
  journal = {Proceedings of the IEEE},
  volume = {86},
  number = {11},
  pages = {2278--2324},
  year = {1998}
}"""
DIGITS = tuple(map(str, range(10)))
#: md5 of the four files as distributed.
CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
PARTS = {"train": 60_000, "t10k": 10_000}
#: Images at each angle, and of each digit over all angles, as counted in the files whose md5 is
#: above: the 60,000 and the 10,000 together.
TOTALS = {str(angle): 11_667 - (angle > 45) for angle in ANGLES}
CLASSES = {
    "0": 6903, "1": 7877, "2": 6990, "3": 7141, "4": 6824,
    "5": 6313, "6": 6876, "7": 7293, "8": 6825, "9": 6958,
}  # fmt: skip
#: The 1,000 digits of Ghifary et al. at each of six angles.
VIEWS = ("mnist_6rot_16x16_float32.npz", "MNIST_6rot.pkl.gz")
VIEWS_FOLDERS = (".", "rotated_mnist_mtae", "rotated-mnist", "mnist")
VIEWS_SOURCE = "the code of Ghifary et al. 2015 (github.com/ghif/mtae), derived from MNIST"
VIEWS_LICENCE = "CC BY-SA 3.0 (derived from MNIST)"
VIEWS_OBTAIN = (
    "MNIST_6rot.pkl.gz lies in the authors' repository ghif/mtae on GitHub; it is read as it is, "
    "or as an npz file with x float32 [6, 1000, 16, 16] and y [6, 1000]."
)
VIEWS_CITATION = """@inproceedings{ghifary2015domain,
  author = {Ghifary, Muhammad and Kleijn, W. Bastiaan and Zhang, Mengjie and Balduzzi, David},
  title = {Domain Generalization for Object Recognition with Multi-task Autoencoders},
  booktitle = {International Conference on Computer Vision},
  pages = {2551--2559},
  year = {2015}
}"""


def load(
    data_dir: str | Path | None,
    *,
    protocol: str = "domainbed",
    size: int = 16,
    per_class: int = 100,
) -> DataSet:
    """Rotated MNIST: six domains, turned counter-clockwise by 0, 15, ..., 75 degrees.

    Args:
        data_dir: The data folder.
        protocol: "domainbed": all 70,000 images, permuted once and dealt out in turn: six disjoint
            domains of 11,666 or 11,667, uint8 [N, 1, 28, 28], named "0" ... "75". "ghifary": the
            same 1,000 digits at every angle, named "M0" ... "M75": a model that has memorised its
            training digits has seen the target's, so that DomainBed's is the harder one.
        size: Of Ghifary's digits: 16, the images of the authors, float32 [1000, 1, 16, 16]; 28, the
            first `per_class` training images of each class of MNIST, uint8 [1000, 1, 28, 28],
            turned here.
        per_class: See `size`.

    Source:
        Gulrajani and Lopez-Paz, "In search of lost domain generalization", 2021. Ghifary et al.,
        "Domain generalization for object recognition with multi-task autoencoders", 2015.

    Departs from:
        DomainBed in the permutation, which is the same for every seed of a study.
    """
    choice("protocol", protocol, ("domainbed", "ghifary"))
    about = SOURCE, LICENCE, CITATION
    if protocol == "domainbed":
        images, digits = map(torch.cat, zip(*(read(data_dir, p) for p in PARTS), strict=True))
        domains = disjoint(images, digits, "rotated-mnist")
    elif size == 16:
        domains = _views(locate_views(data_dir))
        about = VIEWS_SOURCE, VIEWS_LICENCE, VIEWS_CITATION
    elif size == 28:
        number("per_class", per_class, 1, 5421, whole=True)  # MNIST's training images of the 5
        images, digits = read(data_dir, "train")
        first = torch.cat([(digits == c).nonzero().flatten()[:per_class] for c in range(10)])
        x, y = images[first], digits[first]
        domains = tuple(Domain(f"M{a}", rotate(x, a).unsqueeze(1), y) for a in ANGLES)
    else:
        raise UnseenError(f"size of Ghifary's digits must be 16 or 28; found {size!r}.")
    return DataSet("rotated-mnist", domains, DIGITS, *about)


def variants(
    *, protocol: str = "domainbed", size: int = 16, per_class: int = 100
) -> Mapping[str, Mapping[str, int]]:
    """Return the images of each digit at each angle under Ghifary's protocol, which fixes them."""
    if protocol != "ghifary":
        return {}
    digits = dict.fromkeys(DIGITS, 100 if size == 16 else per_class)
    return {f"M{angle}": digits for angle in ANGLES}


def read(
    data_dir: str | Path | None, part: str, dataset: str = "rotated-mnist"
) -> tuple[Tensor, Tensor]:
    """Read images uint8 [N, 28, 28] and digits int64 [N] of one part.

    Args:
        data_dir: The data folder.
        part: "train" or "t10k".
        dataset: The data set that reads them, as errors name it.
    """
    N = PARTS[part]
    images = _idx(_path(data_dir, f"{part}-images", 3, dataset), (N, 28, 28))
    return images, _idx(_path(data_dir, f"{part}-labels", 1, dataset), (N,)).long()


def locate(data_dir: Path, dataset: str = "rotated-mnist") -> None:
    """Look for the four files; an error says where."""
    for part in PARTS:
        _path(data_dir, f"{part}-images", 3, dataset)
        _path(data_dir, f"{part}-labels", 1, dataset)


def locate_views(data_dir: str | Path | None) -> Path:
    """Return the file of Ghifary's views; an error says where it was looked for."""
    return find(data_dir, VIEWS, VIEWS_FOLDERS, dataset="rotated-mnist", obtain=VIEWS_OBTAIN)


def locate_either(data_dir: Path) -> None:
    """Look for what one of the protocols reads: the four files, or Ghifary's views."""
    either(partial(locate, data_dir), partial(locate_views, data_dir))


def _path(data_dir: str | Path | None, stem: str, dimensions: int, dataset: str) -> Path:
    spellings = [f"{stem}{dot}idx{dimensions}-ubyte" for dot in "-."]
    names = [name + suffix for suffix in (".gz", "", ".idx") for name in spellings]
    return find(data_dir, names, FOLDERS, dataset=dataset, obtain=OBTAIN)


def _header(shape: Iterable[int]) -> bytes:
    """The first bytes of an idx file of unsigned bytes."""
    sides = list(shape)
    return bytes([0, 0, 8, len(sides)]) + b"".join(n.to_bytes(4, "big") for n in sides)


def _idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    """The bytes of an idx file, packed or not, that must have this shape."""
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise UnseenError(
            f"{path} is damaged ({error}).", remedy=f"Fetch it again. {OBTAIN}"
        ) from error
    header = _header(shape)
    if content[: len(header)] != header or len(content) != len(header) + math.prod(shape):
        raise UnseenError(
            f"{path} is not the idx file of {list(shape)} bytes that MNIST has: found "
            f"{len(content)} bytes with the header {content[: len(header)].hex()}.",
            remedy=OBTAIN,
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=len(header)).view(shape)


def _views(path: Path) -> tuple[Domain, ...]:
    """The authors' pairs of images and labels, one for each angle."""
    try:
        pairs = _pairs(path)
        views = [
            (torch.as_tensor(x).float().reshape(-1, 1, 16, 16), torch.as_tensor(y).long().flatten())
            for x, y in pairs
        ]
    except UNREADABLE as error:
        raise UnseenError(
            f"{path} does not hold pairs of images and labels: {error}.", remedy=VIEWS_OBTAIN
        ) from error
    if len(views) != len(ANGLES):
        raise UnseenError(f"{path} holds {len(views)} views; {len(ANGLES)} angles are expected.")
    return tuple(Domain(f"M{a}", x, y) for a, (x, y) in zip(ANGLES, views, strict=True))


def _pairs(path: Path) -> Iterable[Any]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return zip(arrays["x"], arrays["y"], strict=True)
    pairs: Iterable[Any] = ArrayUnpickler(io.BytesIO(gzip.decompress(path.read_bytes()))).load()
    return pairs


def sketch(folder: Path) -> None:
    """Write synthetic stand-ins of one bar for each digit.

    MNIST's four files have the one size that it has, 70,000 digits (0.7 MB packed); Ghifary's 1,000
    bars move a pixel on from view to view.
    """
    root = folder / "mnist"
    root.mkdir(parents=True, exist_ok=True)
    shapes = np.zeros((10, 28, 28), np.uint8)
    small = np.zeros((10, 16, 16), np.float32)
    for digit in range(10):
        shapes[digit, 6 : 8 + digit, 4 + 2 * digit : 7 + 2 * digit] = 255
        small[digit, 3 : 4 + digit, 2 + digit : 4 + digit] = 1
    for part, N in PARTS.items():
        digits = torch.randint(10, (N,), generator=keyed(f"sketch/mnist/{part}")).numpy()
        for kind, values in (("images", shapes[digits]), ("labels", digits.astype(np.uint8))):
            content = gzip.compress(_header(values.shape) + values.tobytes(), 1, mtime=0)
            (root / f"{part}-{kind}-idx{values.ndim}-ubyte.gz").write_bytes(content)
    (folder / VIEWS_FOLDERS[1]).mkdir(parents=True, exist_ok=True)
    y = np.arange(1000, dtype=np.int64) % 10
    x = np.stack([np.roll(small[y], view, axis=1) for view in range(len(ANGLES))])
    np.savez_compressed(folder / VIEWS_FOLDERS[1] / VIEWS[0], x=x, y=np.tile(y, (len(ANGLES), 1)))


INFO = Info(
    load,
    "MNIST at six angles: 70,000 disjoint digits (domainbed) or 1,000 at each (ghifary)",
    SOURCE,
    LICENCE,
    "mnist-cnn",
    totals=TOTALS,
    classes=CLASSES,
    checksums=CHECKSUMS,
    sketch=sketch,
    locate=locate_either,
    variants=variants,
)
