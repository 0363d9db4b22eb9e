"""scikit-learn's handwritten digits as six domains, each turned by another angle."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unseen.core.turn import keyed
from unseen.datasets.dataset import DataSet, Domain
from unseen.datasets.entry import Info
from unseen.datasets.rotate import rotate

ANGLES = (0, 15, 30, 45, 60, 75)
SOURCE = (
    "scikit-learn's load_digits: the test part of Optical Recognition of Handwritten Digits, "
    "UCI Machine Learning Repository, doi 10.24432/C50P49"
)
LICENCE = "CC BY 4.0"
TOTALS = dict.fromkeys(("0", "15", "30"), 300) | dict.fromkeys(("45", "60", "75"), 299)
#: Images of each digit over all domains: the test part's class distribution in optdigits.names.
CLASSES = {
    "0": 178, "1": 182, "2": 177, "3": 183, "4": 181,
    "5": 182, "6": 181, "7": 179, "8": 174, "9": 180,
}  # fmt: skip
CITATION = """@misc{alpaydin1998optical,
  author = {Alpaydin, Ethem and Kaynak, Cenk},
  title = {Optical Recognition of Handwritten Digits},
  howpublished = {UCI Machine Learning Repository},
  year = {1998},
  doi = {10.24432/C50P49}
}"""


def load(data_dir: str | Path | None = None) -> DataSet:
    """1,797 real digits in six disjoint domains "0", "15", ..., "75": float32 [N, 1, 8, 8].

    Note:
        The images are permuted once and dealt out in turn, as DomainBed does with MNIST, so that no
        digit appears at two angles. No file is needed: the images come with scikit-learn.
    """
    pixels, labels = handwritten()
    domains = disjoint(pixels.float() / 16, labels, "rotated-digits")
    return DataSet("rotated-digits", domains, tuple(CLASSES), SOURCE, LICENCE, CITATION)


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


INFO = Info(
    load,
    "1,797 handwritten digits of 8 x 8 pixels, six disjoint angles; no files needed",
    SOURCE,
    LICENCE,
    "mlp(widths=[64])",
    totals=TOTALS,
    classes=CLASSES,
)
