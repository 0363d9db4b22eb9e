"""PovertyMap of WILDS: the wealth of villages from satellites; 23 countries, town and country."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from unseen.core.turn import keyed
from unseen.datasets import wilds
from unseen.datasets.dataset import DataSet
from unseen.datasets.entry import Info
from unseen.datasets.files import find
from unseen.datasets.images import View
from unseen.datasets.sheet import stream
from unseen.datasets.wilds import TEST, VALIDATION
from unseen.errors import UnseenError, choice, nearest, number

FOLDERS = ("poverty_v1.1", "poverty", ".")
BANDS = ("blue", "green", "red", "swir1", "swir2", "temp1", "nir", "nightlights")
#: The five groups of countries that the folds are made of. Fold A tests on the first and selects
#: on the second, B tests on the second and selects on the third, ..., E on the fifth and first.
GROUPS = (
    ("angola", "cote_d_ivoire", "ethiopia", "mali", "rwanda"),
    ("benin", "burkina_faso", "guinea", "sierra_leone", "tanzania"),
    ("cameroon", "ghana", "malawi", "zimbabwe"),
    ("democratic_republic_of_congo", "mozambique", "nigeria", "togo", "uganda"),
    ("kenya", "lesotho", "senegal", "zambia"),
)
COUNTRIES = tuple(sorted(country for group in GROUPS for country in group))
FOLDS = ("A", "B", "C", "D", "E")
AREAS = ("rural", "urban")
#: Images that WILDS keeps for validation, and again for a test, inside the distribution.
INSIDE = 1000
COLUMNS = ("country", "urban", "wealthpooled")
SOURCE = "PovertyMap-WILDS v1.1, from Landsat, DMSP and VIIRS images and DHS surveys"
LICENCE = "images: US public domain; survey metadata: terms of the DHS Program"
OBTAIN = (
    f"poverty_v1.1 (dhs_metadata.csv and the folder images, 13.1 GB packed) {wilds.OBTAIN} "
    "Version 1.0 has another layout and is not read."
)
CITATION = """@article{yeh2020using,
  author = {Yeh, Christopher and Perez, Anthony and Driscoll, Anne and Azzari, George and
            Tang, Zhongyi and Lobell, David and Ermon, Stefano and Burke, Marshall},
  title = {Using publicly available satellite imagery and deep learning to understand economic
           well-being in {A}frica},
  journal = {Nature Communications},
  volume = {11},
  number = {1},
  year = {2020},
  doi = {10.1038/s41467-020-16185-w}
}
"""
#: Images of fold A that WILDS states; its sources have 9,797 of training and 1,000 of validation.
TOTALS: Mapping[str, int] = {VALIDATION: 3909, TEST: 3963}


@dataclass(frozen=True)
class Bands(View):
    """The array `x` [8, 224, 224] of an npz file, as the bytes of float32 [8, S, S].

    Note:
        Decoded images are kept as bytes, so that these are the bytes of the numbers: viewed as
        float32, the array on disk is [N, 8, S, S]. A size below 224 averages over areas.
    """

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one image's bytes."""
        return (len(BANDS), self.size, 4 * self.size)

    def __call__(self, content: bytes, where: str) -> Tensor:
        """Read one npz file as uint8 [8, S, 4 S]; an error names the file."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                x = torch.from_numpy(arrays["x"].astype(np.float32))
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise UnseenError(f"{where} holds no array x that can be read ({error}).") from error
        if x.ndim != 3 or len(x) != len(BANDS) or not bool(torch.isfinite(x).all()):
            raise UnseenError(
                f"{where} holds an array x of shape {list(x.shape)}; finite numbers of shape "
                f"[{len(BANDS)}, 224, 224] were expected, the bands first."
            )
        if x.shape[1:] != (self.size, self.size):
            x = adaptive_avg_pool2d(x.double(), (self.size, self.size)).float()
        return x.contiguous().view(torch.uint8)


def load(
    data_dir: str | Path | None,
    *,
    fold: str = "A",
    pooled: bool = True,
    size: int = 224,
    limit: int | None = None,
) -> DataSet:
    """Load an asset index (`wealthpooled`) from eight bands, a regression.

    Args:
        data_dir: The data folder.
        fold: Which countries train, select and test; `countries(fold)` names them.
        pooled: Make the validation countries one domain "ood-validation" and the test countries one
            "ood-test", since WILDS correlates over all of them together; else two domains per
            country.
        size: S in pixels.
        limit: The most images of each domain, drawn once, for trials; all 19,669 take 31.6 GB once
            read.

    Returns:
        float32 [N, 8, S, S], the bands in the order of `BANDS`, standardised by the distributors
        over all countries. Clients are country × area: "kenya-rural", "kenya-urban". Of the
        training countries' images WILDS keeps 1,000 for validation and 1,000 for a test inside the
        distribution, drawn with numpy's generator seeded by the fold's letter: here they are
        `Domain.validation`, and left out. (Of fewer than 10,000 images, which only a stand-in has,
        a tenth each.) WILDS reports Pearson's r over all images and the worse of urban and rural,
        as a mean over the folds.

    Source:
        Koh et al., "WILDS", 2021, §4.1.6; splits as in its package. PPDG (Table 2) has 26 clients,
        which is fold A:

            metrics = ["loss", "pearson"]
            groups = ["urban"]
            metric = "worst pearson@urban"
            [holdout]
            source = "others"
            validation = ["ood-validation"]
            target = ["ood-test"]
    """
    number("size", size, 1, 224, whole=True)
    path = locate(data_dir)
    table = list(_rows(path))
    role = {c: part for part, names in countries(fold).items() for c in names}
    sources = [i for i, (country, _, _) in enumerate(table) if role[country] == "train"]
    validation, dropped = _inside(sources, fold)
    pools = {"validation": VALIDATION, "test": TEST} if pooled else {}
    examples: dict[str, list[wilds.Example]] = {}
    for i, (country, urban, wealth) in enumerate(table):
        if i not in dropped:
            name = pools.get(role[country], f"{country}-{AREAS[urban]}")
            meta = {"urban": urban, "country": COUNTRIES.index(country)}
            file = f"images/landsat_poverty_img_{i}.npz"
            examples.setdefault(name, []).append(wilds.Example(file, wealth, i in validation, meta))
    domains = wilds.domains(
        path.parent, examples, Bands(size), limit=limit, dtype=torch.float32, regression=True
    )
    levels = {"urban": AREAS, "country": COUNTRIES}
    return DataSet(
        "povertymap", domains, None, SOURCE, LICENCE, CITATION + wilds.CITATION, levels=levels
    )


def countries(fold: str) -> dict[str, tuple[str, ...]]:
    """Return the countries of a fold that train, select and test.

    Example:
        >>> countries("A")["validation"], len(countries("A")["train"])
        (('benin', 'burkina_faso', 'guinea', 'sierra_leone', 'tanzania'), 13)
    """
    choice("fold", fold, FOLDS)
    test, validation = GROUPS[FOLDS.index(fold)], GROUPS[(FOLDS.index(fold) + 1) % len(GROUPS)]
    train = tuple(c for c in COUNTRIES if c not in (*test, *validation))
    return {"train": train, "validation": validation, "test": test}


def locate(data_dir: str | Path | None) -> Path:
    """Return the table of the images, with its columns; an error says where it was looked for."""
    path = find(data_dir, ["dhs_metadata.csv"], FOLDERS, dataset="povertymap", obtain=OBTAIN)
    next(stream(path, COLUMNS), None)
    return path


def sketch(folder: Path) -> None:
    """Write a synthetic stand-in: five villages of each area of the 23 countries, 8 × 224 × 224.

    Every image is a few coarse squares, so that the files stay small.
    """
    generator = keyed("sketch/povertymap")
    root = folder / "poverty_v1.1"
    (root / "images").mkdir(parents=True, exist_ok=True)
    lines = [",country,wealthpooled,urban"]
    for i in range(10 * len(COUNTRIES)):
        country, urban = COUNTRIES[i % len(COUNTRIES)], (i // len(COUNTRIES)) % 2
        x = torch.randn(len(BANDS), 4, 4, generator=generator)
        x[-1] += urban
        wealth = float(x[-1].mean() - x[0].mean())
        large = x.repeat_interleave(56, dim=1).repeat_interleave(56, dim=2)
        file = root / "images" / f"landsat_poverty_img_{i}.npz"
        np.savez_compressed(file, x=large.numpy())
        lines.append(f"{i},{country},{wealth:.6f},{bool(urban)}")
    (root / "dhs_metadata.csv").write_text("\n".join(lines) + "\n")


def _rows(path: Path) -> Iterator[tuple[str, int, float]]:
    """Country, 1 for urban and wealth of each image, in the order of the images' numbers."""
    for country, urban, wealth in stream(path, COLUMNS):
        if country not in COUNTRIES:
            raise nearest(f"country in {path}", country, COUNTRIES)
        spelled = {"true": 1, "false": 0, "1": 1, "0": 0, "1.0": 1, "0.0": 0}.get(urban.lower())
        if spelled is None:
            raise UnseenError(f"{path} has {urban!r} in 'urban'; True or False was expected.")
        yield country, spelled, wilds.real(wealth, "wealthpooled", path)


def _inside(sources: Sequence[int], fold: str) -> tuple[set[int], set[int]]:
    """The images of the training countries that WILDS validates on, and those it tests on."""
    order = np.array(sources, dtype=np.int64)
    np.random.default_rng(ord(fold) + 541433).shuffle(order)
    count = min(INSIDE, len(order) // 10)
    return set(order[:count].tolist()), set(order[count : 2 * count].tolist())


INFO = Info(
    load,
    "wealth of 19,669 African villages from 8 bands, 23 countries x urban or rural (WILDS)",
    SOURCE,
    LICENCE,
    "resnet18",
    ("loss", "pearson"),
    totals=TOTALS,
    sketch=sketch,
    locate=locate,
)
