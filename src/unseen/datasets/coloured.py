"""Color-MNIST: two classes of digits whose colour tells the class, truly or falsely."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from unseen.core.turn import keyed
from unseen.datasets import mnist
from unseen.datasets.dataset import DataSet, Domain
from unseen.datasets.entry import Info
from unseen.errors import number

SOURCE = f"{mnist.SOURCE}, coloured after FedILC"
CITATION = """@article{zhu2022fedilc,
  author = {Zhu, Mike He and Ezzine, L{\\'e}na N{\\'e}hale and Liu, Dianbo and Bengio, Yoshua},
  title = {{FedILC}: Weighted Geometric Mean and Invariant Gradient Covariance for Federated
           Learning on Non-{IID} Data},
  journal = {arXiv preprint arXiv:2205.09305},
  year = {2022}
}"""
#: Probability of the wrong colour in each of FedILC's five training clients (its §5.1.1).
FLIPS = (0.15, 0.30, 0.45, 0.60, 0.75)
TOTALS = {**{f"flip-{flip:.2f}": 10_000 for flip in FLIPS}, "ood-0.90": 10_000}


def load(
    data_dir: str | Path | None,
    *,
    flips: Sequence[float] = FLIPS,
    ood_flip: float = 0.9,
    ood_label_flip: float = 0.15,
) -> DataSet:
    """Color-MNIST as FedILC's released code makes it: uint8 [N, 2, 14, 14], two classes.

    y = 1[digit < 5]; the colour is y, wrong with the domain's probability; the digit, every second
    pixel of it, is in the channel of its colour and the other channel is 0.

    Args:
        data_dir: The data folder.
        flips: Probability of the wrong colour in each training client.
        ood_flip: That of the target.
        ood_label_flip: Probability of a flipped label in the target.

    Returns:
        MNIST's first 50,000 training images, shuffled and dealt out in turn to the domains
        "flip-0.15" ... "flip-0.75"; the last fifth of each, 2,000 of 10,000, is its validation
        split. The last 10,000 training images make "ood-0.90"; their labels are flipped first.

    Source:
        Zhu et al., "FedILC", 2022, §5.1.1. The paper leaves open who holds which images and that
        the clients' labels are clean: both follow the code.

    Departs from:
        The code in the draws, which are the same for every seed of a study.
    """
    flips = flips if isinstance(flips, Sequence) else (flips,)
    for flip in (*flips, ood_flip, ood_label_flip):
        number("a flipping probability of color-mnist", flip, 0, 1)
    images, digits = mnist.read(data_dir, "train", "color-mnist")
    order = torch.randperm(50_000, generator=keyed("color-mnist"))
    parts = [
        (f"flip-{flip:.2f}", order[k :: len(flips)], flip, 0.0) for k, flip in enumerate(flips)
    ]
    parts.append((f"ood-{ood_flip:.2f}", torch.arange(50_000, 60_000), ood_flip, ood_label_flip))
    domains = []
    for name, rows, flip, label_flip in parts:
        x, y = colour(images[rows], digits[rows], flip, label_flip, keyed(f"color-mnist/{name}"))
        validation = (
            torch.arange(len(rows) * 4 // 5, len(rows)) if name.startswith("flip") else None
        )
        domains.append(Domain(name, x, y, validation))
    return DataSet("color-mnist", tuple(domains), ("5-9", "0-4"), SOURCE, mnist.LICENCE, CITATION)


def colour(
    images: Tensor, digits: Tensor, flip: float, label_flip: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return two-channel images [N, 2, 14, 14] and labels [N].

    y = 1[digit < 5] ⊕ noise, colour = y ⊕ flip, the image in channel `colour`.

    Args:
        images: uint8 [N, 28, 28].
        digits: [N].
        flip: Probability of the wrong colour.
        label_flip: Probability of a flipped label.
        generator: Of the draws.
    """

    def bernoulli(probability: float) -> Tensor:
        return (torch.rand(len(digits), generator=generator) < probability).long()

    y = (digits < 5).long() ^ bernoulli(label_flip)
    colours = y ^ bernoulli(flip)
    small = images[:, ::2, ::2]
    x = small.new_zeros(len(small), 2, *small.shape[1:])
    x[torch.arange(len(small)), colours] = small
    return x, y


INFO = Info(
    load,
    "digits below 5 or not, with a misleading colour; five clients and one shifted target",
    SOURCE,
    mnist.LICENCE,
    "mlp(widths=[390, 390])",
    ("loss", "accuracy", "auroc"),
    totals=TOTALS,
    checksums=mnist.CHECKSUMS,
    sketch=mnist.sketch,
    locate=partial(mnist.locate, dataset="color-mnist"),
)
