"""Benchmarks of images in folders: what is where as distributed, said once per data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.datasets.cache import decoded
from unseen.datasets.dataset import DataSet, Domain
from unseen.datasets.files import below, given
from unseen.datasets.images import File, Image, Tree, View
from unseen.datasets.splits import Lists
from unseen.datasets.standin import note
from unseen.errors import UnseenError, choice, nearest


@dataclass(frozen=True)
class Layout:
    """How a benchmark lies on disk: root/domain/class/image, or root/domain/part/class/image.

    Attributes:
        name: The data set.
        roots: Names of the folder of the domains, or of a tar archive of it; tried in this order
            below the data folder, then the data folder itself.
        domains: Name -> other spellings of its folder; case, blanks, dashes and underscores never
            matter.
        classes: As for domains, or their number: the names are then those of the folders.
        totals: Images per domain, where known.
        source: Where the files come from.
        licence: On what terms.
        citation: BibTeX.
        obtain: How to get the files, a sentence.
        parts: Folders that may stand between domain and class -> "all", "train" or "validation".
        lists: The official split, as text files.
        cells: Images per domain and class, where known.
        subset: Whether other classes and domains lie there too and are passed over.
        joined: Whether the domains are distributed in more than one folder.
        annotated: Reads json files that say, for images distributed in one heap, domain and class
            of each file's name; for imports.
    """

    name: str
    roots: tuple[str, ...]
    domains: Mapping[str, tuple[str, ...]]
    classes: Mapping[str, tuple[str, ...]] | int
    totals: Mapping[str, int]
    source: str
    licence: str
    citation: str
    obtain: str
    parts: Mapping[str, str] = field(default_factory=dict)
    lists: Lists | None = None
    cells: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    subset: bool = False
    joined: bool = False
    annotated: Callable[[Sequence[Any]], Mapping[str, Sequence[tuple[str, str]]]] | None = None

    def domain(self, folder: str) -> str | None:
        """Return the domain of a folder's name, or None."""
        return _named(self.domains, folder)

    def label(self, folder: str) -> str | None:
        """Return the class of a folder's name, or None."""
        return folder if isinstance(self.classes, int) else _named(self.classes, folder)


@dataclass(frozen=True)
class Survey:
    """The tree of each domain, its images by path, and the names of the classes."""

    trees: Mapping[str, Tree]
    images: Mapping[str, list[Image]]
    classes: tuple[str, ...]


def read(
    layout: Layout,
    data_dir: str | Path | None,
    path: str | Path | None,
    view: View,
    split: str = "none",
) -> DataSet:
    """Read the data set that the layout describes, images decoded once: uint8 [N, 3, S, S].

    Domains are in the layout's order, images in that of part, class and name.

    Args:
        layout: The description.
        data_dir: The data folder.
        path: The folder or tar archive that holds the domains, if it is not at one of the usual
            places.
        view: What becomes of every image.
        split: "official" takes the validation rows from the layout's lists or parts; "none" leaves
            them to the study.
    """
    choice("split", split, ("official", "none"))
    found = survey(layout, data_dir, path)
    domains = []
    for name, images in found.images.items():
        if not images:
            raise UnseenError(f"domain {name!r} of {layout.name} has no images. {layout.obtain}")
        tree = found.trees[name]
        own, rows = distinct(layout, images), None
        if split == "official":
            own, rows = official(layout, name, tree, images, found.classes)
        x, digest = decoded(tree, [image.file for image in own], view)
        y = torch.tensor([found.classes.index(image.label) for image in own])
        domains.append(Domain(name, x, y, rows, digest=digest))
    return DataSet(
        layout.name, tuple(domains), found.classes, layout.source, layout.licence, layout.citation
    )


def survey(layout: Layout, data_dir: str | Path | None, path: str | Path | None = None) -> Survey:
    """Find the domains and list their images, without opening one."""
    trees = _trees(layout, data_dir, path)
    images: dict[str, list[Image]] = {name: [] for name in layout.domains}
    for tree in dict.fromkeys(trees.values()):
        names = [f for f in folders(tree) if layout.domain(f)]
        for file in tree.files(names):
            at = place(layout, file)
            if at is not None and trees.get(at[0]) == tree:
                images[at[0]].append(at[1])
    images = {name: _ordered(layout, own) for name, own in images.items()}
    return Survey(trees, images, _classes(layout, images))


def folders(tree: Tree) -> list[str]:
    """Return the names of the folders in which the domains may lie."""
    if tree.root.is_file():
        return ["."]
    return sorted(f.name for f in tree.root.iterdir() if f.is_dir() and f.name[0] != ".")


