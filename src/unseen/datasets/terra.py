"""Terra Incognita: animals before four camera traps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from unseen.datasets.dataset import DataSet
from unseen.datasets.entry import info_of_layout
from unseen.datasets.images import View
from unseen.datasets.layout import Layout, read

LOCATIONS = ("100", "38", "43", "46")
CLASSES = (
    "bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel",
)  # fmt: skip


def annotated(files: Sequence[Any]) -> dict[str, list[tuple[str, str]]]:
    """Return file name -> location and animal, of LILA's annotations (COCO Camera Traps).

    A picture of two kinds of animals belongs to both classes, as in DomainBed's script.
    """
    places: dict[str, list[tuple[str, str]]] = {}
    for file in files:
        animals = {kind["id"]: kind["name"] for kind in file.get("categories", ())}
        images = {image["id"]: image for image in file.get("images", ())}
        for note in file.get("annotations", ()):
            image = images.get(note["image_id"])
            animal = animals.get(note.get("category_id"))
            if image is None or animal not in CLASSES:
                continue
            if str(image["location"]) in LOCATIONS:
                pairs = places.setdefault(image["file_name"], [])
                pair = (f"L{image['location']}", animal)
                if pair not in pairs:
                    pairs.append(pair)
    return places


LAYOUT = Layout(
    name="terra-incognita",
    roots=("terra_incognita", "TerraIncognita", "terra", "terra_incognita.tar.gz"),
    domains={f"L{number}": (f"location_{number}", number) for number in LOCATIONS},
    classes=dict.fromkeys(CLASSES, ()),
    totals={"L100": 4741, "L38": 9736, "L43": 3970, "L46": 5883},
    source="Caltech Camera Traps (Beery, Van Horn, Perona, 2018), four locations, by LILA BC",
    licence="CDLA-Permissive 1.0",
    obtain=(
        "Terra Incognita is a folder terra_incognita/location_{38,43,46,100}/{class}, which "
        "DomainBed's download script makes of LILA's eccv_18_all_images_sm.tar.gz and json "
        "annotations, and `unseen data import terra-incognita FILE.tar.gz FILE.json` as well."
    ),
    citation="""@inproceedings{beery2018recognition,
  author = {Beery, Sara and Van Horn, Grant and Perona, Pietro},
  title = {Recognition in Terra Incognita},
  booktitle = {European Conference on Computer Vision},
  pages = {456--473},
  year = {2018}
}""",
    annotated=annotated,
)


def load(
    data_dir: str | Path | None,
    *,
    path: str | Path | None = None,
    size: int = 224,
    crop: Literal["none", "centre"] = "none",
) -> DataSet:
    """Terra Incognita: L100 4,741, L38 9,736, L43 3,970, L46 5,883 photos; uint8 [N, 3, S, S].

    Ten classes, of which one is an empty picture. There is no official split. The totals, 24,330,
    are those of what DomainBed's script makes of LILA's files; papers print 24,788, the number of
    the first distribution.

    Args:
        data_dir: The data folder.
        path: The folder or tar archive that holds the domains.
        size: S in pixels.
        crop: See `images.View`.
    """
    return read(LAYOUT, data_dir, path, View(size, crop=crop))


INFO = info_of_layout(load, "9 animals or nothing before four camera traps", LAYOUT)
