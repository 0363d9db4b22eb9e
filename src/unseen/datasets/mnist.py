"""MNIST: its four files, and the digits rotated as DomainBed or Ghifary et al. do."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from unseen.core.exchange import keyed
from unseen.datasets import ghifary
from unseen.datasets.dataset import DataSet, Domain
from unseen.datasets.digits import ANGLES
from unseen.datasets.entry import Info
from unseen.datasets.files import either, find
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


def variants(
    *, protocol: str = "domainbed", size: int = 16, per_class: int = 100
) -> Mapping[str, Mapping[str, int]]:
    """Return the images of each digit at each angle under Ghifary's protocol, which fixes them."""
    if protocol != "ghifary":
        return {}
    digits = dict.fromkeys(DIGITS, 100 if size == 16 else per_class)
    return {f"M{angle}": digits for angle in ANGLES}


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
            same 1,000 digits at every angle.
        size: Of Ghifary's digits: 16, the images of the authors, see `ghifary.load`; 28, the first
            `per_class` training images of each class of MNIST, uint8 [1000, 1, 28, 28], turned
            here.
        per_class: See `size`.

    Source:
        Gulrajani and Lopez-Paz, "In search of lost domain generalization", 2021.

    Departs from:
        DomainBed in the permutation, which is the same for every seed of a study.
    """
    choice("protocol", protocol, ("domainbed", "ghifary"))
    if protocol == "ghifary":
        if size not in (16, 28):
            raise UnseenError(f"size of Ghifary's digits must be 16 or 28; found {size!r}.")
        return ghifary.load(data_dir) if size == 16 else _first(data_dir, per_class)
    images, digits = map(torch.cat, zip(*(read(data_dir, p) for p in PARTS), strict=True))
    order = torch.randperm(len(digits), generator=keyed("rotated-mnist"))
    domains = []
    for i, angle in enumerate(ANGLES):
        rows = order[i :: len(ANGLES)]
        domains.append(Domain(str(angle), rotate(images[rows], angle).unsqueeze(1), digits[rows]))
    return DataSet("rotated-mnist", tuple(domains), DIGITS, SOURCE, LICENCE, CITATION)


def _first(data_dir: str | Path | None, count: int) -> DataSet:
    """The first `count` training images of each class, each at all six angles."""
    number("per_class", count, 1, 5421, whole=True)  # MNIST has 5,421 training images of the 5
    images, digits = read(data_dir, "train")
    first = torch.cat([(digits == c).nonzero().flatten()[:count] for c in range(len(DIGITS))])
    images, digits = images[first], digits[first]
    domains = [Domain(f"M{a}", rotate(images, a).unsqueeze(1), digits) for a in ANGLES]
    return DataSet("rotated-mnist", tuple(domains), DIGITS, SOURCE, LICENCE, CITATION)


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
    images = _idx(data_dir, f"{part}-images", (N, 28, 28), dataset)
    return images, _idx(data_dir, f"{part}-labels", (N,), dataset).long()


def locate(data_dir: Path, dataset: str = "rotated-mnist") -> None:
    """Look for the four files; an error says where."""
    for part in PARTS:
        _path(data_dir, f"{part}-images", 3, dataset)
        _path(data_dir, f"{part}-labels", 1, dataset)


def locate_either(data_dir: Path) -> None:
    """Look for what one of the protocols reads: the four files, or Ghifary's views."""
    either(partial(locate, data_dir), partial(ghifary.locate, data_dir))


def _path(data_dir: str | Path | None, stem: str, dimensions: int, dataset: str) -> Path:
    spellings = [f"{stem}{dot}idx{dimensions}-ubyte" for dot in "-."]
    names = [name + suffix for suffix in (".gz", "", ".idx") for name in spellings]
    return find(data_dir, names, FOLDERS, dataset=dataset, obtain=OBTAIN)


def _idx(data_dir: str | Path | None, stem: str, shape: tuple[int, ...], dataset: str) -> Tensor:
    """The bytes of an idx file, packed or not, that must have the given shape."""
    path = _path(data_dir, stem, len(shape), dataset)
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise UnseenError(f"{path} is damaged ({error}): fetch it again. {OBTAIN}") from error
    header = b"\x00\x00\x08" + bytes([len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
    size = int(torch.tensor(shape).prod())
    if content[: len(header)] != header or len(content) != len(header) + size:
        raise UnseenError(
            f"{path} is not the idx file of {list(shape)} bytes that MNIST has: found "
            f"{len(content)} bytes with the header {content[: len(header)].hex()}. {OBTAIN}"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=len(header)).view(shape)


def sketch(folder: Path) -> None:
    """Write synthetic stand-ins: MNIST's four files at the one size that it has, 70,000 digits of a
    bar each (0.7 MB packed), and Ghifary's six views."""
    ghifary.sketch(folder)
    (folder / "mnist").mkdir(parents=True, exist_ok=True)
    shapes = torch.zeros(10, 28, 28, dtype=torch.uint8)
    for digit in range(10):
        shapes[digit, 6 : 8 + digit, 4 + 2 * digit : 7 + 2 * digit] = 255
    for part, N in PARTS.items():
        digits = torch.randint(10, (N,), generator=keyed(f"sketch/mnist/{part}"))
        for kind, values in (("images", shapes[digits]), ("labels", digits.to(torch.uint8))):
            sizes = b"".join(n.to_bytes(4, "big") for n in values.shape)
            content = b"\x00\x00\x08" + bytes([values.ndim]) + sizes + values.numpy().tobytes()
            name = f"{part}-{kind}-idx{values.ndim}-ubyte.gz"
            (folder / "mnist" / name).write_bytes(gzip.compress(content, 1, mtime=0))


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
