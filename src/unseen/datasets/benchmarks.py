"""Benchmarks of images in folders: what is where in each, and one loader for all of them.

Source:
    office-caltech-home: CSAC, Figure 4, where Amazon, Clipart, Product, Webcam, Art and Caltech
    join in this order and Real_World is the target. The paper does not list the classes; "office8"
    in its code leads to the eight that both data sets have.

Note:
    What `split="official"` takes; with "none" the study draws from all images, as DomainBed does:
    - pacs: the lists *_train_kfold.txt and *_crossval_kfold.txt (FedDG-GA); labels begin at 1.
    - vlcs: in the copy with folders train, crossval, test, the latter two validate, 30 % of every
      domain (CSAC's 70/30); a target is tested on all its images, at CSAC on its test folder.
    - domainnet: the images in the lists *_train.txt and *_test.txt, of which the latter validate.
    - domainnet10: those in FedBN's lists *_train.pkl and *_test.pkl, pairs of paths and labels.
    - digits-dg: the folders val validate, a fifth of every domain.
    - The others have none. FedDG-GA draws 90/10 of office-home from a list in the order of the
      machine's own directory, so no two machines have the same.

    Papers print 24,788 images of terra-incognita, the number of the first distribution; 24,330 is
    that of what DomainBed's script makes of LILA's files. Classes of domainnet are in the order of
    their folders' names, capitals first; at 224 pixels it takes 88 GB on disk, at 64 pixels 7.2 GB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from unseen.datasets.dataset import DataSet
from unseen.datasets.entry import Facts, Info, Layout
from unseen.datasets.images import View
from unseen.datasets.layout import read, sketch


def entry(layout: Layout) -> Info:
    """Return a benchmark's entry, with its loader."""

    def load(
        data_dir: str | Path | None,
        *,
        path: str | Path | None = None,
        size: int = layout.size,
        crop: Literal["none", "centre"] = "none",
        split: Literal["official", "none"] = layout.split,
    ) -> DataSet:
        """Read the benchmark's images, uint8 [N, 3, S, S].

        Args:
            data_dir: The data folder.
            path: The folder or tar archive that holds the domains.
            size: S in pixels.
            crop: See `images.View`.
            split: "official" takes the validation rows of the split that is distributed with the
                benchmark; "none" lets the study draw them.
        """
        return read(layout, data_dir, path, View(size, crop=crop), split)

    shared = {own.name: getattr(layout, own.name) for own in fields(Facts)}
    return Info(**shared, loader=load, sketch=partial(sketch, layout), layout=layout)


def annotated(files: Sequence[Any]) -> dict[str, list[tuple[str, str]]]:
    """Return file name -> location and animal, of LILA's annotations (COCO Camera Traps).

    A picture of two kinds of animals belongs to both classes, as in DomainBed's script.
    """
    terra = LAYOUTS["terra-incognita"]
    places: dict[str, dict[tuple[str, str], None]] = {}
    for file in files:
        animals = {kind["id"]: kind["name"] for kind in file.get("categories", ())}
        images = {image["id"]: image for image in file.get("images", ())}
        for note in file.get("annotations", ()):
            image = images.get(note["image_id"], {})
            animal, location = animals.get(note.get("category_id")), f"L{image.get('location')}"
            if animal in terra.labels and location in terra.domains:
                places.setdefault(image["file_name"], {})[location, animal] = None
    return {name: list(pairs) for name, pairs in places.items()}


LAYOUTS = {
    name: Layout.of(name)
    for name in (
        "pacs", "vlcs", "office-home", "office-caltech-home", "terra-incognita", "domainnet",
        "domainnet10", "digits-dg",
    )
}  # fmt: skip
LAYOUTS["terra-incognita"] = replace(LAYOUTS["terra-incognita"], annotated=annotated)
INFOS = tuple(map(entry, LAYOUTS.values()))
