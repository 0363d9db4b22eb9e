"""A user's own images: data_dir/domain/class/image, as a folder or as one tar archive."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from unseen.datasets.cache import decoded
from unseen.datasets.dataset import DataSet, Domain, lone_classes, shared_units
from unseen.datasets.entry import Info
from unseen.datasets.files import below
from unseen.datasets.images import File, Tree, View
from unseen.datasets.sheet import coded
from unseen.errors import UnseenError, nearest


class Survey(NamedTuple):
    """A tree's images by domain, in their order, and the names of the classes."""

    tree: Tree
    images: dict[str, list[File]]
    classes: tuple[str, ...]

    def labels(self, domain: str) -> list[int]:
        """Return the class of each of a domain's images."""
        return [self.classes.index(file.parts[-2]) for file in self.images[domain]]


def load(
    data_dir: str | Path | None,
    *,
    path: str | Path = ".",
    size: int = 64,
    grey: bool = False,
    classes: Sequence[str] | None = None,
    unit: str | None = None,
) -> DataSet:
    """Load images in a tree domain/class/image: uint8 [N, 3, S, S], or [N, 1, S, S] if `grey`.

    Args:
        data_dir: The data folder.
        path: The tree's folder, or a tar archive of it that is read without being unpacked,
            absolute or relative to `data_dir`.
        size: S in pixels; other images are resized to S × S by Pillow's bilinear filter, whatever
            their proportions.
        grey: Read one grey channel.
        classes: Names of the classes, in their order (default: all that occur at any domain).
        unit: A regular expression that is searched for in the name of every file, and whose first
            group names the patient, or whatever the image is of: images of one unit are never split
            between training and validation.

    Returns:
        Domains, classes and images in the order of their names. Hidden files and files that are not
        images by their suffix are passed over. Images are decoded once, see `cache.decoded`.
    """
    view = View(size, grey)
    tree, images, names = tree_survey = survey(data_dir, path, classes)
    unit_names, units = _units(images, unit) if unit is not None else ((), {})
    domains = []
    for domain, files in images.items():
        x, digest = decoded(tree, files, view)
        y = torch.tensor(tree_survey.labels(domain))
        domains.append(Domain(domain, x, y, digest=digest, units=units.get(domain)))
    notes = [*lone_classes(domains, names), *shared_units(domains, unit_names, str(unit))]
    source, licence = f"images in {tree.root.resolve().name}", "the user's own"
    return DataSet("folder", tuple(domains), names, source, licence, "", notes=tuple(notes))


def survey(
    data_dir: str | Path | None, path: str | Path = ".", classes: Sequence[str] | None = None
) -> Survey:
    """List the images of a tree and their classes, without opening one."""
    tree = Tree(below(data_dir, path, "folder"))
    files = [file for file in tree.files(depth=3) if len(file.parts) >= 3]
    if not files:
        raise UnseenError(f"no images lie under {tree.root} in the form domain/class/image.")
    above = sorted({"/".join(file.parts[:-3]) or "." for file in files})
    if len(above) > 1:
        raise UnseenError(
            f"{tree.root} is not one tree domain/class/image: found images in {above[0]} and in "
            f"{above[1]}."
        )
    images: dict[str, list[File]] = {name: [] for name in sorted({f.parts[-3] for f in files})}
    for file in files:
        images[file.parts[-3]].append(file)
        if classes is not None and file.parts[-2] not in classes:
            kind = f"class (a folder of domain {file.parts[-3]!r})"
            raise nearest(kind, file.parts[-2], classes)
    return Survey(tree, images, tuple(classes or sorted({f.parts[-2] for f in files})))


def _units(
    images: Mapping[str, Sequence[File]], pattern: str
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """The names of the units, and per domain the code of every image's."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UnseenError(f"unit = {pattern!r} is not a regular expression: {error}.") from None
    if not expression.groups:
        raise UnseenError(
            f"unit = {pattern!r} needs a group in brackets that names the unit, as (P[0-9]+)_ does "
            "in P12_left.png."
        )
    files = [file for own in images.values() for file in own]
    matches = [expression.search(file.parts[-1]) for file in files]
    units = [match[1] if match else None for match in matches]
    if missed := [file.path for file, unit in zip(files, units, strict=True) if not unit]:
        raise UnseenError(
            f"unit = {pattern!r} finds no unit in the names of {len(missed):,} of {len(files):,} "
            f"images, the first {missed[0]}."
        )
    names, codes = coded(units)
    sizes = [len(own) for own in images.values()]
    return names, dict(zip(images, codes.split(sizes), strict=True))


INFO = Info(
    load,
    "your own images: domain/class/image, in a folder or a tar archive",
    "your files",
    "yours",
    "bn-cnn",
)
