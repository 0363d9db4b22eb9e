"""scikit-learn's handwritten digits as six domains, each turned by another angle."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unseen.core.exchange import keyed
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

    The images are permuted once and dealt out in turn, as DomainBed does with MNIST, so that no
    digit appears at two angles. No file is needed: the images come with scikit-learn.
    """
    pixels, labels = handwritten()
    images = pixels.float() / 16
    order = torch.randperm(len(labels), generator=keyed("rotated-digits"))
    domains = []
    for i, angle in enumerate(ANGLES):
        rows = order[i :: len(ANGLES)]
        domains.append(Domain(str(angle), rotate(images[rows], angle).unsqueeze(1), labels[rows]))
    return DataSet("rotated-digits", tuple(domains), tuple(CLASSES), SOURCE, LICENCE, CITATION)


def handwritten() -> tuple[Tensor, Tensor]:
    """Return grey levels from 0 to 16 [1797, 8, 8] in float64, and the digits [1797].

    They are read from scikit-learn's file where it lies as usual: importing the library takes a
    second, in every process of a study.
    """
    spec = find_spec("sklearn")
    file = Path(spec.origin if spec and spec.origin else "").parent / "datasets/data/digits.csv.gz"
    if not file.is_file():
        from sklearn.datasets import load_digits

        digits = load_digits()
        return torch.from_numpy(digits.images), torch.from_numpy(digits.target).long()
    table = torch.from_numpy(np.loadtxt(file, delimiter=","))
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].long()


INFO = Info(
    load,
    "1,797 handwritten digits of 8 x 8 pixels, six disjoint angles; no files needed",
    SOURCE,
    LICENCE,
    "mlp(widths=[64])",
    totals=TOTALS,
    classes=CLASSES,
)
