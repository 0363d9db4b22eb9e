"""Camelyon17 of WILDS: is there tumour in a patch of lymph node; five hospitals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from unseen.core.turn import keyed
from unseen.datasets import wilds
from unseen.datasets.dataset import DataSet
from unseen.datasets.entry import Info
from unseen.datasets.files import find
from unseen.datasets.images import View
from unseen.datasets.sheet import stream
from unseen.errors import UnseenError

FOLDERS = ("camelyon17_v1.0", "camelyon17", ".")
HOSPITALS = ("0", "1", "2", "3", "4")
#: WILDS trains on these, selects on hospital 1 and tests on hospital 2.
SOURCES = ("0", "3", "4")
CLASSES = ("normal", "tumour")
COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split")
SOURCE = "Camelyon17-WILDS v1.0, from the challenge CAMELYON17"
LICENCE = "CC0 1.0"
OBTAIN = f"camelyon17_v1.0 (metadata.csv and the folder patches, 10.7 GB packed) {wilds.OBTAIN}"
CITATION = """@article{bandi2018detection,
  author = {B{\\'a}ndi, P{\\'e}ter and Geessink, Oscar and Manson, Quirine and others},
  title = {From detection of individual metastases to classification of lymph node status at the
           patient level: the {CAMELYON17} challenge},
  journal = {IEEE Transactions on Medical Imaging},
  volume = {38},
  number = {2},
  pages = {550--560},
  year = {2018}
}
"""
#: Patches per hospital; 0, 3 and 4 together are WILDS' 302,436 of training and 33,560 of
#: validation in the distribution, 1 its validation outside of it, 2 its test.
TOTALS: Mapping[str, int] = {"0": 59_436, "1": 34_904, "2": 85_054, "3": 129_838, "4": 146_722}
#: WILDS' script keeps as many normal patches as tumour patches at each hospital.
CELLS = {center: dict.fromkeys(CLASSES, total // 2) for center, total in TOTALS.items()}


def load(data_dir: str | Path | None, *, size: int = 96, limit: int | None = None) -> DataSet:
    """Load patches of 96 × 96 pixels: tumour in the middle 32 × 32, or none.

    Args:
        data_dir: The data folder.
        size: S in pixels.
        limit: The most patches of each hospital, drawn once, for trials; all 455,954 take 12.6 GB
            once decoded.

    Returns:
        uint8 [N, 3, S, S]; domains "0" ... "4", the hospitals as numbered in `center` of
        metadata.csv (from 1 in the WILDS paper). Rows of hospitals 0, 3 and 4 whose `split` is 1
        are the official validation split inside the distribution (`Domain.validation`). The
        metadata column `slide` names the slide.

    Departs from:
        WILDS, which also standardises by ImageNet's pixels: that is the model's part here,
        `densenet121(standardise=True)`.

    Source:
        Koh et al., "WILDS", 2021, §4.1.2. WILDS and PPDG (Table 1):

            [holdout]
            source = ["0", "3", "4"]
            validation = ["1"]
            target = ["2"]
    """
    path = locate(data_dir)
    slides = sorted({slide for (slide,) in stream(path, ("slide",))}, key=lambda s: (len(s), s))
    code = {slide: i for i, slide in enumerate(slides)}
    examples: dict[str, list[wilds.Example]] = {}
    for patient, node, x, y, tumour, slide, center, split in stream(path, COLUMNS):
        if center not in HOSPITALS or tumour not in ("0", "1"):
            raise UnseenError(
                f"{path} has the center {center!r} and the label {tumour!r}; expected one of "
                f"{', '.join(HOSPITALS)} and 0 or 1."
            )
        name = f"patient_{patient.zfill(3)}_node_{node}"
        file = f"patches/{name}/patch_{name}_x_{x}_y_{y}.png"
        validates = center in SOURCES and wilds.real(split, "split", path) == 1
        example = wilds.Example(file, int(tumour), validates, {"slide": code[slide]})
        examples.setdefault(center, []).append(example)
    domains = wilds.domains(path.parent, examples, View(size), limit=limit)
    levels = {"slide": tuple(slides)}
    return DataSet(
        "camelyon17", domains, CLASSES, SOURCE, LICENCE, CITATION + wilds.CITATION, levels=levels
    )


def locate(data_dir: str | Path | None) -> Path:
    """Return the table of the images, with its columns; an error says where it was looked for."""
    path = find(data_dir, ["metadata.csv"], FOLDERS, dataset="camelyon17", obtain=OBTAIN)
    next(stream(path, COLUMNS), None)
    return path


def sketch(folder: Path) -> None:
    """Write a synthetic stand-in: five hospitals of 12 patches, tinted by hospital and class."""
    from PIL import Image

    generator = keyed("sketch/camelyon17")
    root = folder / "camelyon17_v1.0"
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for i in range(60):
        center, tumour, x, y = i % 5, (i // 5) % 2, 32 * i, 64 * i
        name = f"patient_{20 * center:03d}_node_{i % 2}"
        file = root / "patches" / name / f"patch_{name}_x_{x}_y_{y}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(60, (96, 96, 3), generator=generator) + 100 + 10 * center
        pixels[32:64, 32:64, 2] -= 60 * tumour
        Image.fromarray(pixels.to(torch.uint8).numpy()).save(file)
        split = int(str(center) in SOURCES and i >= 50)
        lines.append(
            f"{i},{20 * center:03d},{i % 2},{x},{y},{tumour},{10 * center},{center},{split}"
        )
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")


INFO = Info(
    load,
    "tumour or not in 455,954 patches of lymph nodes, five hospitals (WILDS)",
    SOURCE,
    LICENCE,
    "densenet121",
    totals=TOTALS,
    cells=CELLS,
    sketch=sketch,
    locate=locate,
)
