"""A user's own images: data_dir/domain/class/image, as a folder or as one tar archive."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from torch import Tensor

from unseen.data.dataset import DataSet, Domain, lone_classes, shared_units
from unseen.data.entry import Facts, Info, below
from unseen.data.image_files.cache import decoded
from unseen.data.image_files.images import Image, Tree, View
from unseen.data.image_files.layout import Survey
from unseen.data.tables.check_matrix import ALONE, SPELLING, Remark, tagged
from unseen.data.tables.copies import copied_images
from unseen.data.tables.remarks import twins
from unseen.data.tables.sheet import coded
from unseen.errors import UnseenError, nearest

FACTS = Facts.of("folder")
#: The options of `load` that say how images are read, wherever they are.
OPTIONS = ("size", "grey", "classes", "unit")
#: The most names that a note lists.
FEW = 5


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
    trees, every, names = surveyed = survey(data_dir, path, classes)
    unit_names, units = named_units(every, unit) if unit is not None else ((), {})
    domains = []
    for domain, images in every.items():
        x, digest = decoded(trees[domain], [image.file for image in images], view)
        y = surveyed.labels(images)
        domains.append(Domain(domain, x, y, digest=digest, units=units.get(domain)))
    notes = [
        *tagged(deeper(trees.values()), "passed over", "image"),
        *passed_over(next(iter(trees.values())), list(every), "image"),
        *tagged(twins(list(every), "site"), SPELLING, "image"),
        *tagged(twins(names, "class"), SPELLING, "image"),
        *tagged(lone_classes(domains, names), ALONE, "image"),
        *tagged(copied_images(domains, every), "copies", "image"),
        *tagged(shared_units(domains, unit_names, str(unit)), "unit at several sites", "unit"),
    ]
    about = {"source": source_of(surveyed), "licence": "the user's own"}
    return FACTS.data(domains, names, notes=tuple(notes), **about)


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
            f"{tree.root} is not one tree domain/class/image: found {above[0]} and {above[1]}."
        )
    images: dict[str, list[Image]] = {name: [] for name in sorted({f.parts[-3] for f in files})}
    for file in files:
        domain, label, _ = file.parts[-3:]
        if classes is not None and label not in classes:
            raise nearest(f"class (a folder of domain {domain!r})", label, classes)
        images[domain].append(Image(file, label, ""))
    labels = tuple(classes or sorted({file.parts[-2] for file in files}))
    return Survey(dict.fromkeys(images, tree), images, labels)


def deeper(trees: Iterable[Tree]) -> list[str]:
    """Return a note on images of a folder that lie deeper than domain/class/image, if any do."""
    tree = next(iter(trees))
    others = [f.path for f in tree.files() if len(f.parts) > 3] if tree.root.is_dir() else []
    if not others:
        return []
    count = f"{len(others):,} images lie" if len(others) > 1 else "1 image lies"
    return [f"{count} deeper than domain/class/image and are not read, such as {others[0]}"]


def passed_over(tree: Tree, sites: Sequence[str], role: str) -> list[Remark]:
    """Return notes on the files and folders of a tree SITE/CLASS/image that hold no image.

    Args:
        tree: The tree.
        sites: The sites that have images.
        role: Whether they are "image" or "mask".
    """
    others, empty = tree.passed_over(depth=3)
    notes = list[Remark]()
    if others:
        ends = Counter(PurePosixPath(name).suffix.lower() or "no ending" for name in others)
        kinds = ", ".join(f"{n:,} {end}" for end, n in ends.most_common(FEW))
        text = (
            f"files that are not images by their endings and are not read: {kinds}, such as "
            f"{others[0]}; convert them to PNG if they are images"
        )
        notes += tagged([text], "passed over", role)
    if empty:
        notes += tagged([f"empty folders: {_listed(empty)}"], "empty", role)
    folders = {name.split("/")[-3] for name in others if name.count("/") >= 2}
    folders |= {name.split("/")[0] for name in empty}
    if unread_sites := sorted(folders - {*sites}):
        text = f"sites without an image that is read, which are left out: {_listed(unread_sites)}"
        notes += tagged([text], "passed over", role)
    return notes


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW:,} more" if names[FEW:] else "")


def source_of(survey: Survey) -> str:
    """Return what reports call the tree."""
    return f"images in {next(iter(survey.trees.values())).root.resolve().name}"


def named_units(
    images: Mapping[str, Sequence[Image]], pattern: str
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """Return the units' names, and the code of each domain's images, by their files' names."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UnseenError(f"unit = {pattern!r} is not a regular expression: {error}.") from None
    if not expression.groups:
        raise UnseenError(f"unit = {pattern!r} has no group in brackets, as (P[0-9]+)_ has.")
    files = [image.file for own in images.values() for image in own]
    matches = [expression.search(file.parts[-1]) for file in files]
    units = [match[1] if match else None for match in matches]
    if without := [file.path for file, unit in zip(files, units, strict=True) if not unit]:
        raise UnseenError(
            f"unit = {pattern!r} finds no unit in the names of {len(without):,} of {len(files):,} "
            f"images, the first {without[0]}."
        )
    names, codes = coded(units)
    sizes = [len(own) for own in images.values()]
    return names, dict(zip(images, codes.split(sizes), strict=True))


INFO = Info(**vars(FACTS), loader=load)
