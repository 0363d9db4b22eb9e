"""Ten digits as four collections have them: MNIST, USPS, Semeion and Optdigits, 16 x 16 pixels.

Each collection is a site with its own writers, scanner and preprocessing. The images are of 28, 16,
16 (black and white) and 8 pixels a side; here they are all resized to 16.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.core.turn import keyed
from unseen.data.dataset import DataSet, Domain
from unseen.data.entry import Facts, Info, either
from unseen.errors import UnseenError
from unseen_papers.data import mnist


@dataclass(frozen=True, kw_only=True)
class Makers(Facts):
    """What the catalogue says.

    Attributes:
        exported: Digits per class of the export.
    """

    exported: Mapping[str, Mapping[str, int]]


FACTS = Makers.of("sites/digit-makers", "unseen_papers.data")
EXPORT = "digit_makers.npz"
SIDE, COUNT = 16, 1500
#: Maker -> its files, each with the names that it may have; MNIST's are those of `mnist`.
TEXTS = {
    "usps": (("zip.train.gz", "zip.train"), ("zip.test.gz", "zip.test")),
    "semeion": (("semeion.data",),),
    "optdigits": (("optdigits.tra",), ("optdigits.tes",)),
}


def load(data_dir: str | Path | None) -> DataSet:
    """Load 1,500 digits of each maker: uint8 [1500, 1, 16, 16].

    Args:
        data_dir: The data folder: the files as distributed, or `digit_makers.npz` of x uint8
            [N, 16, 16], y [N] and site [N].

    Note:
        Of the files as distributed 1,500 images of each maker are drawn at random, the same ones
        for every seed, and resized by bilinear interpolation, smoothed where they shrink. The
        export has other images, resized in another way.
    """
    FACTS.data_folder(data_dir)
    place = either(partial(locate, data_dir), partial(find_export, data_dir))
    notes: tuple[str, ...] = ()
    if isinstance(place, Path):
        parts, notes = exported(place), (f"read from {EXPORT}, which has a draw of its own",)
    else:
        parts = draw(data_dir, cast("Mapping[str, list[Path]]", place))
    domains = [Domain(name, x[:, None], y) for name, (x, y) in parts.items()]
    return FACTS.data(domains, [*map(str, range(10))], notes=notes)


def locate(data_dir: str | Path | None) -> dict[str, list[Path]]:
    """Return the files as distributed, by maker: all of them, or an error."""
    for part in mnist.PARTS:
        FACTS.find(data_dir, f"{part}-images-idx3-ubyte.gz", f"{part}-images-idx3-ubyte")
    return {n: [FACTS.find(data_dir, *names) for names in own] for n, own in TEXTS.items()}


def find_export(data_dir: str | Path | None) -> Path:
    """Return the file of arrays, or raise an error."""
    return FACTS.find(data_dir, EXPORT, folders=("sites", "."))


def exported(path: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Read images and digits of each maker in one file of arrays."""
    try:
        with np.load(path, allow_pickle=False) as content:
            x, y, site = (content[name] for name in ("x", "y", "site"))
    except (KeyError, ValueError, OSError) as error:
        raise UnseenError(f"{path} does not hold arrays x, y and site: {error}.") from error
    if x.dtype != np.uint8 or x.shape != (len(y), SIDE, SIDE) or len(site) != len(y):
        raise UnseenError(
            f"{path} must hold x uint8 [N, {SIDE}, {SIDE}], y [N] and site [N]; found x {x.dtype} "
            f"{list(x.shape)}, y {list(y.shape)}, site {list(site.shape)}."
        )
    rows = {str(name): site == name for name in dict.fromkeys(site.tolist())}
    digits = y.astype(np.int64)
    return {n: (torch.from_numpy(x[r]), torch.from_numpy(digits[r])) for n, r in rows.items()}


def draw(
    data_dir: str | Path | None, files: Mapping[str, list[Path]]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Read the files as distributed and draw images and digits of each maker."""
    first = [mnist.read(data_dir, part, FACTS) for part in mnist.PARTS]
    makers = {"mnist": (torch.cat([x for x, _ in first]), torch.cat([y for _, y in first]))}
    for name, paths in files.items():
        makers[name] = pixels(name, torch.cat([numbers(path) for path in paths]))
    parts = {}
    for name, (x, y) in makers.items():
        rows = torch.randperm(len(y), generator=keyed(f"digit-makers/{name}"))[:COUNT]
        parts[name] = resized(x[rows]), y[rows]
    return parts


def numbers(path: Path) -> Tensor:
    """Read a text of numbers [N, M] with blanks or commas between them."""
    try:
        comma = "," if path.suffix in (".tra", ".tes") else None
        return torch.from_numpy(np.loadtxt(path, delimiter=comma, ndmin=2))
    except (ValueError, OSError, EOFError) as error:
        raise UnseenError(f"{path} is not a table of numbers: {error}.") from error


def pixels(maker: str, table: Tensor) -> tuple[Tensor, Tensor]:
    """Return images in [0, 255] and digits of a maker's rows.

    USPS has the digit before 256 pixels in [-1, 1]; Semeion an indicator for each digit behind 256
    pixels of 0 and 1; Optdigits the digit behind 64 counts of black pixels, 0 to 16.
    """
    width = {"usps": 257, "semeion": 266, "optdigits": 65}[maker]
    if table.shape[1] != width:
        raise UnseenError(f"rows of {maker} have {width} numbers; found {table.shape[1]}.")
    if maker == "usps":
        return (table[:, 1:] + 1).mul(127.5).view(-1, 16, 16), table[:, 0].long()
    if maker == "semeion":
        return table[:, :256].mul(255).view(-1, 16, 16), table[:, 256:].argmax(1)
    return table[:, :64].mul(255 / 16).view(-1, 8, 8), table[:, 64].long()


def resized(images: Tensor) -> Tensor:
    """Return images [N, H, W] as uint8 [N, 16, 16]."""
    x = images.float()[:, None]
    if x.shape[-1] != SIDE:
        x = F.interpolate(x, (SIDE, SIDE), mode="bilinear", align_corners=False, antialias=True)
    return x[:, 0].round().clamp(0, 255).to(torch.uint8)


def variants(data: DataSet) -> Mapping[str, Mapping[str, int]]:
    """Return the digits per class of the form in which the data were found, where known."""
    return FACTS.exported if data.notes else {}


SHARED = {own.name: getattr(FACTS, own.name) for own in fields(Facts)}
INFO = Info(**SHARED, loader=load, locate=locate, variants=variants)
