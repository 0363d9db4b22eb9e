"""Camelyon17 of WILDS: is there tumour in a patch of lymph node; five hospitals."""

from functools import partial
from pathlib import Path

from unseen.data.dataset import DataSet
from unseen.data.entry import Facts, Info
from unseen.data.image_files.images import View
from unseen.data.tables.table_files import stream
from unseen.errors import choice
from unseen_papers.data import wilds

FACTS = Facts.of("camelyon17", "unseen_papers.data")
HOSPITALS = (*FACTS.cells,)
#: WILDS trains on these, selects on hospital 1 and tests on hospital 2.
SOURCES = ("0", "3", "4")


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
    examples = []
    for patient, node, x, y, tumour, slide, center, split in stream(path, FACTS.names["columns"]):
        choice(f"center in {path}", center, HOSPITALS)
        choice(f"tumor in {path}", tumour, ("0", "1"))
        name = f"patient_{patient.zfill(3)}_node_{node}"
        file = f"patches/{name}/patch_{name}_x_{x}_y_{y}.png"
        validates = center in SOURCES and wilds.real(split, "split", path) == 1
        examples.append(
            (center, wilds.Example(file, int(tumour), validates, {"slide": code[slide]}))
        )
    levels = {"slide": tuple(slides)}
    return wilds.data_set(FACTS, path.parent, examples, View(size), levels, limit)


locate = partial(wilds.table, FACTS, "metadata.csv")


INFO = Info(**vars(FACTS), loader=load, locate=locate)
