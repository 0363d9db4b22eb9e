"""A user's own images: data_dir/domain/class/image, as a folder or as one tar archive."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unseen.datasets.cache import decoded
from unseen.datasets.dataset import DataSet, Domain, lone_classes, shared_units
from unseen.datasets.entry import Info
from unseen.datasets.files import below
from unseen.datasets.images import File, Tree, View
from unseen.datasets.sheet import coded
from unseen.errors import UnseenError, nearest


@dataclass(frozen=True)
class Survey:
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
    """Images in a tree domain/class/image: uint8 [N, 3, S, S], or [N, 1, S, S] if `grey`.

    Domains, classes and images are in the order of their names. Hidden files and files that are not
    images by their suffix are passed over. Images are decoded once, see `cache.decoded`.

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
    """
    view = View(size, grey)
    tree_survey = survey(data_dir, path, classes)
    names, units = _units(tree_survey, unit) if unit is not None else ((), {})
    domains = []
    for domain, files in tree_survey.images.items():
        x, digest = decoded(tree_survey.tree, files, view)
        y = torch.tensor(tree_survey.labels(domain))
        domains.append(Domain(domain, x, y, digest=digest, units=units.get(domain)))
    name = tree_survey.tree.root.resolve().name
    notes = [*lone_classes(domains, tree_survey.classes), *shared_units(domains, names, str(unit))]
    source, licence = f"images in {name}", "the user's own"
    return DataSet(
        "folder", tuple(domains), tree_survey.classes, source, licence, "", notes=tuple(notes)
    )


def survey(
    data_dir: str | Path | None, path: str | Path = ".", classes: Sequence[str] | None = None
) -> Survey:
    """List the images of a tree and their classes, without opening one."""
    tree = Tree(below(data_dir, path, "folder"))
    files = _listed(tree)
    if not files:
        raise UnseenError(f"no images lie under {tree.root} in the form domain/class/image.")
    images: dict[str, list[File]] = {name: [] for name in sorted({f.parts[-3] for f in files})}
    for file in files:
        images[file.parts[-3]].append(file)
    return Survey(tree, images, _classes(images, classes))


def _listed(tree: Tree) -> list[File]:
    """The tree's images; whatever stands above the domains in an archive must be one folder."""
    images = [file for file in tree.files(depth=3) if len(file.parts) >= 3]
    for file in images:
        above, other = images[0].parts[:-3], file.parts[:-3]
        if above != other:
            raise UnseenError(
                f"{tree.root} is not one tree domain/class/image: found images in "
                f"{'/'.join(above) or '.'} and in {'/'.join(other) or '.'}."
            )
    return images


def _classes(images: dict[str, list[File]], names: Sequence[str] | None) -> tuple[str, ...]:
    """The class names: those given, which must have every class folder, or all that occur."""
    if names is None:
        return tuple(sorted({file.parts[-2] for files in images.values() for file in files}))
    for domain, files in images.items():
        for unknown in sorted({file.parts[-2] for file in files} - set(names)):
            raise nearest(f"class (a folder of domain {domain!r})", unknown, names)
    return tuple(names)


def _units(tree_survey: Survey, pattern: str) -> tuple[tuple[str, ...], dict[str, Tensor]]:
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
    files = [file for own in tree_survey.images.values() for file in own]
    matches = [expression.search(file.parts[-1]) for file in files]
    pairs = zip(files, matches, strict=True)
    missed = [file.path for file, match in pairs if not (match and match[1])]
    if missed:
        raise UnseenError(
            f"unit = {pattern!r} finds no unit in the names of {len(missed):,} of {len(files):,} "
            f"images, the first {missed[0]}."
        )
    names, codes = coded([match[1] for match in matches if match])
    sizes = [len(own) for own in tree_survey.images.values()]
    return names, dict(zip(tree_survey.images, codes.split(sizes), strict=True))


INFO = Info(
    load,
    "your own images: domain/class/image, in a folder or a tar archive",
    "your files",
    "yours",
    "bn-cnn",
)
