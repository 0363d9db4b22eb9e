"""Benchmarks of images in folders: what is where, and how all are read.

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

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from unseen.data.dataset import DataSet, Domain
from unseen.data.entry import Facts, Info, Layout, below
from unseen.data.image_files.cache import decoded
from unseen.data.image_files.images import File, Image, Tree, View
from unseen.data.standin import note
from unseen.errors import UnseenError, choice, nearest


class Survey(NamedTuple):
    """The tree of each domain, its images by path, and the names of the classes."""

    trees: Mapping[str, Tree]
    images: Mapping[str, list[Image]]
    classes: tuple[str, ...]

    def labels(self, images: Sequence[Image]) -> Tensor:
        return torch.tensor([self.classes.index(image.label) for image in images])


def read(
    layout: Layout,
    data_dir: str | Path | None,
    path: str | Path | None,
    view: View,
    split: str = "none",
) -> DataSet:
    """Read the data set that the layout describes, images decoded once: uint8 [N, 3, S, S].

    Args:
        layout: The description.
        data_dir: The data folder.
        path: The folder or tar archive that holds the domains, if it is not at one of the usual
            places.
        view: What becomes of every image.
        split: "official" takes the validation rows from the layout's lists or parts; "none" leaves
            them to the study.

    Returns:
        Domains in the layout's order, images in that of part, class and name.
    """
    choice("split", split, ("official", "none"))
    trees, every, classes = surveyed = survey(layout, data_dir, path)
    domains = []
    for name, images in every.items():
        if not images:
            raise UnseenError(
                f"domain {name!r} of {layout.name} has no images.", remedy=layout.obtain
            )
        own, rows = distinct(layout, images), None
        if split == "official":
            own, rows = official(layout, name, trees[name], images, classes)
        x, digest = decoded(trees[name], [image.file for image in own], view)
        domains.append(Domain(name, x, surveyed.labels(own), rows, digest=digest))
    return layout.data(domains, classes)


def survey(layout: Layout, data_dir: str | Path | None, path: str | Path | None = None) -> Survey:
    """Find the domains and list their images, without opening one."""
    trees = _trees(layout, data_dir, path)
    images: dict[str, list[Image]] = {name: [] for name in layout.domains}
    for tree in dict.fromkeys(trees.values()):
        for file in tree.files([folder for folder in _folders(tree) if layout.domain(folder)]):
            at = place(layout, file)
            if at is not None and trees.get(at[0]) == tree:
                images[at[0]].append(at[1])
    order = {name: i for i, name in enumerate(layout.parts)}
    for own in images.values():
        own.sort(key=lambda i: (order.get(i.part, -1), i.label, i.file.parts[-1]))
    if layout.count is None:
        return Survey(trees, images, layout.labels)
    classes = sorted({image.label for own in images.values() for image in own})
    if len(classes) != layout.count:
        raise UnseenError(
            f"{layout.name} has {layout.count} classes; found {len(classes)} class folders.",
            remedy=layout.obtain,
        )
    return Survey(trees, images, tuple(classes))


def _folders(tree: Tree) -> list[str]:
    if tree.root.is_file():
        return ["."]
    return sorted(f.name for f in tree.root.iterdir() if f.is_dir() and f.name[0] != ".")


def _trees(layout: Layout, data_dir: str | Path | None, path: str | Path | None) -> dict[str, Tree]:
    """Domain -> the tree that holds it; all domains are there."""
    if path is not None:
        places = [below(data_dir, path, layout.name)]
    else:
        root = layout.data_folder(data_dir)
        places = [p for p in (*(root / r for r in layout.roots), root) if p.exists()]
    candidates: list[dict[str, Tree]] = []
    for base in places:
        tree = Tree(base)
        if base.is_file():
            images = (place(layout, file, strict=False) for file in tree.files())
            present = {image[0] for image in images if image}
        else:
            present = {domain for f in _folders(tree) if (domain := layout.domain(f))}
        candidates.append(dict.fromkeys(sorted(present), tree))
    best = max(candidates, key=len, default={})  # the first of those with most domains
    if layout.joined:
        best = {name: tree for trees in reversed(candidates) for name, tree in trees.items()}
    if missing := [name for name in layout.domains if name not in best]:
        where = ", ".join(map(str, places)) or str(data_dir)
        raise UnseenError(
            f"data set {layout.name!r} lacks the domain folder {', '.join(missing)}; looked in "
            f"{where}. Usual places: {', '.join(layout.roots)}, or the option 'path'.",
            remedy=layout.obtain,
        )
    for tree in best.values():
        note(tree.root)
    return best


def place(layout: Layout, file: File, strict: bool = True) -> tuple[str, Image] | None:
    """Return the domain of a file, and the image that it is; None where it belongs to none.

    Args:
        layout: The description.
        file: The file.
        strict: Raise an error for a folder that is not a class, unless the layout is a subset.
    """
    part, above = "", file.parts[:-2]
    if above and above[-1].lower() in layout.parts:
        part, above = above[-1].lower(), above[:-1]
    domain = layout.domain(above[-1]) if above else None
    if domain is None:
        return None
    folder = file.parts[-2]
    label = layout.label(folder)
    if label is not None:
        return domain, Image(file, label, part)
    if layout.subset or not strict or layout.count is not None:
        return None
    raise nearest(f"class (the folder of {file.path})", folder, layout.labels)


def distinct(layout: Layout, images: list[Image]) -> list[Image]:
    """Return each image of a domain once: other parts repeat those of a part that holds all."""
    whole = [image for image in images if layout.parts.get(image.part) == "all"]
    return whole or images


def official(
    layout: Layout, domain: str, tree: Tree, images: list[Image], classes: tuple[str, ...]
) -> tuple[list[Image], Tensor]:
    """Return a domain's images and the rows of its official validation split.

    Note:
        Split by folders, an image is for validation where it lies in such a folder; where other
        parts repeat a part that holds all, by the class and the name that they share.
    """
    own = distinct(layout, images)
    if layout.lists is not None:
        return layout.lists.apply(domain, tree.root, own, classes)
    parts = [name for name, role in layout.parts.items() if role == "validation"]
    keys = {image.key for image in images if image.part in parts}
    if not keys:
        usual = f" in folders {', '.join(parts)}" if parts else ""
        raise UnseenError(
            f"{layout.name} in {tree.root} has no official split{usual}.",
            remedy="Take split='none', and the study draws its validation rows.",
        )
    repeated = len(own) < len(images)
    validates = [i.part in parts or (repeated and i.key in keys) for i in own]
    return own, torch.tensor(validates).nonzero().flatten()


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
    return Info(**shared, loader=load, layout=layout)


def annotated(files: Sequence[Any]) -> dict[str, list[tuple[str, str]]]:
    """Return file name -> location and animal, of LILA's annotations (COCO Camera Traps).

    A picture of two kinds of animals belongs to both classes, as in DomainBed's script.
    """
    terra = LAYOUTS["terra-incognita"]
    places: dict[str, dict[tuple[str, str], None]] = {}
    for file in files:
        animals = {kind["id"]: kind["name"] for kind in file.get("categories", ())}
        images = {image["id"]: image for image in file.get("images", ())}
        for mark in file.get("annotations", ()):
            image = images.get(mark["image_id"], {})
            animal, location = animals.get(mark.get("category_id")), f"L{image.get('location')}"
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
