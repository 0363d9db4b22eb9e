"""MNIST: its files; digits rotated as DomainBed or Ghifary et al. do, or coloured as in FedILC."""

import gzip
import io
import math
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unseen.core.turn import keyed
from unseen.data.dataset import DataSet, Domain
from unseen.data.digits import ANGLES, disjoint, rotate
from unseen.data.entry import Facts, Info, either
from unseen.data.pickles import UNREADABLE, ArrayUnpickler
from unseen.errors import UnseenError, choice, number

FACTS = Facts.of("rotated-mnist", "unseen_papers.data")
#: Of the 1,000 digits at each of six angles.
GHIFARY = Facts.of("ghifary", "unseen_papers.data")
#: FedILC's two classes of digits whose colour tells the class, truly or falsely.
COLOURED = Facts.of("color-mnist", "unseen_papers.data")
#: Probability of the wrong colour in each of FedILC's five training clients (its §5.1.1).
FLIPS = (0.15, 0.30, 0.45, 0.60, 0.75)
PARTS = {"train": 60_000, "t10k": 10_000}
VIEWS = ("mnist_6rot_16x16_float32.npz", "MNIST_6rot.pkl.gz")


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
    about = FACTS
    if protocol == "domainbed":
        images, digits = map(torch.cat, zip(*(read(data_dir, p) for p in PARTS), strict=True))
        domains = disjoint(images, digits, "rotated-mnist")
    elif size == 16:
        domains = _views(GHIFARY.find(data_dir, *VIEWS))
        about = GHIFARY
    elif size == 28:
        number("per_class", per_class, 1, 5421, whole=True)  # MNIST's training images of the 5
        images, digits = read(data_dir, "train")
        first = torch.cat([(digits == c).nonzero().flatten()[:per_class] for c in range(10)])
        x, y = images[first], digits[first]
        domains = tuple(Domain(f"M{a}", rotate(x, a).unsqueeze(1), y) for a in ANGLES)
    else:
        raise UnseenError(f"size of Ghifary's digits must be 16 or 28; found {size!r}.")
    return about.data(domains, (*FACTS.classes,))


def load_coloured(
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
    images, digits = read(data_dir, "train", COLOURED)
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
    return COLOURED.data(domains, COLOURED.labels)


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


def variants(
    data: DataSet, *, protocol: str = "domainbed", size: int = 16, per_class: int = 100
) -> Mapping[str, Mapping[str, int]]:
    """Return the images of each digit at each angle under Ghifary's protocol, which fixes them."""
    if protocol != "ghifary":
        return {}
    digits = dict.fromkeys(FACTS.classes, 100 if size == 16 else per_class)
    return {f"M{angle}": digits for angle in ANGLES}


def read(data_dir: str | Path | None, part: str, facts: Facts = FACTS) -> tuple[Tensor, Tensor]:
    """Read images uint8 [N, 28, 28] and digits int64 [N] of one part.

    Args:
        data_dir: The data folder.
        part: "train" or "t10k".
        facts: What is known of the data set that reads them, for errors.
    """
    N = PARTS[part]
    images = _idx(_path(data_dir, f"{part}-images", 3, facts), (N, 28, 28))
    return images, _idx(_path(data_dir, f"{part}-labels", 1, facts), (N,)).long()


def locate(data_dir: Path, facts: Facts = FACTS) -> None:
    """Look for the four files; an error says where."""
    for part in PARTS:
        _path(data_dir, f"{part}-images", 3, facts)
        _path(data_dir, f"{part}-labels", 1, facts)


def _path(data_dir: str | Path | None, stem: str, dimensions: int, facts: Facts) -> Path:
    spellings = [f"{stem}{dot}idx{dimensions}-ubyte" for dot in "-."]
    return facts.find(data_dir, *(s + end for end in (".gz", "", ".idx") for s in spellings))


def _header(shape: tuple[int, ...]) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)


def _idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise UnseenError(
            f"{path} is damaged ({error}).", remedy=f"Fetch it again. {FACTS.obtain}"
        ) from error
    header = _header(shape)
    if content[: len(header)] != header or len(content) != len(header) + math.prod(shape):
        raise UnseenError(
            f"{path} is not MNIST's idx file of {list(shape)} bytes: found {len(content)} bytes.",
            remedy=FACTS.obtain,
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=len(header)).view(shape)


def _views(path: Path) -> tuple[Domain, ...]:
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                pairs = list(zip(arrays["x"], arrays["y"], strict=True))
        else:
            pairs = ArrayUnpickler(io.BytesIO(gzip.decompress(path.read_bytes()))).load()
        views = [
            (torch.as_tensor(x).float().reshape(-1, 1, 16, 16), torch.as_tensor(y).long().flatten())
            for x, y in pairs
        ]
    except UNREADABLE as error:
        raise UnseenError(
            f"{path} does not hold pairs of images and labels: {error}.", remedy=GHIFARY.obtain
        ) from error
    if len(views) != len(ANGLES):
        raise UnseenError(f"{path} holds {len(views)} views; {len(ANGLES)} angles are expected.")
    return tuple(Domain(f"M{a}", x, y) for a, (x, y) in zip(ANGLES, views, strict=True))


INFO = Info(
    **vars(FACTS), loader=load, variants=variants,
    locate=lambda d: either(partial(locate, d), partial(GHIFARY.find, d, *VIEWS)),
)  # fmt: skip
COLOURED_INFO = Info(**vars(COLOURED), loader=load_coloured, locate=partial(locate, facts=COLOURED))
