"""PovertyMap of WILDS: the wealth of villages from satellites; 23 countries, town and country."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from unseen.data.dataset import DataSet
from unseen.data.entry import Facts, Info
from unseen.data.image_files.images import View
from unseen.data.tables.table_files import stream
from unseen.errors import UnseenError, choice, nearest, number
from unseen_papers.data import wilds
from unseen_papers.data.wilds import TEST, VALIDATION

FACTS = Facts.of("povertymap", "unseen_papers.data")
FOLDS = ("A", "B", "C", "D", "E")
COUNTRIES = tuple(sorted(country for fold in FOLDS for country in FACTS.names[fold]))
BANDS = FACTS.names["bands"]
AREAS = ("rural", "urban")
URBAN = {"true": 1, "false": 0, "1": 1, "0": 0}
#: Images that WILDS keeps for validation, and again for a test, inside the distribution.
INSIDE = 1000


@dataclass(frozen=True)
class Bands(View):
    """The array `x` [8, 224, 224] of an npz file, as the bytes of float32 [8, S, S].

    Note:
        Decoded images are kept as bytes, so that these are the bytes of the numbers: viewed as
        float32, the array on disk is [N, 8, S, S]. A size below 224 averages over areas.
    """

    @property
    def shape(self) -> tuple[int, int, int]:
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
                f"{where}: x must be finite, [{len(BANDS)}, 224, 224]; found {list(x.shape)}."
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
    table = []
    for country, urban, wealth in stream(path, FACTS.names["columns"]):
        if country not in COUNTRIES:
            raise nearest(f"country in {path}", country, COUNTRIES)
        true = urban.lower().removesuffix(".0")
        choice(f"urban in {path}", true, (*URBAN,))
        table.append((country, URBAN[true], wilds.real(wealth, "wealthpooled", path)))
    role = {c: part for part, names in countries(fold).items() for c in names}
    sources = [i for i, (country, _, _) in enumerate(table) if role[country] == "train"]
    validation, dropped = _inside(sources, fold)
    pools = {"validation": VALIDATION, "test": TEST} if pooled else {}
    examples = []
    for i, (country, area, target) in enumerate(table):
        if i not in dropped:
            name = pools.get(role[country], f"{country}-{AREAS[area]}")
            meta = {"urban": area, "country": COUNTRIES.index(country)}
            file = f"images/landsat_poverty_img_{i}.npz"
            examples.append((name, wilds.Example(file, target, i in validation, meta)))
    levels = {"urban": AREAS, "country": COUNTRIES}
    return wilds.data_set(FACTS, path.parent, examples, Bands(size), levels, limit, regression=True)


def countries(fold: str) -> dict[str, tuple[str, ...]]:
    """Return the countries of a fold that train, select and test.

    Example:
        >>> countries("A")["validation"], len(countries("A")["train"])
        (('benin', 'burkina_faso', 'guinea', 'sierra_leone', 'tanzania'), 13)
    """
    choice("fold", fold, FOLDS)
    following = FOLDS[(FOLDS.index(fold) + 1) % len(FOLDS)]
    test, validation = FACTS.names[fold], FACTS.names[following]
    train = tuple(c for c in COUNTRIES if c not in (*test, *validation))
    return {"train": train, "validation": validation, "test": test}


locate = partial(wilds.table, FACTS, "dhs_metadata.csv")


def _inside(sources: Sequence[int], fold: str) -> tuple[set[int], set[int]]:
    """The images of the training countries that WILDS validates on, and those it tests on."""
    order = np.array(sources, dtype=np.int64)
    np.random.default_rng(ord(fold) + 541433).shuffle(order)
    count = min(INSIDE, len(order) // 10)
    return set(order[:count].tolist()), set(order[count : 2 * count].tolist())


INFO = Info(**vars(FACTS), loader=load, locate=locate)