def folded(name: str) -> str:
    """Return a name as folders are compared.

    >>> folded("Real World") == folded("real_world") == folded("Real-World")
    True
    """
    return "".join(filter(str.isalnum, name.lower()))


def _named(known: Mapping[str, tuple[str, ...]], folder: str) -> str | None:
    wanted = folded(folder)
    for name, others in known.items():
        if any(folded(spelling) == wanted for spelling in (name, *others)):
            return name
    return None


def _trees(layout: Layout, data_dir: str | Path | None, path: str | Path | None) -> dict[str, Tree]:
    """Domain -> the tree that holds it; all domains are there."""
    if path is not None:
        places = [below(data_dir, path, layout.name)]
    else:
        root = given(data_dir, layout.name, layout.obtain)
        places = [p for p in (*(root / r for r in layout.roots), root) if p.exists()]
    candidates: list[dict[str, Tree]] = []
    for base in places:
        tree = Tree(base)
        if base.is_file():
            present = {d for file in tree.files() if (d := _domain(layout, file))}
        else:
            present = {d for f in folders(tree) if (d := layout.domain(f))}
        candidates.append(dict.fromkeys(sorted(present), tree))
    best = max(candidates, key=len, default={})  # the first of those with most domains
    if layout.joined:
        best = {name: tree for trees in reversed(candidates) for name, tree in trees.items()}
    missing = [name for name in layout.domains if name not in best]
    if missing:
        usual = ", ".join(layout.roots)
        where = ", ".join(map(str, places)) or str(data_dir)
        raise UnseenError(
            f"data set {layout.name!r} lacks the domain folder {', '.join(missing)}; looked in "
            f"{where}. It is sought in {usual} below the data folder, or where the option 'path' "
            f"says. {layout.obtain}"
        )
    for tree in best.values():
        note(tree.root)
    return best


def _domain(layout: Layout, file: File) -> str | None:
    at = place(layout, file, strict=False)
    return at[0] if at is not None else None


def place(layout: Layout, file: File, strict: bool = True) -> tuple[str, Image] | None:
    """Return the domain of a file, and the image that it is; None where it belongs to none."""
    parts = file.parts
    part, above = "", parts[:-2]
    if above and above[-1].lower() in layout.parts:
        part, above = above[-1].lower(), above[:-1]
    domain = layout.domain(above[-1]) if above else None
    if domain is None:
        return None
    label = layout.label(parts[-2])
    if label is None:
        if layout.subset or not strict:
            return None
        assert not isinstance(layout.classes, int)
        raise nearest(f"class (the folder of {file.path})", parts[-2], layout.classes)
    return domain, Image(file, label, part)


def _ordered(layout: Layout, images: list[Image]) -> list[Image]:
    """By part, class and name."""
    order = {name: i for i, name in enumerate(layout.parts)}
    return sorted(images, key=lambda i: (order.get(i.part, -1), i.label, i.file.parts[-1]))


def distinct(layout: Layout, images: list[Image]) -> list[Image]:
    """Return each image of a domain once: other parts repeat those of a part that holds all."""
    whole = [image for image in images if layout.parts.get(image.part) == "all"]
    return whole or images


def _classes(layout: Layout, images: Mapping[str, list[Image]]) -> tuple[str, ...]:
    if not isinstance(layout.classes, int):
        return tuple(layout.classes)
    names = tuple(sorted({image.label for own in images.values() for image in own}))
    if len(names) != layout.classes:
        raise UnseenError(
            f"{layout.name} has {layout.classes} classes; found {len(names)} class folders. "
            f"{layout.obtain}"
        )
    return names


def official(
    layout: Layout, domain: str, tree: Tree, images: list[Image], classes: tuple[str, ...]
) -> tuple[list[Image], Tensor]:
    """Return a domain's images and the rows of its official validation split.

    Split by folders, an image is for validation where it lies in such a folder; where other parts
    repeat a part that holds all, by the class and the name that they share.
    """
    own = distinct(layout, images)
    if layout.lists is not None:
        return layout.lists.apply(domain, tree.root, own, classes)
    held = [i for i in images if layout.parts.get(i.part) == "validation"]
    if not held:
        names = [name for name, role in layout.parts.items() if role == "validation"]
        usual = f" in folders {', '.join(names)}" if names else ""
        raise UnseenError(
            f"{layout.name} in {tree.root} has no official split{usual}. Take split='none', and "
            "the study draws its validation rows."
        )
    repeated = {i.key for i in held} if len(own) < len(images) else set()
    rows = [
        row
        for row, image in enumerate(own)
        if layout.parts.get(image.part) == "validation" or image.key in repeated
    ]
    return own, torch.tensor(rows, dtype=torch.int64)
